"""What machines cost in a simulation."""
