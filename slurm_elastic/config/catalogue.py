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
from slurm_elastic.config.machine_prices import paid_price
from slurm_elastic.config.policy_choice import with_choice
from slurm_elastic.config.sections.requirements import KnownType, Requirements, Shape, lacks
from slurm_elastic.model.cluster import Location, Market

CATALOGUE_TTL_S = 86400.0  # seconds after which we ask a cloud again
OLDEST = 30 * 86400.0
MOST_TYPES = 5000
_MAX_BYTES = 8 << 20
_MAX_PRICE_PER_HOUR = 10_000.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Catalogue(Struct, frozen=True, kw_only=True):
    """A cloud's answer. ``at``: the Unix time of the answer."""

    cloud: str
    at: float
    types: tuple[KnownType, ...]
    version: int = 1


def path_of(config: Config, cloud: CloudSettings) -> Path:
    """The file with a cloud's catalogue."""
    return config.state / "catalogue" / f"{cloud.name}.json"


def plausible_types(types: Iterable[KnownType]) -> tuple[KnownType, ...]:
    """The types with meaningful values, each name once. A cloud's answer is not trusted."""
    types_by_name: dict[str, KnownType] = {}
    for machine_type in types:
        has_price = machine_type.price is None or (
            math.isfinite(machine_type.price) and 0 <= machine_type.price <= _MAX_PRICE_PER_HOUR
        )
        has_size = 0 < machine_type.cpus <= 65533 and 0 < machine_type.memory <= 1 << 30
        if (
            has_price
            and has_size
            and _NAME.fullmatch(machine_type.name)
            and len(types_by_name) < MOST_TYPES
        ):
            types_by_name.setdefault(machine_type.name, machine_type)
    return tuple(types_by_name.values())


def kept(path: Path) -> Catalogue | None:
    """The catalogue in a file. None if there is no readable one."""
    try:
        # SlurmUser owns the directory: root must not follow a link there, or wait at a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
        catalogue = msgspec.json.decode(text[:_MAX_BYTES], type=Catalogue)
    except (OSError, msgspec.MsgspecError):
        return None
    if catalogue.version != 1:
        return None
    return replace(catalogue, types=plausible_types(catalogue.types))


def filled(config: Config, catalogues: Mapping[str, Catalogue], now: float) -> Config:
    """The configuration with these catalogues' types, and with the types that meet requirements."""
    known_types = {c.name: known_of(c, catalogues.get(c.name), now) for c in config.clouds}
    pools = tuple(
        _resolved(config.cloud(pool.cloud), pool, known_types[pool.cloud]) for pool in config.pools
    )
    clouds = tuple(_with_types(c, known_types[c.name], pools) for c in config.clouds)
    return replace(config, clouds=clouds, pools=pools)


def from_state(config: Config, now: float) -> Config:
    """The configuration, filled from the catalogues in the state directory, with the policy that
    slurm-elasticd has chosen.
    """
    config = with_choice(config)
    catalogued = [cloud for cloud in config.clouds if cloud.catalogued]
    flexible = any(isinstance(pool.instance_types, Requirements) for pool in config.pools)
    if not catalogued and not flexible:
        return config
    files = {cloud.name: kept(path_of(config, cloud)) for cloud in catalogued}
    return filled(
        config, {name: catalogue for name, catalogue in files.items() if catalogue is not None}, now
    )


def matching(
    cloud: CloudSettings, pool: PoolSettings, known_types: Mapping[str, KnownType]
) -> tuple[str, ...]:
    """The types that meet a pool's requirements: the cheapest, at most ``max_types`` of them."""
    requirements = pool.instance_types
    if not isinstance(requirements, Requirements):
        return requirements
    node = Shape(cpus=pool.cpus, memory=pool.slurm_memory, gres=pool.gres)
    fitting = [
        machine_type
        for machine_type in known_types.values()
        if not lacks(machine_type, requirements, node)
    ]

    def price_and_name(machine_type: KnownType) -> tuple[float, str]:
        published, name = machine_type.price or 0.0, machine_type.name
        return paid_price(cloud, pool.machine, name, Market.ON_DEMAND, published), name

    fitting.sort(key=price_and_name)
    return tuple(machine_type.name for machine_type in fitting[: requirements.max_types])


def known_of(cloud: CloudSettings, catalogue: Catalogue | None, now: float) -> dict[str, KnownType]:
    """All types of a cloud, from the catalogue and from the file."""
    known_types: dict[str, KnownType] = {}
    for machine_type in catalogue.types if catalogue is not None and cloud.catalogued else ():
        is_stale = now - (catalogue.at if catalogue else 0.0) > OLDEST
        is_public = cloud.location is Location.PUBLIC
        # A price older than OLDEST must not decide about buying in a public cloud.
        price = None if is_public and (is_stale or not machine_type.price) else machine_type.price
        known_types[machine_type.name] = replace(
            machine_type, price=price if is_public else price or 0.0
        )
    for name, kind in cloud.shapes.items():
        described, listed = typed(name, kind), known_types.get(name)
        if listed is not None:
            described = replace(described, arch=listed.arch, generation=listed.generation)
        known_types[name] = described
    return known_types


def _resolved(
    cloud: CloudSettings, pool: PoolSettings, known_types: Mapping[str, KnownType]
) -> PoolSettings:
    names = matching(cloud, pool, known_types)
    return pool if names == pool.instance_types else replace(pool, instance_types=names)


def _with_types(
    cloud: CloudSettings, known_types: Mapping[str, KnownType], pools: Iterable[PoolSettings]
) -> CloudSettings:
    """The cloud with the types that its pools name. A type without a price cannot be bought."""
    if not cloud.catalogued:
        return cloud
    named_types = {name for pool in pools if pool.cloud == cloud.name for name in pool.type_names}
    types: dict[str, InstanceType] = dict(cloud.shapes)
    for name in sorted(named_types - types.keys()):
        known_type = known_types.get(name)
        if known_type is not None and known_type.price is not None:
            types[name] = cloud.type_class(
                cpus=known_type.cpus,
                memory=known_type.memory,
                price=known_type.price,
                gres=dict(known_type.gres),
                **known_type.own,
            )
    return replace(cloud, types=types) if types != cloud.shapes else cloud
