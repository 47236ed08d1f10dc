"""The host itself, by slurm-elastic-local."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location

SOCKET = Path("/run/slurm-elastic/local.sock")


def found(place: SearchPlace) -> Iterator[Found]:
    """Always there; usable while its agent runs."""
    del place
    runs = SOCKET.exists()
    yield Found(
        name="onprem", provider="local", location=Location.ON_PREMISES, usable=runs,
        what=f"this host, {os.cpu_count() or 1} cpus",
        # Without a cloud to serve, it does not start.
        enable="" if runs else "a cloud of provider local in this file, then "
        "systemctl enable --now slurm-elastic-local",
        keys={"capacity": 1},
    )  # fmt: skip
