"""Reads from Slurm's words in which state a node is, and why."""
