"""The part of checkpointing by ``criu`` and ``dmtcp`` that runs on the nodes as root: the program
that the launcher starts by sudo, and the sweeper. README.md beside this file says who calls it,
what it trusts, and where to look.

It uses the standard library only and nothing of our other modules, as it is put on the nodes as one
file (``slurm-elastic rootpart``).
"""
