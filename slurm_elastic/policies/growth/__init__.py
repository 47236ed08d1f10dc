"""Decides when a pool grows beyond what Slurm asks for, and when idle machines go."""
