"""slurm-elastic-ckptman: observe what threatens running jobs, decide, save and move them."""
