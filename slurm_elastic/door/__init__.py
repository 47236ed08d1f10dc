"""The read door: slurm-elasticd answers users, who may not open the files of the state directory.

``records`` reads the files, ``sight`` says who may see what of it, ``server`` and ``client`` are
the two ends of a unix socket; root and SlurmUser read the files themselves.
"""
