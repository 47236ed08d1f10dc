"""slurm-elasticd: resume, suspend, reconcile, and the prologs that wait for them."""
