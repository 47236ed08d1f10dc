"""Emulated clouds and a real Slurm cluster on one machine, for rehearsals, the quickstart and
end-to-end tests. No part of it may reach an endpoint outside loopback (``loopback_only``).
"""
