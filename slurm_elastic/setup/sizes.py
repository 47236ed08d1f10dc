"""Which of a cloud's types hold a node of some size, and which size all clouds can have. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from msgspec import convert
from msgspec.structs import replace

from slurm_elastic.base.units import format_size
from slurm_elastic.config.found import Found
from slurm_elastic.config.requirements import KnownType, Requirements, Shape, lacks
from slurm_elastic.model.cluster import Location

Size = tuple[int, int]
"""Cpus, and memory in MiB."""


def told(size: Size) -> str:
    return f"{size[0]}x{format_size(size[1])}"


def node_of(one: Found, size: Size) -> Size:
    """The size of its nodes: that one, where a host of its has as much."""
    if not (one.sized and one.types):
        return size
    cpus, memory = max((known.cpus, known.memory) for known in one.types)
    return min(size[0], cpus), min(size[1], memory)


def missing(one: Found, size: Size) -> str:
    """Why its pool would have no type; empty where it has one, or where only its file has types."""
    if one.sized or not one.types or any(_holds(known, one, size) for known in one.types):
        return ""
    near = nearest(one, size)
    has = f"the nearest is {near.name}, {told((near.cpus, near.memory))}" if near else (
        "it tells no price of any"
    )  # fmt: skip
    return f"no type of {one.name} has {size[0]} cpus and {format_size(size[1])}; {has}"


def nearest(one: Found, size: Size) -> KnownType | None:
    """The type that has most of it, and of those the smallest."""

    def short(known: KnownType) -> tuple[float, int, int]:
        share = min(1, known.cpus / size[0]) * min(1, known.memory / size[1])
        return -share, known.cpus, known.memory

    return min((k for k in one.types if _holds(k, one, (1, 1))), key=short, default=None)


def fitting(clouds: Iterable[Found], size: Size) -> Size:
    """The size, or so much less of it that each cloud has it."""
    for one in clouds:
        near = nearest(one, size) if missing(one, size) else None
        if near is not None:
            size = min(size[0], near.cpus), min(size[1], near.memory)
        size = node_of(one, size)
    return size


def wanted(one: Found, size: Size) -> dict[str, object]:
    """Requirements that the cloud's types meet: under twice a node; of one architecture; and such
    as are for batch work.
    """
    cpus, _ = size
    ranges: tuple[dict[str, object], ...] = ({"cpus": f"{cpus}..{2 * cpus}"}, {})
    archs: tuple[dict[str, object], ...] = ({"arch": "x86_64"}, {})
    for narrowed, range_, arch in product(({**one.narrowed}, {}), ranges, archs):
        asked = {**range_, **arch, **narrowed, "most": 20}
        asking = convert(asked, Requirements)
        if any(_holds(known, one, size, asking) for known in one.types):
            return asked
    return {"most": 20}


_ANY = Requirements()


def _holds(known: KnownType, one: Found, size: Size, asking: Requirements = _ANY) -> bool:
    """On-premises machines without a price cost nothing."""
    free = known.price is None and one.location is Location.ON_PREMISES
    node = Shape(cpus=size[0], memory=size[1], gres={})
    return not lacks(replace(known, price=0.0) if free else known, asking, node)
