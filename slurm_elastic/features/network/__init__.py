"""Addresses, tunnels and keys: how a machine becomes reachable and is known."""
