"""Checks that the parts of a configuration fit together: pools, their clouds, times. Pure.

A setting that only keeps a public cloud from being used (no allow list, no spending cap) is no
mistake: see ``config.blocked_clouds``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.base.units import format_duration
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import CloudSettings, typed
from slurm_elastic.config.decode import describe, nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.access import effective_who
from slurm_elastic.config.sections.devices import FORM, counted
from slurm_elastic.config.sections.requirements import (
    RANGE_FORM,
    RANGES,
    Requirements,
    Shape,
    lacks,
    parse_range,
)
from slurm_elastic.model.cluster import Market

_RESERVED_MIB = 256  # PoolSettings.slurm_memory leaves at least this much to the system


def _pool_size(draft: Draft) -> None:
    for i, pool in draft.pools.items():
        count = len(draft.nodes.get(i, ()))
        if count and pool.max_nodes is not None and pool.max_nodes > count:
            expected = f"at most {count}, the number of nodes of the pool"
            draft.problems.add(("pools", i, "max_nodes"), describe(pool.max_nodes), expected)
        if pool.real_memory is not None and pool.real_memory > pool.memory:
            expected = f"at most {pool.memory} MiB, the memory of the pool's machines"
            draft.problems.add(("pools", i, "real_memory"), f"{pool.real_memory} MiB", expected)
        if pool.real_memory is None and pool.memory <= _RESERVED_MIB:
            hint = f"{pool.memory}G"
            expected = f"more than {_RESERVED_MIB} MiB, which are kept back for kernel and firmware"
            draft.problems.add(("pools", i, "memory"), f"{pool.memory} MiB", expected, hint)


def _pool_market(draft: Draft) -> None:
    for i, pool, cloud in draft.pools_with_clouds:
        for n, market in enumerate(pool.markets):
            if market in cloud.markets:
                continue
            sold = ", ".join(m for m in Market if m in cloud.markets)
            expected = f"a market of cloud {cloud.name}: one of {sold}"
            draft.problems.add(("pools", i, "markets", n), shown(market), expected)


def _cloud_types(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if cloud.needs_types and not cloud.shapes and not cloud.catalogued:
            expected = "a mapping with at least 1 key, or catalogue: true"
            draft.problems.add(("clouds", i, "types"), "no types of machines", expected)


def _pool_types(draft: Draft) -> None:
    for i, pool, cloud in draft.pools_with_clouds:
        path = ("pools", i, "instance_types")
        if isinstance(pool.instance_types, Requirements):
            _requirements(draft, path, pool, cloud, pool.instance_types)
        elif cloud.needs_types and not pool.instance_types:
            expected = f"at least one of the types of cloud {cloud.name}: {', '.join(cloud.shapes)}"
            draft.problems.add(path, "no instance types", expected)
        for n, name in enumerate(pool.type_names):
            if name in cloud.shapes:
                _type_fits(draft, (*path, n), pool, cloud, name)
            elif cloud.shapes and not cloud.catalogued:
                types = cloud.shapes
                expected = f"a type of cloud {cloud.name}: one of {', '.join(types)}"
                draft.problems.add((*path, n), shown(name), expected, nearest(name, types))


def _requirements(
    draft: Draft, path: KeyPath, pool: PoolSettings, cloud: CloudSettings, required: Requirements
) -> None:
    wrong = False
    for key, number in RANGES.items():
        text = getattr(required, key)
        try:
            if text is not None:
                parse_range(text, number)
        except ValueError:
            wrong = True
            draft.problems.add((*path, key), shown(text), RANGE_FORM)
    if not cloud.catalogued and cloud.shapes and not wrong:
        types = [typed(name, kind) for name, kind in cloud.shapes.items()]
        node = Shape(cpus=pool.cpus, memory=pool.slurm_memory, gres=pool.gres)
        if all(lacks(machine_type, required, node) for machine_type in types):
            expected = f"requirements that a type of cloud {cloud.name} meets, or catalogue: true"
            draft.problems.add(path, "requirements that no type meets", expected)


def _type_fits(
    draft: Draft, path: KeyPath, pool: PoolSettings, cloud: CloudSettings, name: str
) -> None:
    kind = cloud.shapes[name]
    offered = {"cpus": kind.cpus, "MiB of memory": kind.memory, **kind.gres}
    needed = {"cpus": pool.cpus, "MiB of memory": pool.slurm_memory, **pool.gres}
    for resource, count in needed.items():
        if offered.get(resource, 0) < count:
            actual = f"{shown(name)} with {offered.get(resource, 0)} {resource}"
            draft.problems.add(path, actual, f"at least the {count} {resource} of the pool's nodes")


def _pool_share(draft: Draft) -> None:
    """Check that the pools of one partition have the same ``share``, which Slurm has only as an
    option of partitions.
    """
    pool_by_cloud: dict[str, PoolSettings] = {}
    for i, pool in draft.pools.items():
        other_pool = pool_by_cloud.setdefault(pool.cloud, pool)
        if pool.share != other_pool.share:
            actual = "no share" if pool.share is None else shown(pool.share)
            expected = (
                f"{other_pool.share or 'none'}, as pool {other_pool.name}: both are in the"
                f" partition of cloud {pool.cloud}"
            )
            draft.problems.add(("pools", i, "share"), actual, expected)


def _pool_devices(draft: Draft) -> None:
    """Check that gres.conf will name as many devices as the nodes have."""
    for i, pool in draft.pools.items():
        for name, entries in pool.devices.items():
            path: KeyPath = ("pools", i, "devices", name)
            if name not in pool.gres:
                expected = f"a name of the pool's gres: one of {', '.join(pool.gres) or 'none'}"
                draft.problems.add(path, shown(name), expected, nearest(name, pool.gres))
            elif (count := _devices_of(draft, path, entries)) not in (None, pool.gres[name]):
                draft.problems.add(path, f"{count} devices", f"{pool.gres[name]}, as its gres says")


def _devices_of(draft: Draft, path: KeyPath, entries: Sequence[str]) -> int | None:
    """How many devices the entries name. None if an entry cannot be read."""
    counts: list[int] = []
    for n, entry in enumerate(entries):
        try:
            counts.append(counted(entry))
        except ValueError:
            draft.problems.add((*path, n), shown(entry), FORM)
    return sum(counts) if len(counts) == len(entries) else None


def _pool_zones(draft: Draft) -> None:
    for i, pool, cloud in draft.pools_with_clouds:
        # A pool's own subnets are checked by the cloud's kind.
        zones = () if pool.machine.subnets else cloud.known_zones
        for n, zone in enumerate(pool.zones):
            if zones and zone not in zones:
                expected = f"a zone of cloud {cloud.name}: one of {', '.join(zones)}"
                hint = nearest(zone, zones)
                draft.problems.add(("pools", i, "zones", n), shown(zone), expected, hint)


def _ports(draft: Draft) -> None:
    """Check the ports of pools with ports of their own. Such pools may share a host, so no two
    nodes may have the same port.
    """
    used_ports: list[tuple[int, range]] = []
    for i, pool in draft.pools.items():
        count = len(draft.nodes.get(i, ()))
        if pool.slurmd_port is None or not count:
            continue
        ports = range(pool.slurmd_port, pool.slurmd_port + count)
        path = ("pools", i, "slurmd_port")
        actual = f"{ports[0]} to {ports[-1]} for {count} nodes"
        if ports[-1] > 65535:
            draft.problems.add(
                path, actual, f"at most {65536 - count}, so that the last fits in 65535"
            )
        for other, other_ports in used_ports:
            if ports[0] <= other_ports[-1] and other_ports[0] <= ports[-1]:
                owner = f"pools[{other}] ({draft.pools[other].name})"
                expected = f"no port of {owner}, which has {other_ports[0]} to {other_ports[-1]}"
                draft.problems.add(path, actual, expected)
        used_ports.append((i, ports))


def _timings(draft: Draft) -> None:
    _at_least(draft, "max_cooldown", "capacity_cooldown")
    _at_least(draft, "max_cooldown", "quota_cooldown")
    _at_least(draft, "daemon_timeout", "reconcile_interval")
    for i, pool, cloud in draft.pools_with_clouds:
        longest = cloud.resume_timeout or draft.timing("resume_timeout")
        if pool.max_age is not None and longest is not None and pool.max_age <= longest:
            expected = f"more than {format_duration(longest)}, the resume_timeout of its cloud"
            draft.problems.add(
                ("pools", i, "max_age"), str(format_duration(pool.max_age)), expected
            )


def _booting(draft: Draft) -> None:
    for i, pool, cloud in draft.pools_with_clouds:
        if pool.max_booting and cloud.max_booting and pool.max_booting > cloud.max_booting:
            expected = f"at most {cloud.max_booting}, the max_booting of cloud {cloud.name}"
            draft.problems.add(("pools", i, "max_booting"), describe(pool.max_booting), expected)


def _on_demand_nodes(draft: Draft) -> None:
    for i, pool, _ in draft.pools_with_clouds:
        place, count = ("pools", i, "on_demand_nodes"), pool.on_demand_nodes
        total = _count_nodes(pool.nodes)
        if count and not {Market.SPOT, Market.ON_DEMAND} <= {*pool.markets}:
            draft.problems.add(place, str(count), "0 without markets: [spot, on-demand]")
        elif total is not None and count > total:
            draft.problems.add(place, str(count), f"at most {total}, the pool's nodes")


def _count_nodes(nodes: str) -> int | None:
    """Return the number of nodes; None for a wrong hostlist, which is reported at its own key."""
    try:
        return len(expand(nodes))
    except HostlistError:
        return None


def _at_least(draft: Draft, key: str, floor: str) -> None:
    value, least = draft.timing(key), draft.timing(floor)
    if value is not None and least is not None and value < least:
        expected = f"at least timings.{floor}, {format_duration(least)}"
        draft.problems.add(("timings", key), str(format_duration(value)), expected)


def _who_times(draft: Draft) -> None:
    scopes: list[tuple[KeyPath, float | None, float | None]] = []
    scopes.append((("allow", "default_time"), draft.who.default_time, draft.who.max_time))
    for i, cloud in draft.clouds.items():
        if cloud.allow is not None:
            rules = effective_who(cloud.allow, draft.who)
            scopes.append(
                (("clouds", i, "allow", "default_time"), rules.default_time, rules.max_time)
            )
    for path, default, max_time in scopes:
        if default is not None and max_time is not None and default > max_time:
            draft.problems.add(
                path,
                str(format_duration(default)),
                f"at most max_time, {format_duration(max_time)}",
            )


FITS: tuple[Callable[[Draft], None], ...] = (
    _pool_size,
    _pool_market,
    _cloud_types,
    _pool_types,
    _pool_devices,
    _pool_share,
    _pool_zones,
    _ports,
    _timings,
    _booting,
    _on_demand_nodes,
    _who_times,
)
