"""The part that runs on the nodes for methods ``criu`` and ``dmtcp``: the program that the launcher
starts by sudo, and the sweeper. It is the only part of the checkpoints that is root.

Standard library only and apart from all other modules: it is put on the nodes as one file
(``slurm-elastic rootpart``). ``main`` is the way in, ``caller`` finds out for whom, ``site`` is
root's own configuration, ``store`` and ``manifest`` the job's directory, ``images`` reads what CRIU
wrote, ``criu`` and ``dmtcp`` are the methods, ``session`` drives one run of a job.
"""
