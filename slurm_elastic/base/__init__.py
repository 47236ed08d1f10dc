"""What knows nothing of clusters and clouds: errors, files, text, units, bounds, fault points."""
