"""What is remembered: the ledger, slurm-elastic-ckptman's memory, the requests of slurmctld, the
marks of services that live; and the directory that holds them. It knows nothing of configurations.
"""
