"""Finds this host itself, through slurm-elastic-local."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location

SOCKET = Path("/run/slurm-elastic/local.sock")


def found(place: SearchPlace) -> Iterator[Found]:
    """The host itself. It is always there, and usable while its agent runs."""
    del place
    is_running = SOCKET.exists()
    yield Found(
        name="onprem", provider="local", location=Location.ON_PREMISES, usable=is_running,
        what=f"this host, {os.cpu_count() or 1} cpus",
        # The agent does not start without a cloud to serve.
        enable="" if is_running else "a cloud of provider local in this file, then "
        "systemctl enable --now slurm-elastic-local",
        keys={"capacity": 1},
    )  # fmt: skip
