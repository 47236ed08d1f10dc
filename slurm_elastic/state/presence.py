"""What each of two heads tells in the directory that both see: that its service runs, and by which
configuration.
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
"""Seconds after which a head has told nothing for too long."""


class Presence(Struct, frozen=True, kw_only=True):
    """``at`` is Unix time by the head's own clock; ``config`` a digest of its configuration;
    ``tunnel`` the public key of its hub, "" for none.
    """

    host: str
    at: float
    config: str
    version: str
    tunnel: str = ""


class Seen(Struct, frozen=True, kw_only=True):
    """``ahead``: seconds by which the head's clock is ahead of the one of the directory's disk."""

    presence: Presence
    ahead: float


def tell(directory: Path, service: str, one: Presence) -> None:
    """Leave it there; OSError passes."""
    writing.replace(directory / f"head-{one.host}.{service}", msgspec.json.encode(one))


def files(directory: Path, service: str) -> Sequence[Path]:
    """Where heads tell that this service of theirs runs; OSError where the directory is away."""
    return [
        directory / name
        for name in sorted(os.listdir(directory))
        if name.startswith("head-") and name.endswith(f".{service}")
    ]


def told(directory: Path, service: str) -> Mapping[str, Seen]:
    """What heads have told of that service, by host; what cannot be read is left out;
    OSError as above.
    """
    found: dict[str, Seen] = {}
    for path in files(directory, service):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            one = msgspec.json.decode(path.read_bytes(), type=Presence)
            found[one.host] = Seen(presence=one, ahead=one.at - path.stat().st_mtime)
    return found
