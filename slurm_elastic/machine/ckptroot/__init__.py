"""The part that runs on the nodes for methods ``criu`` and ``dmtcp``: the program that the launcher
starts by sudo, and the sweeper. It is the only part of the checkpoints that is root; README.md
beside this file says who calls it, what it trusts, and where to look.

Standard library only and apart from all other modules: it is put on the nodes as one file
(``slurm-elastic rootpart``).
"""
