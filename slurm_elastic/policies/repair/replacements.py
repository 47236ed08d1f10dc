"""On which nodes of another cloud machines start ahead, in place of machines that leave. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.model.causes.departures import NoStandIn, StandInLack
from slurm_elastic.model.cluster import Limits, Pool, Usage
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, phase

REPLACEMENT_KEPT_S = 3600.0
"""Seconds for which a machine that started ahead is kept without a job. Jobs that wait start within
minutes; a machine that stays idle for an hour is not needed.
"""


class StandIn(Struct, frozen=True, kw_only=True):
    """A pool of the other cloud: the nodes on which a machine may start now, how many more of its
    ``room`` allows (None: no limit), and its price per machine.
    """

    pool: Pool
    free: tuple[str, ...]
    price_per_hour: float
    room: int | None = None


class Allowance(Struct, frozen=True, kw_only=True):
    """The room within all limits together: machines and dollars per hour (None: no limit)."""

    nodes: int | None = None
    dollars_per_hour: float | None = None


def can_stand_in(pool: Pool, other: Pool) -> bool:
    """Whether a machine of ``other`` holds what a machine of ``pool`` holds."""
    has_gres = all(other.gres.get(name, 0) >= count for name, count in pool.gres.items())
    return has_gres and other.cpus >= pool.cpus and other.real_memory >= pool.real_memory


def can_start_ahead(node: SlurmNode, *, is_held_by_policy: bool) -> bool:
    """Whether a machine may start on the node although no job waits for it. A growth policy's own
    hold is no obstacle; any other drain is.
    """
    if phase(node) is not Phase.POWERED_DOWN or is_busy(node) or is_down(node):
        return False
    return is_held_by_policy or not node.states & {"DRAIN", "FAIL", "FAILING"}


def allowance(limits: Sequence[tuple[str, Limits]], used: Usage) -> Allowance:
    """Return the room within these limits, each with its scope (a key of ``Usage``)."""
    nodes = [
        limit.nodes - used.nodes.get(scope, 0) for scope, limit in limits if limit.nodes is not None
    ]
    dollars = [
        limit.dollars_per_hour - used.dollars_per_hour.get(scope, 0.0)
        for scope, limit in limits
        if limit.dollars_per_hour is not None
    ]
    return Allowance(
        nodes=max(min(nodes), 0) if nodes else None,
        dollars_per_hour=max(min(dollars), 0.0) if dollars else None,
    )


def choose(
    leaving: Sequence[tuple[str, Pool]], stand_ins: Sequence[StandIn], room: Allowance
) -> tuple[dict[str, str], NoStandIn | None]:
    """Choose where machines start. Return, by the node that starts, the node that it replaces, and
    the reason why some nodes get no replacement (None if all get one).

    ``leaving``: the nodes without a replacement yet, each with its pool. The cheapest pool that can
    hold the machine comes first, then the smallest.
    """
    order = sorted(stand_ins, key=lambda s: (s.price_per_hour, s.pool.cpus, s.pool.real_memory))
    free = {each.pool.name: list(each.free) for each in order}
    left = {each.pool.name: math.inf if each.room is None else each.room for each in order}
    machines = math.inf if room.nodes is None else room.nodes
    dollars = math.inf if room.dollars_per_hour is None else room.dollars_per_hour
    chosen: dict[str, str] = {}
    obstacle: NoStandIn | None = None
    for node, pool in leaving:
        fitting = [each for each in order if can_stand_in(pool, each.pool)]
        startable = [each for each in fitting if free[each.pool.name] and left[each.pool.name] > 0]
        payable = [each for each in startable if each.price_per_hour <= dollars + 1e-9]
        if not fitting:
            obstacle = NoStandIn(lack=StandInLack.POOL, pool=pool.name)
        elif not startable:
            obstacle = NoStandIn(lack=StandInLack.NODE, pool=pool.name)
        elif machines < 1 or not payable:
            obstacle = NoStandIn(lack=StandInLack.ROOM, pool=pool.name)
        else:
            best = payable[0]
            chosen[free[best.pool.name].pop(0)] = node
            left[best.pool.name] -= 1
            machines, dollars = machines - 1, dollars - best.price_per_hour
    return chosen, obstacle
