"""Modules that know nothing of clusters and clouds: errors, files, text, units, bounds, faults."""
