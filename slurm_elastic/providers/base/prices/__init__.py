"""Prices over time, from files."""
