"""The suite that each provider keeps, ours and others', for pytest (which is no part of the product).

``contract`` has what a provider must do, ``matrix`` what a daemon makes of each of its faults.
``pytest_plugins = ["slurm_elastic.testing"]`` has their assertions explain themselves.
"""
