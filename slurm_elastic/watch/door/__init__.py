"""The read door: slurm-elasticd answers users, who may not open the files of the state directory.

``records`` reads the files, ``sight`` says who may see what of it, ``server`` and ``client`` are
the two ends of a unix socket; ``apart`` has what may take long computed by a process of its own.
Root and SlurmUser read the files themselves.
"""
