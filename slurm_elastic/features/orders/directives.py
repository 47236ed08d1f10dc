"""Carries out the directives of operators: ends the expired ones, and holds the nodes on which
nothing may start, so that Slurm allocates them to no job. Nodes whose address in the tunnel is
still another node's machine's are held in the same way.

As soon as a directive is in the ledger, independently of this module, the ranking refuses purchases
in the pools that it closes (``budget.build_launch_scope``), and growth policies start none of the
nodes that it closes (``holds.find_closed_nodes``). Slurm itself may ask for such a node until it is
held; ``departures`` then gives it back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor

from slurm_elastic.base.grouping import group_by
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import pools_in
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.orders.departures import Departures
from slurm_elastic.model.causes.composed import OrderOver
from slurm_elastic.model.causes.holds import AddressFree, NoOrderKeepsIt
from slurm_elastic.model.causes.stops import AddressTaken, StoppedByOrder
from slurm_elastic.model.directive import Directive, describe, stopped_pools
from slurm_elastic.model.exclusion import OPERATOR
from slurm_elastic.policies.money.account_budgets import ACCOUNT, USER
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)

PERIOD_S = 5.0


def join(site: Site) -> Extensions:
    """Join at every site: each may have orders of operators."""
    return Extensions(parts=[("operators", lambda worker: DirectivesPart(site, worker))])


class DirectivesPart(Part):
    """``task``: the periodic task that the daemon runs."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self._departures = Departures(site)
        self.task = SiteTask(
            site, worker, self.look, "directives", period=PERIOD_S, idle=self._is_idle
        )

    def _is_idle(self, state: LedgerState) -> bool:
        closed = holds.find_closed(self._site, state.directives)
        return self._departures.is_done and is_idle(state) and not closed

    def look(self) -> None:
        """Carry out all directives once."""
        self._end_expired()
        self._hold_closed(closed_nodes(self._site))
        self._departures.look()

    def _end_expired(self) -> None:
        site, now = self._site, self._site.now()
        for directive in site.ledger.directives.all():
            if (
                directive.until is not None
                and directive.until <= now
                and site.ledger.directives.end(directive.number)
            ):
                cause = OrderOver(number=directive.number, order_text=describe(directive, now))
                subjects = subjects_of(site.config, directive)
                site.record(directive.correlation, "directive-over", subjects, cause)
                log.info("order ended number=%d: %s", directive.number, cause)

    def _hold_closed(self, closed: Mapping[str, StoppedByOrder | AddressTaken]) -> None:
        """Hold the closed nodes for operators, with their causes. Release all other operator
        holds.
        """
        site = self._site
        rows = {row.scope: row for row in site.ledger.exclusions.holds() if row.kind == OPERATOR}
        unclosed = [node for node in rows if node not in closed]
        by_taken = group_by(unclosed, lambda node: isinstance(rows[node].cause, AddressTaken))
        for was_taken, nodes in by_taken.items():
            over = AddressFree() if was_taken else NoOrderKeepsIt()
            holds.release(site, nodes, over, OPERATOR)
        changed = [n for n, cause in closed.items() if n not in rows or rows[n].cause != cause]
        if changed:
            # Hold all nodes of a cause in one transaction. Each transaction syncs the disk and
            # reads all holds again, so one transaction per node takes seconds in a large pool.
            for cause, nodes in group_by(changed, closed.__getitem__).items():
                holds.hold_back(site, nodes, cause, OPERATOR)
            holds.drain_when_powered_down(site)


def is_idle(state: LedgerState) -> bool:
    """Whether there is no directive and no hold of an operator."""
    return not state.directives and all(row.kind != OPERATOR for row in state.exclusions)


def closed_nodes(site: Site) -> dict[str, StoppedByOrder | AddressTaken]:
    """By node of ours: why nothing may start on it, by an order about its pool or by itself."""
    directives, now = site.ledger.directives.all(), site.now()
    pools = stopped_pools(directives, {p.name: p.cloud for p in site.pools.values()}, now)
    closed = holds.find_closed(site, directives)
    for name, order in pools.items():
        closed |= dict.fromkeys(site.pools[name].nodes, StoppedByOrder.of(order))
    return closed


def subjects_of(config: Config, directive: Directive) -> tuple[str, ...]:
    """The subjects of a decision about the directive: its nodes, or the pools of its scope."""
    scope = "" if directive.word.scope.startswith((ACCOUNT, USER)) else directive.word.scope
    return directive.word.node_names or tuple(
        pool_subject(name) for name in pools_in(config, scope)
    )
