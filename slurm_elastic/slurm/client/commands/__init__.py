"""Single commands of Slurm."""
