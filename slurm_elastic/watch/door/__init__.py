"""The read door: slurm-elasticd answers users, who may not open the files of the state directory.
``records`` reads the files, ``visibility`` decides who may see what, ``server`` and ``client`` are
the ends of a unix socket, ``bounded_process`` computes apart what may take long.
"""
