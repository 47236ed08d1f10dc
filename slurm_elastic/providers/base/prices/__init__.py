"""Prices over time, from files and from clouds."""
