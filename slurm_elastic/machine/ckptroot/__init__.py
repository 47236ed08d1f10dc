"""The part of checkpointing by ``criu`` and ``dmtcp`` that runs on the nodes as root.

It is the program that the launcher starts by sudo, and the sweeper. README.md beside this file says
who calls it, what it trusts, and where to look.

It imports only the standard library, because it is installed on the nodes as one file
(``slurm-elastic rootpart``).
"""
