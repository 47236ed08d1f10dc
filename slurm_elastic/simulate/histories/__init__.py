"""Reads the job histories of sites and archives."""
