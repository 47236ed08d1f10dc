"""The memory of both services: a journal of facts, and an sqlite file as its view.

``journal`` reads and writes lines, ``view`` the sqlite file, ``disk`` both together. Threads use
``store``. ``endurance`` continues in memory without a disk, and ``merging`` brings those rows back
to the disk. ``trouble`` names faults of files. ``before`` takes over files of releases without a
journal. ``backup`` is the code of ``slurm-elastic journal``.
"""
