"""Machines stopped instead of ended: which may stop, which stay stopped, which start again. Pure.

A stopped machine still belongs to its node: it boots with its old name, tags and user data, so it
can start for that node only. A pool keeps as many as its ``stopped`` says. A stopped machine ends
when it is too old, when a fresh machine would be made differently (``recipe``), when the pool keeps
fewer, or when the pool has lost its node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

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
from slurm_elastic.model.cluster import OFF, Market, NodeRequest, Offer, Pool
from slurm_elastic.model.directive import Departure, Directive
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.memory import Machine, generation_time
from slurm_elastic.policies.clock_guard import age
from slurm_elastic.policies.launch.gang import Gang, part_of
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS, Scope, counted, rank, serving


class Recipes(Struct, frozen=True, kw_only=True):
    """The recipes of machines, by the generation of their last start (``made_of``), and of a fresh
    machine by pool. Unknown recipes are absent.
    """

    made_of: Mapping[str, str]
    fresh: Mapping[str, str]

    def changed(self, machine: Machine) -> bool:
        """Whether a fresh machine would certainly be made differently."""
        fresh = self.fresh.get(machine.pool)
        # An unknown recipe of the machine differs; without a fresh recipe nothing is certain.
        return fresh is not None and self.made_of.get(machine.instance.generation) != fresh

    def same(self, machine: Machine) -> bool:
        """Whether a fresh machine would certainly be made in the same way."""
        return machine.pool in self.fresh and not self.changed(machine)


NO_RECIPES = Recipes(made_of={}, fresh={})
"""No recipe is known."""


def born(machine: Machine) -> float:
    """Return when the machine was first launched (Unix s)."""
    instance = machine.instance
    return machine.first_launched_at or generation_time(instance.generation) or instance.launched


def departing(
    machines: Iterable[Machine], directives: Iterable[Directive], now: float
) -> dict[str, StoppedByOrder]:
    """Return the operator's order by which each of these machines leaves, by id."""
    departures = [(d, d.word) for d in directives if d.holds(now) and isinstance(d.word, Departure)]
    return {
        m.instance.id: StoppedByOrder.of(d)
        for m in machines
        for d, departure in departures
        if m.instance.node in departure.nodes and (departure.blocks_starts or born(m) <= d.starts)
    }


def to_stop(
    doomed: Iterable[Machine],
    all_machines: Sequence[Machine],
    pools: Mapping[str, Pool],
    recipes: Recipes,
    now: float,
    *,
    boot_again: bool = False,
) -> list[Machine]:
    """Return the unneeded machines of ``doomed`` that must be stopped, not ended, in their order.
    ``all_machines``: all live and stopped machines. ``boot_again``: also machines that boot after a
    stop. Nothing says yet that their boot fails.
    """
    # Stopping machines fill the pool's places already.
    kept: list[Machine] = [m for m in all_machines if m.is_off or m.is_stopping]
    chosen: list[Machine] = []
    for machine in doomed:
        pool = pools.get(machine.pool)
        has_come_up = isinstance(machine.life, Serving) or (
            boot_again and machine.first_launched_at is not None
        )
        if pool is None or not has_come_up or not _may_stop(machine, pool, recipes, now):
            continue
        held = [m for m in (*kept, *chosen) if m.pool == pool.name]
        # One per node: a stopped machine can start for its own node only.
        if len(held) < pool.stopped and machine.instance.node not in {
            m.instance.node for m in held
        }:
            chosen.append(machine)
    return chosen


def _may_stop(machine: Machine, pool: Pool, recipes: Recipes, now: float) -> bool:
    """Whether the machine is worth keeping: its cloud cannot take it back, and a fresh machine
    would be no different.
    """
    return (
        pool.stopped > 0
        and machine.instance.market is not Market.SPOT
        # Nothing checks, when a stopped machine starts, that its reservation still has room.
        and not machine.instance.reservation
        and not unfit(machine, pool, now)
        and recipes.same(machine)
    )


def unfit(machine: Machine, pool: Pool | None, now: float) -> Unwanted | None:
    """Return why a machine does not fit its pool as it is now configured; None if it does."""
    instance = machine.instance
    if pool is None or instance.cloud != pool.cloud or instance.node not in pool.nodes:
        return NodeNotOfPool()
    if instance.market not in pool.markets:
        return NoLongerUsed(property_name="market", name=instance.market)
    if pool.instance_types and instance.instance_type not in pool.instance_types:
        return NoLongerUsed(property_name="instance type", name=instance.instance_type)
    if pool.zones and instance.zone not in pool.zones:
        return NoLongerUsed(property_name="zone", name=instance.zone)
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
    """Return why stopped machines of one cloud must end, by id. ``leaving``: machines that an
    operator ordered to leave.
    """
    causes: dict[str, Unwanted | StoppedByOrder] = {}
    kept_nodes_by_pool: dict[str, set[str]] = {}
    # The youngest first: if a pool has too many, the oldest end.
    for machine in sorted(stopped, key=lambda m: (-born(m), m.instance.id)):
        instance, pool = machine.instance, pools.get(machine.pool)
        nodes = kept_nodes_by_pool.setdefault(machine.pool, set())
        cause: Unwanted | StoppedByOrder | None = leaving.get(instance.id) or unfit(
            machine, pool, now
        )
        if not cause and recipes.changed(machine):
            cause = RecipeChanged()
        limit = pool.stopped if pool else 0
        if not cause and len(nodes) >= limit:
            cause = EnoughStopped(max_stopped=limit)
        if not cause and instance.node in nodes:
            cause = YoungerStopped(node=instance.node)
        if cause:
            causes[instance.id] = cause
        else:
            nodes.add(instance.node)
    return causes


