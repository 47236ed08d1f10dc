"""The first configuration of a site, made of what its slurm.conf and its hosts tell (``init``)."""
