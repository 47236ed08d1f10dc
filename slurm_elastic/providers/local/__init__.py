"""slurmd processes on this host."""
