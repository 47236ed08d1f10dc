"""Google's Compute Engine on loopback: as much of its API as the provider ``gcp`` uses."""
