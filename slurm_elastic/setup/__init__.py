"""Makes the first configuration of a site for ``init``, from its slurm.conf, the clouds that its
host can reach, and the answers to a few questions.
"""
