"""Machines that are stopped instead of ended: which may be, which stay so, which are started. Pure.

A machine that is stopped belongs to its node still: it boots with the name, the tags and the user
data that it had, so it is started for that node alone. A pool keeps so many as its ``stopped``
says. One ends when it is too old, when a fresh machine would be made otherwise (``recipe``), and
when the pool keeps fewer, or has lost its node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite

from msgspec import Struct

from slurm_elastic.model.causes.stops import StoppedByOrder
from slurm_elastic.model.causes.unwanted import (
    EnoughStopped,
    NodeNotOfPool,
    NoLongerUsed,
    RecipeChanged,
    TooOld,
    Unwanted,
    YoungerStopped,
)
from slurm_elastic.model.cluster import OFF, Market, Pool
from slurm_elastic.model.directive import Departure, Directive
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.memory import Machine, generation_time
from slurm_elastic.policies.clock_guard import age


class Recipes(Struct, frozen=True, kw_only=True):
    """The recipes of machines, by the generation of their last start, and that of a fresh one
    by pool; what is not known is not there.
    """

    made_of: Mapping[str, str]
    fresh: Mapping[str, str]

    def changed(self, machine: Machine) -> bool:
        """Whether a fresh machine would be another one for certain."""
        fresh = self.fresh.get(machine.pool)
        return fresh is not None and self.made_of.get(machine.instance.generation) != fresh

    def same(self, machine: Machine) -> bool:
        """Whether a fresh machine would be the same for certain."""
        return machine.pool in self.fresh and not self.changed(machine)


NO_RECIPES = Recipes(made_of={}, fresh={})
"""Nothing is known."""


def born(machine: Machine) -> float:
    """When it was first launched (Unix time)."""
    one = machine.instance
    return machine.born or generation_time(one.generation) or one.launched


def departing(
    machines: Iterable[Machine], directives: Iterable[Directive], now: float
) -> dict[str, StoppedByOrder]:
    """By id, by which operator's word these leave."""
    words = [(d, d.word) for d in directives if d.holds(now) and isinstance(d.word, Departure)]
    return {
        m.instance.id: StoppedByOrder.of(d)
        for m in machines
        for d, word in words
        if m.instance.node in word.nodes and (word.closes or born(m) <= d.starts)
    }


def to_stop(
    doomed: Iterable[Machine],
    there: Sequence[Machine],
    pools: Mapping[str, Pool],
    recipes: Recipes,
    now: float,
) -> list[Machine]:
    """The machines to be stopped, not ended, as nobody needs them, in their order. ``there``: all
    live machines and the stopped ones.
    """
    kept: list[Machine] = [m for m in there if m.is_off or m.is_stopping]
    chosen: list[Machine] = []
    for machine in doomed:
        pool = pools.get(machine.pool)
        if pool is None or not _may_stop(machine, pool, recipes, now):
            continue
        held = [m for m in (*kept, *chosen) if m.pool == pool.name]
        if len(held) < pool.stopped and machine.instance.node not in {
            m.instance.node for m in held
        }:
            chosen.append(machine)
    return chosen


def _may_stop(machine: Machine, pool: Pool, recipes: Recipes, now: float) -> bool:
    """One that never came up, or that its cloud may take back, is no good to keep."""
    return (
        pool.stopped > 0
        and machine.instance.market is not Market.SPOT
        and isinstance(machine.life, Serving)
        and not unfit(machine, pool, now)
        and recipes.same(machine)
    )


def unfit(machine: Machine, pool: Pool | None, now: float) -> Unwanted | None:
    """Why a machine is none of its pool's, as that is now; None where it is."""
    one = machine.instance
    if pool is None or one.cloud != pool.cloud or one.node not in pool.nodes:
        return NodeNotOfPool()
    if one.market not in pool.markets:
        return NoLongerUsed(what="market", name=one.market)
    if pool.instance_types and one.instance_type not in pool.instance_types:
        return NoLongerUsed(what="instance type", name=one.instance_type)
    if pool.zones and one.zone not in pool.zones:
        return NoLongerUsed(what="zone", name=one.zone)
    seconds = age(born(machine), now)
    if pool.max_age is not None and seconds > pool.max_age:
        return TooOld(age_s=seconds if isfinite(seconds) else None, maximum_s=pool.max_age)
    return None


def unwanted(
    stopped: Iterable[Machine],
    pools: Mapping[str, Pool],
    recipes: Recipes,
    leaving: Mapping[str, StoppedByOrder],
    now: float,
) -> dict[str, Unwanted | StoppedByOrder]:
    """Why stopped machines of one cloud are to end, by id (``leaving``: by an operator's word)."""
    found: dict[str, Unwanted | StoppedByOrder] = {}
    left: dict[str, set[str]] = {}
    # The youngest first: where a pool has too many, the oldest end.
    for machine in sorted(stopped, key=lambda m: (-born(m), m.instance.id)):
        one, pool = machine.instance, pools.get(machine.pool)
        nodes = left.setdefault(machine.pool, set())
        why: Unwanted | StoppedByOrder | None = leaving.get(one.id) or unfit(machine, pool, now)
        if not why and recipes.changed(machine):
            why = RecipeChanged()
        most = pool.stopped if pool else 0
        if not why and len(nodes) >= most:
            why = EnoughStopped(most=most)
        if not why and one.node in nodes:
            why = YoungerStopped(node=one.node)
        if why:
            found[one.id] = why
        else:
            nodes.add(one.node)
    return found


def to_start(
    stopped: Iterable[Machine],
    nodes: Collection[str],
    pool: Pool,
    recipes: Recipes,
    now: float,
) -> list[Machine]:
    """The stopped machines that may serve these nodes of a pool, one for each node."""
    fitting = [
        m
        for m in stopped
        if m.pool == pool.name
        and m.instance.node in nodes
        and m.instance.state in OFF
        and not m.misses
        and not unfit(m, pool, now)
        and recipes.same(m)
    ]
    # Of several of a node the youngest takes the place of the others.
    by_node = {m.instance.node: m for m in sorted(fitting, key=born)}
    return list(by_node.values())
