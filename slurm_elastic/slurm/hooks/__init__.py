"""What runs inside Slurm: the job submit filter, and the lines before a batch script."""
