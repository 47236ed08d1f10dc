"""Decides who pays for what, and who may spend no more."""
