"""A Docker engine on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config.found import Found, Place
from slurm_elastic.model.cluster import Location

SOCKET = Path("/var/run/docker.sock")


def found(place: Place) -> Iterator[Found]:
    """Its socket is there; which image and network are a node's, nobody can tell."""
    del place
    if SOCKET.exists():
        reach = "" if os.access(SOCKET, os.W_OK) else "put SlurmUser into the group docker, and "
        yield Found(
            name="boxes", provider="docker", location=Location.ON_PREMISES, usable=False,
            what=str(SOCKET), enable=f"{reach}make an image and a network (docs/docker.md)",
        )  # fmt: skip
