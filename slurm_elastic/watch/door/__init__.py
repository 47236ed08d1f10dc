"""The read door: slurm-elasticd answers users, who may not open the files of the state directory.

``records`` reads the files, ``visibility`` decides which parts a user may see, ``server`` and
``client`` are the ends of a unix socket. Long work runs in another process
(``base.bounded_process``). Only that process imports ``forecasts`` and the simulator.
"""
