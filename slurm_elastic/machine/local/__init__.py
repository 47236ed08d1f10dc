"""Machines of provider local: slurmd processes of this host, kept by a small root agent.

``agent`` serves (and runs as root), ``driver`` starts and stops, ``records`` remembers, ``wire`` is
what is said over the socket, ``listening`` its path and who may speak.
"""
