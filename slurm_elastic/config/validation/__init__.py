"""Checks of a whole configuration."""
