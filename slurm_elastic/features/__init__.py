"""The optional parts of slurm-elasticd. The core (``controller``) does not import them."""
