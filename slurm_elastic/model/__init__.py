"""The values that all packages share: of the cluster, of Slurm and of the ledger, and the protocols
between the packages. All values are frozen and do no I/O.
"""
