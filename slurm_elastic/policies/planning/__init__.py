"""Decides what to reserve for the years to come."""
