"""Calculates what machines cost, who pays for them, and when a budget forbids more."""
