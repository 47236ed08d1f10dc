"""Creates the resources that a site lacks in a cloud, removes them, or writes them as files for
Terraform (``init --make``, ``--unmake``, ``--terraform``).
"""
