"""Machines of provider local: slurmd processes on this host, managed by a small agent as root.

``agent`` serves requests, ``driver`` starts and stops slurmd, ``records`` stores the machines,
``wire`` defines the messages, ``listening`` serves the socket and checks who connects.
"""
