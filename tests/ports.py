"""Ports for daemons of tests, below those that the kernel gives out to clients by itself.

A port that was free as a client's would be taken again before slurmd binds it, on a busy machine.
"""

from __future__ import annotations

import random
import socket

RANGE = range(10_000, 20_000)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, at random: tests run side by side."""
    found: list[int] = []
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
