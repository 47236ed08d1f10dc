"""Who beats in the ledger, and whether the process that beat is still there."""

from __future__ import annotations

import os

DAEMON = "slurm-elasticd"
"""The name that slurm-elasticd beats under."""


def alive(beat: tuple[float, int] | None, found: bool | None, now: float, stale: float) -> bool:
    """Whether a service serves: its ``beat`` (Unix time, pid) is at most ``stale`` seconds old, and
    its process is not known to be gone (``found``; None: not looked).
    """
    return beat is not None and max(now - beat[0], 0.0) <= stale and found is not False


def process_exists(pid: int) -> bool:
    """Whether a process of this host has that number, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
