"""Decides when a job is saved and moved, by the threats to it and the cost of a save."""
