"""Commands that show the cluster as it is."""
