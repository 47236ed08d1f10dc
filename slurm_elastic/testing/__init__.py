"""The suites that clouds, growth policies and checkpoint methods keep, ours and others', for pytest
(which is no part of the product).

``contract`` has what a provider must do, ``matrix`` what a daemon makes of each of its faults;
``growth`` is a growth policy's, ``saving`` a checkpoint method's.
``pytest_plugins = ["slurm_elastic.testing"]`` has their assertions explain themselves.
"""
