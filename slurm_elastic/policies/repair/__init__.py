"""Decides how disagreements between Slurm, the ledger and a cloud are repaired."""
