"""The site's policies on real Slurm: measure, decide (``policies.growth.scaling``), act.

Nodes that a growth policy may start are kept from Slurm (``holds``), else Slurm would start a node
for any waiting job. To start one is to let go of it and to power it up; to give one back is to hold
it and to power it down as soon as its jobs have ended. All of it goes by scontrol, batched by
hostlist. Slurm's SuspendTime stays behind it as the fail-safe. Each decision is journalled in the
ledger with what was measured: ``replay`` finds the same from that.

Where the configuration has no policies, nothing is measured and nothing done.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from itertools import islice

import msgspec
from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.in_time import InTime
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config.pool_rules import inert
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features import budget_enforcement
from slurm_elastic.features.covered_jobs import CoveredJobs, counted_id
from slurm_elastic.features.observe import PoolGroup, observe, pool_groups
from slurm_elastic.features.pool_nodes import Observation
from slurm_elastic.features.purchase_guard import PurchaseGuard
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.holds import MayStart, NoPoliciesLeft, PoliciesStartIt, UpOrComing
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.policies.growth.capacity import OwnGrowth
from slurm_elastic.policies.growth.dealing import split_demand
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    PendingJob,
    ScalingPlan,
    holds_back,
    weights,
    without_growth,
)
from slurm_elastic.policies.money.account_budgets import parts, payer
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.slurm.conf.fragment import slurm_weights
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision, Health

log = logging.getLogger(__name__)

CORRELATION = "policy"
KIND = "policy"
HEALTH = "growth policies"
PATIENCE = 10.0
"""Seconds in which a growth policy of another package has to answer."""
PACE = 20.0
"""A look at most takes one part in so many and one of the time."""
LEVELS = 9
"""Weights of a pool: those of the next one are 10 further."""
RECALLED = 50
"""Decisions of a group that a new daemon goes by."""
JOBS_TOLD = 100
"""At most this many waiting jobs hear of a decision (``explain JOBID``)."""


def join(site: Site) -> Extensions:
    """Every site may have growth policies."""
    return Extensions(parts=[("policies", lambda worker: Autoscaler(site, worker))])


class Autoscaler(Part):
    """``looks`` is the daemon's task."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        look, period = self._clear if inert(site.config) else self.look, site.config.policies.look
        self.looks = SiteTask(site, worker, look, "policies", period=period, pace=PACE)
        self._asked = InTime()
        self._guard = PurchaseGuard(site)
        self._counted: dict[str, CoveredJobs] = {}
        self._causes = ReportOnce[str]()
        self._reasons: defaultdict[str, ReportOnce[int]] = defaultdict(ReportOnce)
        self._weights = slurm_weights(site.config, tuple(site.pools.values()))

    def _clear(self) -> None:
        """The configuration has no policies any more: what they held is let go, once; jobs that are
        set aside, when they can be.
        """
        self._tell()
        rows = [row.scope for row in self._site.ledger.exclusions.holds() if row.kind == POLICY]
        if rows:
            holds.release(self._site, rows, NoPoliciesLeft(), POLICY)
        if self._site.ledger.deferred.jobs():
            budget_enforcement.enforce(self._site, self._site.slurm.jobs(), {}, self._site.now())
        if not self._site.ledger.deferred.jobs():
            self.looks.end()

    def look(self) -> None:
        """One look at all groups."""
        site = self._site
        if not self._counted:
            self._counted = {name: recalled(site, name) for name in site.pools}
        view = observe(site)
        view = replace(view, unhelped=self._guard.look(view))
        budget_enforcement.enforce(site, view.jobs, view.over, view.at)
        groups = pool_groups(site, view, self._counted)
        self._tell([why for group in groups if (why := self._serve(group, view))])

    def _tell(self, failures: Sequence[str] = ()) -> None:
        """What ``status`` and ``doctor`` say of the growth policies."""
        error = "; ".join(dict.fromkeys(failures)) or None
        known = {row.name: row.error for row in self._site.ledger.health.all()}
        if error or known.get(HEALTH):
            health = Health(name=HEALTH, checked=self._site.now(), error=error, code="growth")
            self._site.ledger.health.report(health)

    def _serve(self, group: PoolGroup, view: Observation) -> str:
        """Carry out what is decided. Returns how the growth policy fails, if it does."""
        dealt = self._dealt(group)
        plans = [plan for _, plan in dealt]
        payers = {counted_id(job): payer(job.account, job.user) for job in view.jobs}
        # Before anything of it is done: a new daemon goes by the journal (`recalled`).
        nodes = self._journal(group, dealt, payers, view)
        covered = {job for plan in plans for job in plan.covered}
        self._counted[group.name].add(covered, nodes, view.jobs)
        self._let_go(group)
        self._hold(group, frozenset(nodes))
        self._start(nodes)
        self._leave(group, [leave.node for plan in plans for leave in plan.leaves])
        self._weigh(group, view)
        return next((plan.unserved or "" for plan in plans if plan.failed), "")

    def _dealt(self, group: PoolGroup) -> Sequence[tuple[GroupSnapshot, ScalingPlan]]:
        """What is decided."""
        now = group.now
        if not isinstance(now.growth, OwnGrowth):
            return split_demand(now)
        try:
            # A policy of another package may never answer, and the other groups wait behind it.
            return self._asked.do(group.name, lambda: split_demand(now), PATIENCE)
        except TimeoutError as error:
            why = f"growth policy {now.growth.__struct_config__.tag} fails: {error}"
            return [(now, without_growth(now, why))]

    def _journal(
        self,
        group: PoolGroup,
        dealt: Sequence[tuple[GroupSnapshot, ScalingPlan]],
        payer_of: Mapping[int, str],
        view: Observation,
    ) -> list[str]:
        """Carry the decision out; tell what is not done when that is news. Returns the nodes to
        start.
        """
        stops = tuple(pool.stop for pool in group.now.pools)
        cause = (stops, tuple((n.pools[0].name, p.unserved is not None) for n, p in dealt))
        news = self._causes.is_news(group.name, cause)
        if news:
            # Each job hears again why it waits, as that is another cause.
            self._reasons.pop(group.name, None)
        waiting = {job.id for now, _ in dealt for job in now.queue}
        self._reasons[group.name].forget_unless(waiting.__contains__)
        taken: list[str] = []
        placed = {node for _, plan in dealt for start in plan.starts for node in start.nodes}
        for now, plan in dealt:
            reason = "; ".join(reasons(now, plan))
            nodes = _chosen(group, plan, {*taken, *placed})
            taken += nodes
            self.charge(now, nodes, payer_of)
            self._guard.bought(nodes, now.queue, view)
            if plan.starts or plan.leaves or (news and plan.unserved):
                nodes += [leave.node for leave in plan.leaves]
                names = (group.name, *(pool.name for pool in now.pools))
                pools = dict.fromkeys(pool_subject(name) for name in names)
                detail = {"now": msgspec.to_builtins(now), "plan": msgspec.to_builtins(plan)}
                self._site.record(CORRELATION, KIND, (*pools, *nodes), reason, detail)
                level = logging.WARNING if plan.failed else logging.INFO
                log.log(
                    level, "policy group=%s nodes=%s reason=%s", group.name, compress(nodes), reason
                )
            self.tell_jobs(group.name, now.queue, reason, anew=bool(plan.starts))
        return taken

    def charge(self, now: GroupSnapshot, nodes: Sequence[str], payer_of: Mapping[int, str]) -> None:
        """Write down who pays machines that are started ahead: those who wait for them."""
        if not nodes or not self._site.config.policies.payer_budgets:
            return
        known = frozenset(now.covered)
        fresh = [job for job in now.queue if job.id not in known] or now.queue
        of = parts((payer_of.get(j.id, ""), j.nodes * max(j.times, 1)) for j in fresh)
        self._site.ledger.books.want(dict.fromkeys(nodes, of), self._site.now())

    def tell_jobs(
        self, group: str, queue: Sequence[PendingJob], reason: str, *, anew: bool
    ) -> None:
        """Each waiting job hears once why it waits, and of each start."""
        if not reason:
            return
        reasons = self._reasons[group]
        waiting = (job.id for job in queue if reasons.is_news(job.id) or anew)
        # Lazily, as jobs beyond the limit have yet to hear it.
        if jobs := tuple(f"job:{job}" for job in dict.fromkeys(islice(waiting, JOBS_TOLD))):
            self._site.record(CORRELATION, "awaited", jobs, reason)

    def _let_go(self, group: PoolGroup) -> None:
        """Holds that hold nothing: of nodes that are up, and where Slurm may start nodes again."""
        if group.loose:
            holds.release(self._site, group.loose, UpOrComing(), POLICY)
        if holds_back(group.now.growth):
            return
        for pool in group.now.pools:
            if pool.stop is None and group.held[pool.name]:
                nodes = tuple(group.held[pool.name])
                holds.release(self._site, nodes, MayStart(), POLICY)

    def _hold(self, group: PoolGroup, chosen: Set[str]) -> None:
        """Keep back what Slurm is not to start by itself; a hold's reason follows the cause."""
        for pool in group.now.pools:
            back = holds.BY_POLICY if holds_back(group.now.growth) else None
            why: AnyCause | None = pool.stop or back
            if why is None:
                continue
            nodes = [node for node in group.unheld[pool.name] if node not in chosen]
            nodes += [node for node, cause in group.held[pool.name].items() if cause != why]
            if nodes:
                holds.hold_back(self._site, nodes, why)
                self._site.record(CORRELATION, "held-back", (*nodes, pool_subject(pool.name)), why)

    def _start(self, nodes: Sequence[str]) -> None:
        """Let go of these nodes and power them up."""
        if not nodes:
            return
        back = {row.scope for row in self._site.ledger.exclusions.holds() if row.kind == POLICY}
        held = [node for node in nodes if node in back]
        if held:
            # First, by what slurmctld says now: a node that is powered up drained stays so.
            holds.release(self._site, held, PoliciesStartIt(), POLICY)
        node_updates.power_up(self._site.slurm, nodes)

    def _leave(self, group: PoolGroup, nodes: Sequence[str]) -> None:
        """Slurm lets the jobs of a node end before it powers it down, also one that came since."""
        if not nodes:
            return
        stops = {pool.name: pool.stop for pool in group.now.pools}
        kept = holds.BY_POLICY if holds_back(group.now.growth) else None
        causes = {node: stops[self._site.pool_of[node].name] or kept for node in nodes}
        # All nodes of a reason in one transaction, as each transaction syncs the disk.
        for why in dict.fromkeys(causes.values()):
            if why is not None:
                holds.hold_back(self._site, [n for n in nodes if causes[n] == why], why)
        node_updates.power_down_when_idle(self._site.slurm, nodes)

    def _weigh(self, group: PoolGroup, view: Observation) -> None:
        """Idle machines by the order of the policy, all others behind them; only what differs."""
        wanted: dict[str, int] = {}
        for pool in group.now.pools:
            if pool.rules.order is not None:
                base = self._weights[pool.name]
                rest = dict.fromkeys(self._site.pools[pool.name].nodes, base + LEVELS)
                idle = group.idle[pool.name]
                wanted |= rest | weights(pool.rules, idle, group.now.now, base, LEVELS)
        known = view.nodes
        changed = {n: w for n, w in wanted.items() if n in known and known[n].weight != w}
        if changed:
            node_updates.set_weights(self._site.slurm, changed)


