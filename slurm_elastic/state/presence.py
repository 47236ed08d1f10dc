"""Files in the shared directory in which each of two heads records that its service runs, and with
which configuration.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing

STALE = 60.0
"""Seconds without a new file after which a head counts as silent."""


class Presence(Struct, frozen=True, kw_only=True):
    """``at`` is Unix time by the head's own clock; ``config`` a digest of its configuration;
    ``tunnel`` the public key of its hub, "" for none. ``acts``: the service does its work, and does
    not only stand by. An earlier release did not write it, and its head counts as one that acts.
    ``secret``: a digest of Slurm's secret that this head brings to machines (``join.ssh``), "" if
    it brings none or cannot read it, None from an earlier release.
    """

    host: str
    at: float
    config: str
    version: str
    tunnel: str = ""
    acts: bool = True
    secret: str | None = None


class Seen(Struct, frozen=True, kw_only=True):
    """``ahead``: seconds by which the head's clock is ahead of the shared directory's clock."""

    presence: Presence
    ahead: float


def write_presence(directory: Path, service: str, presence: Presence) -> None:
    """Write the file of a head; OSError passes through."""
    writing.replace(directory / f"head-{presence.host}.{service}", msgspec.json.encode(presence))


def files(directory: Path, service: str) -> Sequence[Path]:
    """The files of this service on all heads. Raises OSError if the directory is unavailable."""
    return [
        directory / name
        for name in sorted(os.listdir(directory))
        if name.startswith("head-") and name.endswith(f".{service}")
    ]


def acting_files(directory: Path, service: str) -> Sequence[Path]:
    """The files of the heads on which the service acts. A file that cannot be read is among them,
    as its head may act. Raises OSError if the directory is unavailable.
    """
    return [path for path in files(directory, service) if _acts(path)]


def _acts(path: Path) -> bool:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=Presence).acts
    return True


def read_presences(directory: Path, service: str) -> Mapping[str, Seen]:
    """The readable presences of that service, by host. Raises OSError if the directory is
    unavailable.
    """
    seen_by_host: dict[str, Seen] = {}
    for path in files(directory, service):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            presence = msgspec.json.decode(path.read_bytes(), type=Presence)
            seen_by_host[presence.host] = Seen(
                presence=presence, ahead=presence.at - path.stat().st_mtime
            )
    return seen_by_host
