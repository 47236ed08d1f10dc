"""The keys of auth/slurm: do machines get the right secret, and does a key end that is in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Finding, Level
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf import authentication, keyset
from slurm_elastic.slurm.conf.keyset import Key, KeySet

SOON = 7 * 86400.0
"""Seconds before its end from which a key is worth a word."""
FILE = "slurm.jwks"


def examine(config: Config, now: float) -> Iterator[Finding]:
    """At a site with another AuthType only a wrong secret of machines; nothing about keys that are
    another user's to read.
    """
    try:
        site = siteconf.read(config.slurm.conf)
    except (ConfigError, OSError):
        return
    if wrong := authentication.wrong_secret(config, site):
        yield Finding(
            what="join.ssh", level=Level.WRONG, found=wrong,
            expected="the secret by which slurmctld knows its nodes",
            advice="give join.ssh the other one (docs/keys.md)",
        )  # fmt: skip
    if authentication.kind(site) != authentication.SLURM:
        return
    path = site.directory / FILE
    try:
        keys = keyset.read(path)
    except FileNotFoundError:
        yield Finding(what=FILE, level=Level.NOTE, found="not there: slurm.key never expires")
    except PermissionError:
        return
    except (OSError, ConfigError) as error:
        yield _unusable(path, error)
    else:
        yield from _keys(config, keys, now)


def _unusable(path: Path, error: Exception) -> Finding:
    return Finding(
        what=FILE, level=Level.WRONG, found=f"{path} cannot be used: {error}",
        expected='JSON: {"keys": [{"kid": ..., "exp": ...}]}',
    )  # fmt: skip


def _keys(config: Config, keys: KeySet, now: float) -> Iterator[Finding]:
    clouds = [cloud.name for cloud in config.clouds if cloud.by_user_data]
    ending = [key for key in _used(keys, clouds) if key.exp and key.exp - now < SOON]
    for key in ending:
        yield _told(key, now)
    if without := sorted(set(clouds) - {key.cloud for key in keys.keys}):
        yield Finding(
            what=FILE, level=Level.NOTE,
            found=f"no key of its own: {', '.join(without)}",
            expected="a key for each cloud, so that its machines can be told apart",
            advice="slurm-elastic key rotate",
        )  # fmt: skip
    elif not ending:
        found = f"{len(keys.keys)} key(s), none in use ends in a week"
        yield Finding(what=FILE, level=Level.OK, found=found)


def _used(keys: KeySet, clouds: list[str]) -> list[Key]:
    """The keys that slurmctld and machines sign with, and the site's own; not those that a rotation
    has left to end.
    """
    used = {keys.default.kid}
    for cloud in clouds:
        own = [key.kid for key in keys.keys if key.cloud == cloud]
        used |= set(own[-1:])
    return [key for key in keys.keys if key.kid in used or not key.ours]


def _told(key: Key, now: float) -> Finding:
    left = (key.exp or 0) - now
    return Finding(
        what=f"{FILE}: key {key.kid}",
        level=Level.WRONG if left <= 0 else Level.NOTE,
        found="it has expired" if left <= 0 else f"it expires in {left / 86400:.1f} days",
        expected="keys that hold for longer than a week",
        advice="slurm-elastic key rotate: nodes whose key has ended are lost (docs/keys.md)",
    )
