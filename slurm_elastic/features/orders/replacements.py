"""Starts machines in the other cloud ahead of a migration's jobs, and keeps them for a time.

The order in the ledger contains the nodes, so a restarted daemon starts none twice. A launch
follows the same rules as any other: slurmctld asks for the node, and the core checks all limits.

``kept_machines`` keeps the machines without a job.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config.pool_rules import cheapest
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launching.budget import apply_directives, find_stops
from slurm_elastic.features.growth.kept_machines import keep_idle_machines
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import ReplacementsMissing
from slurm_elastic.model.causes.departures import (
    ReplacedHaveLeft,
    ReplacementOver,
    ReplacementStarted,
)
from slurm_elastic.model.causes.holds import PoliciesStartIt
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.directive import (
    OPERATORS,
    Departure,
    Directive,
    ReplacementMachine,
    Replacements,
    describe,
    scope_of_cloud,
    stopped_nodes,
)
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, phase
from slurm_elastic.policies.repair.replacements import (
    REPLACEMENT_KEPT_S,
    StandIn,
    allowance,
    can_start_ahead,
    choose,
)
from slurm_elastic.slurm.client.commands import node_updates

log = logging.getLogger(__name__)

TRY_EVERY_S = 30.0
"""Seconds between two attempts to find nodes for missing replacements: it reads all nodes there."""


class ReplacementStarts:
    """Keeps in memory only which obstacles were recorded and which nodes were powered up."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._recorded = ReportOnce[int]()
        self._powered_up: set[tuple[int, str]] = set()
        self._next_try: dict[int, float] = {}

    def forget_unless(self, numbers: set[int]) -> None:
        """Forget the orders that the ledger no longer has."""
        self._recorded.forget_unless(numbers.__contains__)
        self._powered_up = {key for key in self._powered_up if key[0] in numbers}
        self._next_try = {n: at for n, at in self._next_try.items() if n in numbers}

    def look(self, directive: Directive, departure: Departure, leaving: Sequence[str]) -> None:
        """Start the missing machines, and keep the machines without a job. ``leaving``: the
        nodes of the machines that leave by the order now.
        """
        site, now = self._site, self._site.now()
        others = self._replaced_by_others(directive)
        leaving = [node for node in leaving if node not in others]
        started = departure.replacements
        if started is None:
            # An order with ``--at`` begins later, and its machines are kept from that time on.
            kept_until = max(directive.starts, now) + REPLACEMENT_KEPT_S
            started = Replacements(wanted=len(leaving), kept_until=kept_until)
        chosen: Mapping[str, str] = {}
        is_missing = len(started.machines) < started.wanted and now < started.kept_until
        if is_missing and site.monotonic() >= self._next_try.get(directive.number, 0.0):
            self._next_try[directive.number] = site.monotonic() + TRY_EVERY_S
            chosen = self._choose(directive, departure, started, leaving)
        new = (
            ReplacementMachine(node=n, instead_of=instead_of) for n, instead_of in chosen.items()
        )
        machines = (*started.machines, *new)
        started = replace(started, machines=machines)
        view = site.slurm.nodes([m.node for m in machines]) if machines else {}
        started = replace(
            started, machines=tuple(self._judged(directive, started, m, view) for m in machines)
        )
        # The nodes are in the ledger before slurmctld asks for their machines. After a crash in
        # between, the next daemon powers them up.
        if started != departure.replacements:
            site.ledger.directives.progress(
                directive.number, replace(departure, replacements=started)
            )
        for node, instead_of in chosen.items():
            cause = ReplacementStarted(
                instead_of=instead_of,
                number=directive.number,
                order_text=describe(directive, now),
                kept_until=started.kept_until,
            )
            site.record(OPERATORS, "replacement", (node, instead_of), cause)
        kept = [m.node for m in started.machines if not m.is_over]
        self._power_up(directive, kept, view, chosen)
        keep_idle_machines(site, kept, view)

    def _replaced_by_others(self, directive: Directive) -> set[str]:
        """Return the nodes that have a replacement by another order. Orders may name the same
        machines in different words: their cloud, their pool, or their nodes.
        """
        words = (
            other.word for other in self._site.ledger.directives.all()
            if other.number != directive.number
        )  # fmt: skip
        orders = (word.replacements for word in words if isinstance(word, Departure))
        machines = (machine for order in orders if order is not None for machine in order.machines)
        return {machine.instead_of for machine in machines if not machine.is_over}

    def _choose(
        self,
        directive: Directive,
        departure: Departure,
        started: Replacements,
        leaving: Sequence[str],
    ) -> Mapping[str, str]:
        """Return, for each node that starts, the node whose place it takes."""
        site = self._site
        missing = started.wanted - len(started.machines)
        used = {machine.node for machine in started.machines}
        replaced = {machine.instead_of for machine in started.machines}
        left = [n for n in leaving if n not in replaced and n in site.pool_of]
        places = [(node, site.pool_of[node]) for node in left[:missing]]
        stand_ins, obstacle = self._stand_ins(departure.to, used)
        config = apply_directives(site.config, site.ledger, site.now())
        limits = [
            ("", config.limits),
            (scope_of_cloud(departure.to), config.cloud(departure.to).limits),
        ]
        chosen, reason = choose(places, stand_ins, allowance(limits, site.usage()))
        if len(chosen) < missing and self._recorded.is_news(directive.number, reason or obstacle):
            cause = ReplacementsMissing(
                missing=missing - len(chosen),
                obstacle=obstacle or reason or ReplacedHaveLeft(),
                number=directive.number,
                order_text=describe(directive, site.now()),
            )
            site.record(OPERATORS, "replacement-missing", tuple(n for n, _ in places), cause)
            log.warning("replacements missing: %s", cause)
        return chosen

    def _stand_ins(self, cloud: str, used: set[str]) -> tuple[list[StandIn], AnyCause | None]:
        """Return the pools that may start machines now, and why another pool may not (None: all
        may).
        """
        site, now = self._site, self._site.now()
        stops = find_stops(site.config, site.ledger, site.rules, now)
        pools = [pool for pool in site.pools_of_cloud(cloud) if pool.name not in stops]
        obstacle = next(
            (stops[p.name] for p in site.pools_of_cloud(cloud) if p.name in stops), None
        )
        counts = site.usage().nodes
        limits = {
            p.name: p.max_nodes for p in apply_directives(site.config, site.ledger, now).pools
        }
        rows = []
        for pool in pools:
            most = limits.get(pool.name, pool.max_nodes)
            room = None if most is None else max(most - counts.get(f"pool:{pool.name}", 0), 0)
            price = cheapest(site.clouds[cloud], pool)
            free = self._free(pool, used)
            rows.append(StandIn(pool=pool, free=free, price_per_hour=price, room=room))
        return rows, obstacle

    def _free(self, pool: Pool, used: set[str]) -> tuple[str, ...]:
        site = self._site
        served, closed = (
            site.served_nodes(),
            stopped_nodes(site.ledger.directives.all(), site.now()),
        )
        view = site.slurm.nodes(pool.nodes)
        kinds: dict[str, set[str]] = {}
        for row in site.ledger.exclusions.holds():
            kinds.setdefault(row.scope, set()).add(row.kind)
        return tuple(
            name
            for name in pool.nodes
            if name in view
            and name not in served | used
            and name not in closed
            and can_start_ahead(view[name], is_held_by_policy=kinds.get(name) == {POLICY})
        )

    def _power_up(
        self,
        directive: Directive,
        nodes: Sequence[str],
        view: Mapping[str, SlurmNode],
        chosen: Collection[str],
    ) -> None:
        """Make slurmctld ask for the machines, once in the life of this daemon: if a launch fails,
        the core reports it, and trying it again would only fail again. ``chosen``: the nodes that
        were chosen in this look.
        """
        site = self._site
        served = site.served_nodes()
        todo = [
            node
            for node in nodes
            if (directive.number, node) not in self._powered_up
            and node not in served
            and node in view
            and phase(view[node]) is Phase.POWERED_DOWN
        ]
        if any(node not in chosen for node in todo):
            # An earlier daemon has started them. A machine ended since gets no second replacement.
            ended = self._ended_machines(directive)
            todo = [node for node in todo if node in chosen or node not in ended]
        if todo:
            self._order(directive, todo)
        # Only after slurmctld has taken the order. Also nodes that need no power-up now: if their
        # machine fails later, it is not started again.
        self._powered_up |= {(directive.number, node) for node in nodes}

    def _order(self, directive: Directive, todo: Sequence[str]) -> None:
        site = self._site
        held = {row.scope for row in site.ledger.exclusions.holds() if row.kind == POLICY}
        if by_policy := [node for node in todo if node in held]:
            # Before the power-up: a node that is powered up while drained stays drained.
            holds.release(site, by_policy, PoliciesStartIt(), POLICY)
        node_updates.power_up(site.slurm, todo)
        log.info("replacements started nodes=%s number=%d", compress(todo), directive.number)

    def _ended_machines(self, directive: Directive) -> set[str]:
        """The nodes whose machines were launched and have ended since the order began."""
        since = directive.starts
        machines = self._site.ledger.machines.live(ended_since=since)
        return {m.instance.node for m in machines if m.has_ended and m.instance.launched >= since}

    def _judged(
        self,
        directive: Directive,
        started: Replacements,
        machine: ReplacementMachine,
        view: Mapping[str, SlurmNode],
    ) -> ReplacementMachine:
        """Return the machine as it is now: over after its first job or after its time."""
        node = view.get(machine.node)
        is_used = node is not None and is_busy(node)
        is_late = self._site.now() >= started.kept_until
        if machine.is_over or not (is_used or is_late):
            return machine
        cause = ReplacementOver(is_used=is_used, number=directive.number)
        self._site.record(OPERATORS, "replacement-over", (machine.node,), cause)
        return replace(machine, is_over=True)
