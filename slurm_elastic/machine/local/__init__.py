"""Machines of provider local: slurmd processes of this host, kept by a small agent that runs as
root.

``agent`` serves requests, ``driver`` starts and stops, ``records`` remembers, ``wire`` has the
messages, ``listening`` the socket and who may use it.
"""
