"""Slurm's configuration: read as Slurm reads it, rendered, proven, installed, taken out again."""
