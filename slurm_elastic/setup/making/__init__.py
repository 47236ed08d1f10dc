"""Creates the resources that a site lacks in a cloud, and removes them (``init --make``,
``--unmake``).
"""
