"""Budgets with ``when_spent: finish``: machines take no new jobs once the money is spent, or would
be by the time limits of the running jobs.

The record of the latter (``COMMITTED``) is in the ledger, because launches and screens have no jobs
at hand. Running nodes are held and power down after their jobs, as with ``drain``. Each look
uses only the state of Slurm and the ledger, so a restarted daemon continues.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from msgspec.structs import replace

from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config.pool_rules import bounds_of
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launching.budget import (
    apply_directives,
    find_finishing_clouds,
    finishes,
    read_spending,
)
from slurm_elastic.features.growth.pool_nodes import Observation
from slurm_elastic.model.causes.stops import BudgetSpent
from slurm_elastic.model.exclusion import COMMITTED, Exclusion
from slurm_elastic.model.slurm import ON_NODES
from slurm_elastic.policies.money.bounds import end_of_day_and_month
from slurm_elastic.policies.money.commitments import BusyMachine, spent_by_limits
from slurm_elastic.policies.nodes.node_state import Phase, is_down, is_leaving, phase
from slurm_elastic.policies.repair.departure import is_persons
from slurm_elastic.slurm.client.commands import node_updates

log = logging.getLogger(__name__)

CORRELATION = "budget"


def look(site: Site, view: Observation) -> None:
    """Record which budgets the running jobs will spend, and close the nodes of spent ones."""
    _record(site, view)
    _close(site, view)


def _record(site: Site, view: Observation) -> None:
    """Record the budgets that running jobs will spend if they use their time limits."""
    now = site.now()
    config = apply_directives(site.config, site.ledger, now)
    kept = {row.scope: row for row in site.ledger.exclusions.all() if row.kind == COMMITTED}
    rows: dict[str, Exclusion] = {}
    spent = read_spending(config, site.ledger, now)
    busy = _busy_machines(site, view) if spent else {}
    for scope, spent_so_far in spent.items():
        machines = [m for cloud, of_cloud in busy.items() if scope in ("", cloud) for m in of_cloud]
        bounds = bounds_of(config.budget_of(scope))
        promised = spent_by_limits(bounds, spent_so_far, machines, now, end_of_day_and_month(now))
        if promised is not None and finishes(config, scope):
            cause, until = promised
            cause = replace(cause, owner=f"cloud {scope}" if scope else "")
            rows[scope] = Exclusion(
                kind=COMMITTED, scope=scope, until=until, cause=cause, since=now
            )
    changed = [
        row for name, row in rows.items()
        if name not in kept or (kept[name].cause, kept[name].until) != (row.cause, row.until)
    ]  # fmt: skip
    if changed:
        site.ledger.exclusions.add(*changed)
    ended = kept.keys() - rows.keys()
    if ended:
        site.ledger.exclusions.readmit(COMMITTED, *ended)


def _busy_machines(site: Site, view: Observation) -> Mapping[str, list[BusyMachine]]:
    """The machines with jobs, and how long these jobs may run, by cloud."""
    now = site.now()
    busy_until: dict[str, float] = {}
    for job in view.jobs:
        if job.states & ON_NODES:
            # A job that still waits for its machine, or is suspended, has its whole limit left.
            whole = math.inf if job.limit is None else now + job.limit
            end = whole if job.ends_at_latest is None else job.ends_at_latest
            for node in job.nodes:
                busy_until[node] = max(busy_until.get(node, 0.0), end)
    machines: dict[str, list[BusyMachine]] = {}
    for node, end in busy_until.items():
        if node in view.machines:
            machine = view.machines[node]
            instance = machine.instance
            unit = machine.terms.billing_increment_s
            row = BusyMachine(instance.price, instance.launched, end, unit)
            machines.setdefault(instance.cloud, []).append(row)
    return machines


def _close(site: Site, view: Observation) -> None:
    """Power down the nodes of spent clouds after their jobs, and let them take no new jobs."""
    finishing = find_finishing_clouds(site.config, site.ledger, site.now())
    owing = {copy.node for copy in site.ledger.copies.owing()} if finishing else set()
    nodes = [
        name
        for name, machine in view.machines.items()
        # A node that owes files of a job stays, because its machine would end.
        if machine.instance.cloud in finishing and name not in owing and _takes_jobs(view, name)
    ]
    cause_of: dict[str, BudgetSpent] = {
        name: finishing[view.machines[name].instance.cloud] for name in nodes
    }
    for cause, names in group_by(nodes, cause_of.__getitem__).items():
        # The hold first: Slurm may start the node again as soon as it has powered down.
        holds.hold_back(site, names, cause)
        node_updates.power_down_when_idle(site.slurm, names)
        site.record(CORRELATION, "leaving", names, cause)
        log.info("nodes take no new jobs nodes=%s reason=%s", compress(names), cause)


def _takes_jobs(view: Observation, name: str) -> bool:
    node = view.nodes.get(name)
    return (
        node is not None
        and phase(node) is Phase.UP
        and not (is_leaving(node) or is_persons(node) or is_down(node))
    )
