"""The values that all parts speak in: the cluster's, Slurm's, those that are remembered; and the
protocols where parts meet. Frozen, without I/O.
"""
