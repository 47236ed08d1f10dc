"""The drawn sites of ``tests.chaos`` on a real slurmctld, slurmds and services: ``scripts/chaos --real``."""
