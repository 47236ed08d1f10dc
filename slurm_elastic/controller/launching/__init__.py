"""Launches: from slurmctld's request to a registered machine."""
