"""The only code that talks to Slurm or writes for it."""