def _chosen(group: PoolGroup, plan: ScalingPlan, taken: Set[str]) -> list[str]:
    """The nodes to start: those that the plan names, or the first ones of each pool that are not
    ``taken``.
    """
    nodes: list[str] = []
    for start in plan.starts:
        if start.nodes:
            nodes += start.nodes
            continue
        gone = {*taken, *nodes}
        free = [node for node in group.startable[start.pool] if node not in gone]
        nodes += free[: start.machines]
    return nodes


def reasons(now: GroupSnapshot, plan: ScalingPlan) -> Iterator[str]:
    """What is done, in words; where nothing is, why nothing is started."""
    yield from (f"{s.machines} more in pool {s.pool}: {s.reason}" for s in plan.starts)
    if plan.leaves:
        yield f"{len(plan.leaves)} may go: {plan.leaves[0].reason}"
    if plan.unserved:
        yield plan.unserved
    elif not (plan.starts or plan.leaves):
        yield from dict.fromkeys(
            f"nothing is started in pool {pool.name}: {pool.stop}"
            for pool in now.pools
            if pool.stop
        )


def recalled(site: Site, group: str) -> CoveredJobs:
    """The jobs that were counted before this daemon started, by the journal: jobs that are gone
    since do no harm.
    """
    jobs: set[int] = set()
    started: dict[str, frozenset[int]] = {}
    for decision in site.ledger.decisions.about(pool_subject(group), RECALLED):
        if (was := _plan_of(decision)) is not None:
            leaving = {leave.node for leave in was.leaves}
            nodes = [n for n in decision.subjects if n in site.pool_of and n not in leaving]
            started |= dict.fromkeys(nodes, frozenset(was.covered) - jobs)
            jobs.update(was.covered)
    return CoveredJobs(jobs, started)


def _plan_of(decision: Decision) -> ScalingPlan | None:
    plan = (decision.detail or {}).get("plan")
    try:
        return msgspec.convert(plan, ScalingPlan)
    except msgspec.ValidationError:
        # Another release wrote it, or it has no plan. Growth must not stop for that.
        return None
