"""Containers on Docker engines, by the docker SDK."""
