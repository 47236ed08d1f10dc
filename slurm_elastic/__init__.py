"""slurm-elastic: a hybrid, spot-safe, cost-optimal elastic cluster behind plain sbatch."""
