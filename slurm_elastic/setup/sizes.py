"""Selects types of a cloud that hold a node, and a node's size that all clouds can have. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from msgspec import convert
from msgspec.structs import replace

from slurm_elastic.base.units import format_size
from slurm_elastic.config.found import Found
from slurm_elastic.config.sections.requirements import KnownType, Requirements, Shape, lacks
from slurm_elastic.model.cluster import Location

Size = tuple[int, int]
"""CPUs, and memory in MiB."""


def format_shape(size: Size) -> str:
    return f"{size[0]}x{format_size(size[1])}"


def node_of(cloud: Found, size: Size) -> Size:
    """Return the size of the cloud's nodes: ``size``, or less if no host of the cloud has as
    much.
    """
    if not (cloud.types and (cloud.sized or cloud.names_types)):
        return size
    cpus, memory = max((type_.cpus, type_.memory) for type_ in cloud.types)
    return min(size[0], cpus), min(size[1], memory)


def why_missing(cloud: Found, size: Size) -> str:
    """Return why the cloud's pool would have no type. "" if it has one, or if the configuration
    file lists the cloud's types.
    """
    if (
        cloud.sized
        or cloud.names_types
        or not cloud.types
        or any(_holds_node(type_, cloud, size) for type_ in cloud.types)
    ):
        return ""
    near = nearest_type(cloud, size)
    alternative = (
        f"the nearest is {near.name}, {format_shape((near.cpus, near.memory))}"
        if near
        else "none of its types has a price"
    )
    return f"no type of {cloud.name} has {size[0]} cpus and {format_size(size[1])}; {alternative}"


def nearest_type(cloud: Found, size: Size) -> KnownType | None:
    """Return the type with the largest share of ``size``; the smallest of several."""

    def shortfall_key(type_: KnownType) -> tuple[float, int, int]:
        share = min(1, type_.cpus / size[0]) * min(1, type_.memory / size[1])
        return -share, type_.cpus, type_.memory

    return min(
        (candidate for candidate in cloud.types if _holds_node(candidate, cloud, (1, 1))),
        key=shortfall_key,
        default=None,
    )


def common_size(clouds: Iterable[Found], size: Size) -> Size:
    """Return ``size``, reduced until each cloud has a type or a host for it."""
    for cloud in clouds:
        nearest_match = nearest_type(cloud, size) if why_missing(cloud, size) else None
        if nearest_match is not None:
            size = min(size[0], nearest_match.cpus), min(size[1], nearest_match.memory)
        size = node_of(cloud, size)
    return size


def type_requirements(cloud: Found, size: Size) -> dict[str, object]:
    """Return requirements for the pool's types, as narrow as the cloud's types permit.

    The narrowest ask for at most twice the CPUs of a node, x86_64, and the cloud's own restriction
    to types for batch work (``narrowed``).
    """
    cpus, _ = size
    ranges: tuple[dict[str, object], ...] = ({"cpus": f"{cpus}..{2 * cpus}"}, {})
    archs: tuple[dict[str, object], ...] = ({"arch": "x86_64"}, {})
    for narrowed, range_, arch in product(({**cloud.narrowed}, {}), ranges, archs):
        requirements = {**range_, **arch, **narrowed, "max_types": 20}
        typed_requirements = convert(requirements, Requirements)
        # The types behind a skeleton are not known yet.
        if cloud.todos or any(
            _holds_node(type_, cloud, size, typed_requirements) for type_ in cloud.types
        ):
            return requirements
    return {"max_types": 20}


_NO_REQUIREMENTS = Requirements()


def _holds_node(
    type_: KnownType, cloud: Found, size: Size, requirements: Requirements = _NO_REQUIREMENTS
) -> bool:
    """Return True if the type holds a node of that size. An on-premises type without a price costs
    nothing.
    """
    is_free = type_.price is None and cloud.location is Location.ON_PREMISES
    node = Shape(cpus=size[0], memory=size[1], gres={})
    return not lacks(replace(type_, price=0.0) if is_free else type_, requirements, node)
