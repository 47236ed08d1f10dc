"""Fills types and prices that a configuration leaves out (``catalogue: true``) from the catalogues
of its clouds.

slurm-elasticd asks the clouds and keeps their answers in the state directory
(``providers.catalogues``). A type that the file describes wins over the catalogue's.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.clouds import CloudSettings, InstanceType, typed
from slurm_elastic.config.requirements import KnownType, Requirements, Shape, lacks
from slurm_elastic.model.cluster import Location

FRESH = 86400.0  # seconds after which a cloud is asked again
OLDEST = 30 * 86400.0
MOST_TYPES = 5000
_MOST_BYTES = 8 << 20
_DEAREST = 10_000.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Catalogue(Struct, frozen=True, kw_only=True):
    """A cloud's answer, and the Unix time ``at`` which it gave it."""

    cloud: str
    at: float
    types: tuple[KnownType, ...]
    version: int = 1


def path_of(config: Config, cloud: CloudSettings) -> Path:
    """The file that keeps a cloud's catalogue."""
    return config.state / "catalogue" / f"{cloud.name}.json"


def sound(types: Iterable[KnownType]) -> tuple[KnownType, ...]:
    """The types whose values make sense, each name once. A cloud's answer is not trusted."""
    found: dict[str, KnownType] = {}
    for one in types:
        price = one.price is None or (math.isfinite(one.price) and 0 <= one.price <= _DEAREST)
        size = 0 < one.cpus <= 65533 and 0 < one.memory <= 1 << 30
        if price and size and _NAME.fullmatch(one.name) and len(found) < MOST_TYPES:
            found.setdefault(one.name, one)
    return tuple(found.values())


def kept(path: Path) -> Catalogue | None:
    """The catalogue in a file; None if there is none that can be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
        found = msgspec.json.decode(text[:_MOST_BYTES], type=Catalogue)
    except (OSError, msgspec.MsgspecError):
        return None
    return replace(found, types=sound(found.types)) if found.version == 1 else None


def filled(config: Config, found: Mapping[str, Catalogue], now: float) -> Config:
    """The configuration with these catalogues' types, and those that meet pools' requirements."""
    known = {c.name: known_of(c, found.get(c.name), now) for c in config.clouds}
    pools = tuple(_resolved(pool, known[pool.cloud]) for pool in config.pools)
    clouds = tuple(_with_types(c, known[c.name], pools) for c in config.clouds)
    return replace(config, clouds=clouds, pools=pools)


def from_state(config: Config, now: float) -> Config:
    """The configuration, filled from the catalogues that the state directory keeps."""
    asked = [cloud for cloud in config.clouds if cloud.catalogued]
    flexible = any(isinstance(pool.instance_types, Requirements) for pool in config.pools)
    if not asked and not flexible:
        return config
    files = {cloud.name: kept(path_of(config, cloud)) for cloud in asked}
    return filled(config, {name: one for name, one in files.items() if one is not None}, now)


def matching(pool: PoolSettings, known: Mapping[str, KnownType]) -> tuple[str, ...]:
    """The types that meet a pool's requirements: the cheapest ones, ``most`` of them."""
    wanted = pool.instance_types
    if not isinstance(wanted, Requirements):
        return wanted
    node = Shape(cpus=pool.cpus, memory=pool.slurm_memory, gres=pool.gres)
    fitting = [one for one in known.values() if not lacks(one, wanted, node)]
    fitting.sort(key=lambda one: (one.price or 0.0, one.name))
    return tuple(one.name for one in fitting[: wanted.most])


def known_of(cloud: CloudSettings, catalogue: Catalogue | None, now: float) -> dict[str, KnownType]:
    """All types of a cloud, from the catalogue and from the file."""
    found: dict[str, KnownType] = {}
    for one in catalogue.types if catalogue is not None and cloud.catalogued else ():
        stale = now - (catalogue.at if catalogue else 0.0) > OLDEST
        public = cloud.location is Location.PUBLIC
        # Nothing is bought by a public cloud's price that is older than OLDEST.
        price = None if public and (stale or not one.price) else one.price
        found[one.name] = replace(one, price=price if public else price or 0.0)
    for name, kind in cloud.shapes.items():
        own, told = typed(name, kind), found.get(name)
        if told is not None:
            own = replace(own, arch=told.arch, generation=told.generation)
        found[name] = own
    return found


def _resolved(pool: PoolSettings, known: Mapping[str, KnownType]) -> PoolSettings:
    names = matching(pool, known)
    return pool if names == pool.instance_types else replace(pool, instance_types=names)


def _with_types(
    cloud: CloudSettings, known: Mapping[str, KnownType], pools: Iterable[PoolSettings]
) -> CloudSettings:
    """The cloud with the types that its pools name. A type without a price cannot be bought."""
    if not cloud.catalogued:
        return cloud
    wanted = {name for pool in pools if pool.cloud == cloud.name for name in pool.type_names}
    types: dict[str, InstanceType] = dict(cloud.shapes)
    for name in sorted(wanted - types.keys()):
        one = known.get(name)
        if one is not None and one.price is not None:
            types[name] = cloud.type_class(
                cpus=one.cpus, memory=one.memory, price=one.price, gres=dict(one.gres), **one.own
            )
    return replace(cloud, types=types) if types != cloud.shapes else cloud
