pytest_plugins = ["slurm_elastic.testing"]
