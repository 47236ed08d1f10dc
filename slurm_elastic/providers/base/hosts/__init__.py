"""Hosts of the site: who holds them, and how their power is switched."""
