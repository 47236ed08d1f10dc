"""Slurm's configuration: read as Slurm reads it, rendered, proven, installed and taken out
again.
"""
