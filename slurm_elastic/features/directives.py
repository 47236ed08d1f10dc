"""Operators' directives, carried out: what is over ends, and nodes where nothing may start are kept
from Slurm, so that no job walks into them.

The ranking buys nothing there (``budget.find_stops``) from the moment at which the directive is in
the ledger, whatever this module does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor

from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import pools_in
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.departures import Departures
from slurm_elastic.model.causes.composed import OrderOver
from slurm_elastic.model.causes.holds import NoOrderKeepsIt
from slurm_elastic.model.causes.stops import StoppedByOrder
from slurm_elastic.model.directive import Directive, stopped_nodes, stopped_pools, told
from slurm_elastic.model.exclusion import OPERATOR
from slurm_elastic.policies.money.account_budgets import ACCOUNT
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)

PERIOD = 5.0


def join(site: Site) -> Extensions:
    """Every site may have orders of operators."""
    return Extensions(parts=[("operators", lambda worker: Directives(site, worker))])


class Directives(Part):
    """``looks`` is the daemon's task."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self._departures = Departures(site)
        self.looks = SiteTask(site, worker, self.look, "directives", period=PERIOD, idle=is_idle)

    def look(self) -> None:
        """One look at all that operators have said."""
        self._end_what_is_over()
        self._keep(closed_nodes(self._site))
        self._departures.look()

    def _end_what_is_over(self) -> None:
        site, now = self._site, self._site.now()
        for one in site.ledger.directives.all():
            if (
                one.until is not None
                and one.until <= now
                and site.ledger.directives.end(one.number)
            ):
                why = OrderOver(number=one.number, told=told(one, now))
                subjects = subjects_of(site.config, one)
                site.record(one.correlation, "directive-over", subjects, why)
                log.info("directive over number=%d: %s", one.number, why)

    def _keep(self, closed: Mapping[str, StoppedByOrder]) -> None:
        """Hold these nodes, by their reasons, and no others, for operators."""
        site = self._site
        rows = {row.scope: row for row in site.ledger.exclusions.holds() if row.kind == OPERATOR}
        over = [node for node in rows if node not in closed]
        if over:
            holds.release(site, over, NoOrderKeepsIt(), OPERATOR)
        new = [n for n, cause in closed.items() if n not in rows or rows[n].cause != cause]
        if new:
            # All nodes of a reason in one transaction: each costs a sync of the disk, and reads
            # all holds once more.
            for cause in dict.fromkeys(closed[node] for node in new):
                holds.hold_back(site, [n for n in new if closed[n] == cause], cause, OPERATOR)
            holds.drain_when_powered_down(site)


def is_idle(state: LedgerState) -> bool:
    """Whether no operator has said anything, and nothing is kept for one."""
    return not state.directives and all(one.kind != OPERATOR for one in state.exclusions)


def closed_nodes(site: Site) -> dict[str, StoppedByOrder]:
    """By node of ours, why operators let nothing start on it."""
    directives, now = site.ledger.directives.all(), site.now()
    pools = stopped_pools(directives, {p.name: p.cloud for p in site.pools.values()}, now)
    single = stopped_nodes(directives, now)
    found = {node: order for node, order in single.items() if node in site.pool_of}
    found |= {n: order for name, order in pools.items() for n in site.pools[name].nodes}
    cause_of = {order.number: StoppedByOrder.of(order) for order in found.values()}
    return {node: cause_of[order.number] for node, order in found.items()}


def subjects_of(config: Config, one: Directive) -> tuple[str, ...]:
    """The subjects of a decision on it: the pools of its scope, or its nodes."""
    scope = "" if one.word.scope.startswith(ACCOUNT) else one.word.scope
    return one.word.single or tuple(pool_subject(name) for name in pools_in(config, scope))
