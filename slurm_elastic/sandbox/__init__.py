"""Emulated clouds and a cluster on one machine: rehearsal, quickstart and end-to-end tests."""
