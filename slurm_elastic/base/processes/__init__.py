"""Threads, processes, sockets and signals."""
