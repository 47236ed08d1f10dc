"""Who beats in the ledger, and whether the process that beat is still there."""

from __future__ import annotations

import os

DAEMON = "slurm-elasticd"
"""The name that slurm-elasticd beats under."""


def process_exists(pid: int) -> bool:
    """Whether a process of this host has that number, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
