"""The clients that read and change Slurm: by its commands, by pyslurm, or in memory."""
