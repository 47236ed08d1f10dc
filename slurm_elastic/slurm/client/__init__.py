"""Asks Slurm, and tells it: by its commands or pyslurm, or a Slurm in memory."""
