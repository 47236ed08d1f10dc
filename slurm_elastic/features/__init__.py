"""The optional parts of slurm-elasticd. The core (``controller``) imports none of them."""
