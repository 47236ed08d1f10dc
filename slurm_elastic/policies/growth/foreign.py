"""Finds the policies of a group of pools that are code of other packages. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from slurm_elastic.policies.growth.capacity import OwnGrowth
from slurm_elastic.policies.growth.release import OwnRelease
from slurm_elastic.policies.growth.scaling import GroupSnapshot


def is_ours(now: GroupSnapshot) -> bool:
    """Whether the decision calls no code of another package."""
    return not any(_names(now))


def names(now: GroupSnapshot) -> str:
    """The policies of other packages that decide for the group, for a message."""
    return " or ".join(dict.fromkeys(_names(now)))


def without_releases(now: GroupSnapshot) -> GroupSnapshot:
    """Return the snapshot with Slurm's SuspendTime in place of other packages' release policies."""
    pools = tuple(
        replace(pool, rules=replace(pool.rules, release=None))
        if isinstance(pool.rules.release, OwnRelease)
        else pool
        for pool in now.pools
    )
    return replace(now, pools=pools)


def _names(now: GroupSnapshot) -> Iterator[str]:
    if isinstance(now.growth, OwnGrowth):
        yield f"growth policy {now.growth.__struct_config__.tag}"
    for pool in now.pools:
        if isinstance(pool.rules.release, OwnRelease):
            yield f"release policy {pool.rules.release.__struct_config__.tag}"
