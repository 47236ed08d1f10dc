"""Ports for daemons of tests, below those that the kernel gives out to clients by itself.

A port that was free as a client's would be taken again before slurmd binds it, on a busy machine;
so would one that nobody but another test has found free.
"""

from __future__ import annotations

import atexit
import random
import socket

RANGE = range(10_000, 20_000)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, nor was given by this: sites that come up at once listen later."""
    found: list[int] = []
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        if len(found) == count:
            break
        if _is_free(port) and _claimed(port):
            found.append(port)
    return found


def _claimed(port: int) -> bool:
    """Whether this process now has the kernel's name for the port, which it keeps until it ends."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0slurm-elastic-test-port-{port}")
    except OSError:
        claim.close()
        return False
    atexit.register(claim.close)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
