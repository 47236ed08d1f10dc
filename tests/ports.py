"""Ports for daemons of tests, below those that the kernel gives out to clients by itself.

A port that was free as a client's would be taken again before slurmd binds it, on a busy machine.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from itertools import islice
from pathlib import Path

RANGE = range(10_000, 20_000)
LAST = Path(tempfile.gettempdir()) / f"slurm-elastic-test-ports-{os.getuid()}"
"""Which one was given last: whoever got it may not have bound it yet, and tests run side by side."""


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, and that no other test is given soon."""
    with LAST.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        first = int(file.read() or RANGE[0]) + 1 - RANGE[0]
        turns = (RANGE[(first + n) % len(RANGE)] for n in range(len(RANGE)))
        found = list(islice(filter(_is_free, turns), count))
        file.truncate(0)
        file.write(str(found[-1]))
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
