"""Decides what is done where Slurm, the ledger and a cloud do not agree."""
