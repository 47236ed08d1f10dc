"""Decides when a job is saved and moved, by what threatens it and what a save costs."""