def to_start(
    stopped: Iterable[Machine],
    nodes: Collection[str],
    pool: Pool,
    recipes: Recipes,
    now: float,
) -> list[Machine]:
    """Return the stopped machines that may serve these nodes of a pool, one per node."""
    fitting = [
        m
        for m in stopped
        if m.pool == pool.name
        and m.instance.node in nodes
        and m.instance.state in OFF
        # A machine that the last list lacked may be gone.
        and not m.missed_listings
        and not unfit(m, pool, now)
        and recipes.same(m)
    ]
    # Ascending by age of birth, so that the youngest machine of a node replaces the older ones.
    by_node = {m.instance.node: m for m in sorted(fitting, key=born)}
    return list(by_node.values())


class Startable(Struct, frozen=True, kw_only=True):
    """A stopped machine that may start, and the ``offer`` of its type, zone and market now."""

    machine: Machine
    offer: Offer

    def within(self, scope: Scope) -> tuple[Offer, Scope]:
        """Return the offer and the bounds by which a start is judged like a launch."""
        instance, spent = self.machine.instance, dict(scope.usage.dollars_per_hour)
        # The machine's disk costs nothing beside the running machine, so it must not count twice.
        for key in ("", f"cloud:{instance.cloud}"):
            spent[key] = max(spent.get(key, 0.0) - instance.price, 0.0)
        # free=None: the cloud's free count must not limit the start, because it may reserve room
        # for its stopped machines.
        usage = replace(scope.usage, dollars_per_hour=spent)
        return replace(self.offer, free=None), replace(scope, usage=usage)


def startables(machines: Iterable[Machine], offers: Iterable[Offer]) -> list[Startable]:
    """Return the stopped machines whose offer the cloud names. A machine without an offer has no
    price, so no limit could count it.
    """
    offer_by_key = {offer.key: offer for offer in offers}
    return [
        Startable(machine=m, offer=offer_by_key[m.instance.offer_key])
        for m in machines
        if m.instance.offer_key in offer_by_key
    ]


class _Room(Struct, frozen=True, kw_only=True):
    """The bounds and the offers that some gangs leave to the gangs after them."""

    scope: Scope
    offers: Sequence[Offer]


def gangs_with_room(
    request: NodeRequest,
    todo: Sequence[Gang],
    startable: Sequence[Startable],
    offers: Sequence[Offer],
    scope: Scope,
    now: float,
    keys: Sequence[str] = DEFAULT_KEYS,
) -> list[Gang]:
    """Return the gangs of ``todo`` that get machines for all their nodes together: the stopped
    machines of ``startable``, which start in this order, and bought machines for the other nodes.

    Gangs of one node are returned unjudged if there are no other gangs, or if there is room for
    all: the caller judges each start again.
    """
    places = {s.machine.instance.node: (n, s) for n, s in enumerate(startable)}
    # No machine is started for the other single nodes, and the gangs of several nodes, which could
    # lose the room to them, come first.
    gangs = [gang for gang in todo if len(gang.nodes) > 1 or gang.nodes[0] in places]
    left = _Room(scope=scope, offers=offers)
    if all(len(gang.nodes) == 1 for gang in gangs):
        return gangs
    nodes = tuple(dict.fromkeys(node for gang in gangs for node in gang.nodes))
    if _take_room(part_of(request, nodes), places, left, now, keys):
        return gangs
    # Count down the room from gang to gang. Ranking all earlier machines again for each gang would
    # take too long with hundreds of jobs.
    chosen: list[Gang] = []
    served: set[str] = set()
    for gang in gangs:
        lacking = [node for node in gang.nodes if node not in served]
        left_after = _take_room(part_of(request, lacking), places, left, now, keys)
        if left_after is not None:
            chosen.append(gang)
            served.update(lacking)
            left = left_after
    return chosen


def _take_room(
    request: NodeRequest,
    places: Mapping[str, tuple[int, Startable]],
    left: _Room,
    now: float,
    keys: Sequence[str],
) -> _Room | None:
    """Return the room that is left after each node of ``request`` has got a stopped or a bought
    machine; None if a node gets none. ``places``: the stopped machines by node, each with its
    place in the order of starts.
    """
    scope, offers = left.scope, list(left.offers)
    to_buy = [n for n in request.nodes if n not in places]
    starts = sorted((n for n in request.nodes if n in places), key=lambda n: places[n][0])
    for node in starts:
        offer, scope_of_start = places[node][1].within(scope)
        if rank(part_of(request, [node]), [offer], scope_of_start, now, keys).ranked:
            scope = counted(scope_of_start, request.pool, offer, 1)
        else:
            to_buy.append(node)
    launches = serving(part_of(request, to_buy), offers, scope, now, keys)
    if sum(launch.room for launch in launches) < len(to_buy):
        return None
    for launch in launches:
        scope = counted(scope, request.pool, launch.offer, launch.room)
        # The scope does not count what the cloud itself has free.
        if launch.offer.free is not None:
            free = launch.offer.free - launch.room
            offers[offers.index(launch.offer)] = replace(launch.offer, free=free)
    return _Room(scope=scope, offers=offers)
