"""The keys of auth/slurm: does one expire, as ``exp`` in slurm.jwks says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.config import Config
from slurm_elastic.errors import ConfigError
from slurm_elastic.model import Finding, Level
from slurm_elastic.slurm import siteconf

SOON = 7 * 86400.0
"""Seconds before its end from which a key is worth a word."""
FILE = "slurm.jwks"
_MOST = 1 << 20


class _Key(Struct):
    kid: str = "(without kid)"
    exp: float | None = None


class _Keys(Struct):
    keys: list[_Key]


def examine(config: Config, now: float) -> Iterator[Finding]:
    """Nothing of a site with another AuthType, or whose keys are another user's to read."""
    try:
        site = siteconf.read(config.slurm.conf)
    except (ConfigError, OSError):
        return
    kind = site.option("AuthType")
    path = site.directory / FILE
    if kind is None or kind.value != "auth/slurm":
        return
    try:
        found = _read(path)
    except FileNotFoundError:
        yield Finding(what=FILE, level=Level.NOTE, found="not there: slurm.key never expires")
        return
    except PermissionError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        yield Finding(
            what=FILE, level=Level.WRONG, found=f"{path} cannot be used: {error}",
            expected='JSON: {"keys": [{"kid": ..., "exp": ...}]}',
        )  # fmt: skip
        return
    ending = [key for key in found if key.exp is not None and key.exp - now < SOON]
    for key in ending:
        yield _told(key, now)
    if not ending:
        yield Finding(what=FILE, level=Level.OK, found=f"{len(found)} key(s), none ends in a week")


def _read(path: Path) -> list[_Key]:
    with path.open("rb") as file:
        return msgspec.json.decode(file.read(_MOST), type=_Keys).keys


def _told(key: _Key, now: float) -> Finding:
    left = (key.exp or 0.0) - now
    return Finding(
        what=f"{FILE}: key {key.kid}",
        level=Level.WRONG if left <= 0 else Level.NOTE,
        found="it has expired" if left <= 0 else f"it expires in {left / 86400:.1f} days",
        expected="keys that hold for longer than a week",
        advice="make its successor, put it on head and machines, then take it out (docs/keys.md)",
    )
