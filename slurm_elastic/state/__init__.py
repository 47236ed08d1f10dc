"""All persistent state: the ledger, slurm-elastic-ckptman's memory, the requests of slurmctld, the
marks of running services, and their directory. This package reads no configuration.
"""
