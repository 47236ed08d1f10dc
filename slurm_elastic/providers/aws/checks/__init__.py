"""Checks of an EC2 cloud: its settings, its rights and what a launch needs."""
