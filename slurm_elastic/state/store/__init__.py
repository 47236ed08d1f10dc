"""The one sqlite layer, under the ledger and under what slurm-elastic-ckptman remembers.

``files`` makes, opens and migrates, ``store`` has transactions and writes that share a sync,
``trouble`` names what ails a file, and ``refuge``, which sets a damaged one aside, with
``moving`` goes on in memory while it cannot be used.
"""
