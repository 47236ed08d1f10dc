"""Decides what is bought, where, for whom, and why not."""
