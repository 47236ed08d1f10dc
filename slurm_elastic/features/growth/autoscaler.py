"""The site's policies on real Slurm: measure, decide (``policies.growth.scaling``), act.

Nodes that a growth policy may start are held back from Slurm (``holds``), because Slurm would
start a node for any waiting job. The autoscaler starts a node in two steps: it releases the hold,
and then it powers the node up. It removes a node by holding it and powering it down when its jobs
have ended. All changes use scontrol, batched by hostlist. Slurm's SuspendTime is the fail-safe.
Each decision is journalled in the ledger with its measurements, from which ``replay`` computes the
same decision.

If the configuration has no policies, the autoscaler only removes their remaining holds.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from functools import partial
from itertools import islice

import msgspec
from msgspec.structs import replace

from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config.pool_rules import inert, may_grow
from slurm_elastic.controller import holds
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.launching.budget import apply_directives
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.growth import growth_off_spot, growth_stays
from slurm_elastic.features.growth.covered_jobs import CoveredJobs
from slurm_elastic.features.growth.growth_rooms import with_purchase_rooms
from slurm_elastic.features.growth.kept_machines import keep_idle_machines
from slurm_elastic.features.growth.observe import PoolGroup, observe, pool_groups
from slurm_elastic.features.growth.pool_nodes import Observation
from slurm_elastic.features.growth.purchase_guard import PurchaseGuard
from slurm_elastic.features.growth.quiet_looks import (
    QuietLooks,
    orders_of,
    seconds_to_work,
    state_directory,
)
from slurm_elastic.features.growth.started_together import StartedTogether
from slurm_elastic.features.growth.waste_meter import WasteMeter
from slurm_elastic.features.money import budget_enforcement, spent_budgets
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import GrowthStopped, StoppedPool
from slurm_elastic.model.causes.growth import GrowthPlanned, PoolGrowth
from slurm_elastic.model.causes.holds import MayStart, NoPoliciesLeft, PoliciesStartIt, UpOrComing
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.directive import kept_replacements
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.policies.clock_guard import age
from slurm_elastic.policies.growth import foreign
from slurm_elastic.policies.growth.capacity import OwnGrowth
from slurm_elastic.policies.growth.dealing import split_demand, take_shared, tasks_on_machines
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    PendingJob,
    ScaleUp,
    ScalingPlan,
    holds_back,
    weights,
    without_growth,
)
from slurm_elastic.policies.money.account_budgets import parts, payer
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.slurm.conf.fragment import slurm_weights
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision, Health

log = logging.getLogger(__name__)

CORRELATION = "policy"
KIND = "policy"
HEALTH = "growth policies"
POLICY_TIMEOUT_S = 10.0
"""Seconds in which the policies of another package must answer."""
PAUSE_PER_DURATION = 20.0
"""After a look the task pauses this many times as long as it took (see ``rest_after``)."""
WEIGHT_LEVELS = 9
"""The weights that a pool's nodes use above its base; the bases of two pools are 10 apart."""
MAX_RECALLED_DECISIONS = 50
"""At most this many past decisions of a group restore the covered jobs when the daemon starts."""
MAX_NOTIFIED_JOBS = 100
"""A decision is recorded for at most this many waiting jobs (``explain JOBID``)."""


def join(site: Site) -> Extensions:
    """Join at every site: each may have growth policies."""
    together = StartedTogether()
    # Before the first request is served: machines of an open start may still be launched.
    with contextlib.suppress(sqlite3.Error):  # launches may be partial, as without this record
        together.add(recalled_starts(site))
    return Extensions(
        parts=[("policies", lambda worker: Autoscaler(site, worker, together))],
        split_requests=[together.complete, partial(growth_off_spot.split, site)]
        if may_grow(site.config)
        else [],
    )


class Autoscaler(Part):
    """``task``: the periodic task that the daemon runs. ``together``: gets the machines that start
    for one job.
    """

    def __init__(
        self, site: Site, worker: Executor, together: StartedTogether | None = None
    ) -> None:
        self._site, self._together = site, together or StartedTogether()
        period = site.config.policies.poll_interval
        self.task = SiteTask(
            site, worker, self._look_if_needed, "policies", period=period, pace=PAUSE_PER_DURATION
        )
        self._calls = InTime()
        self._guard = PurchaseGuard(site)
        self._waste = WasteMeter(site)
        policies = site.config.policies
        self._quiet = QuietLooks(
            policies.poll_interval, policies.max_poll_interval,
            state_directory(site.config.slurm.conf), site.monotonic,
        )  # fmt: skip
        self._covered_jobs: dict[str, CoveredJobs] = {}
        self._causes = ReportOnce[str]()
        self._reasons: defaultdict[str, ReportOnce[int]] = defaultdict(ReportOnce)
        self._weights = slurm_weights(site.config, tuple(site.pools.values()))

    def _look_if_needed(self) -> None:
        """Look if there are policies or budgets, in the file or by an operator's order. Otherwise
        Slurm decides alone.
        """
        site = self._site
        # Not once at the start: an operator may set a budget at any time.
        if inert(apply_directives(site.config, site.ledger, site.now())):
            self._clear()
        else:
            self.look()

    def _clear(self) -> None:
        """Undo the effects of policies that no longer exist: release their holds, and restore
        deferred jobs until none is left.
        """
        self._report_health()
        rows = [row.scope for row in self._site.ledger.exclusions.holds() if row.kind == POLICY]
        if rows:
            holds.release(self._site, rows, NoPoliciesLeft(), POLICY)
        if budget_enforcement.is_enforcing(self._site):
            budget_enforcement.enforce(self._site, (), {})

    def look(self) -> None:
        """Measure, decide and act once for all groups of pools, unless nothing has happened."""
        site = self._site
        if not self._quiet.is_needed(orders_of(site.ledger, site.now())):
            return
        if not self._covered_jobs:
            self._covered_jobs = {name: recalled(site, name) for name in site.pools}
        view = observe(site)
        view = replace(view, unhelped=self._guard.look(view))
        self._together.forget_unless_booting(view.nodes)
        budget_enforcement.enforce(site, view.jobs, view.over)
        spent_budgets.look(site, view)
        groups = [
            replace(group, now=self._waste.resolved(group.name, group.now))
            for group in pool_groups(site, view, self._covered_jobs)
        ]
        groups = with_purchase_rooms(site, view, groups, self._calls)
        self._report_health(self._serve_all(groups, view))
        partitions = {cloud.partition_name for cloud in site.clouds.values()}
        work_in_s = seconds_to_work(view.jobs, partitions, site.now())
        # Machines cost money, and their end depends on the time alone. So does the end of a
        # deferral, whose job may name other partitions until then.
        has_work = bool(view.machines or work_in_s <= 0.0 or budget_enforcement.is_enforcing(site))
        has_work = has_work or any(
            group.now.queue or _may_start_unasked(group.now) for group in groups
        )
        self._quiet.looked(is_quiet=not has_work, work_in_s=work_in_s)

    def _report_health(self, failures: Sequence[str] = ()) -> None:
        """Record the health of the growth policies, which ``status`` and ``doctor`` show."""
        error = "; ".join(dict.fromkeys(failures)) or None
        error_by_name = {row.name: row.error for row in self._site.ledger.health.all()}
        if error or error_by_name.get(HEALTH):
            health = Health(name=HEALTH, checked=self._site.now(), error=error, code="growth")
            self._site.ledger.health.report(health)

    def _serve_all(self, groups: Sequence[PoolGroup], view: Observation) -> list[str]:
        """Serve the groups one after the other. Return the growth policies' errors.

        A job may be able to use several groups. It counts only in the group with machines
        for it, so in the first group that can start machines for it.
        """
        # The machines that boot, of all groups before anything starts.
        tasks_of: dict[str, Mapping[int, int]] = {}
        for place, group in enumerate(groups if len(groups) > 1 else ()):
            unserved = group.without(find_elsewhere(groups, tasks_of, place))
            tasks_of[group.name] = tasks_on_machines(unserved.now)
        errors = []
        starts: list[ScaleUp] = []
        for place, group in enumerate(groups):
            unserved = group.without(find_elsewhere(groups, tasks_of, place))
            shared = take_shared(unserved.now.shared_rooms, starts)
            unserved = replace(unserved, now=replace(unserved.now, shared_rooms=shared))
            plans, error = self._serve(unserved, view)
            errors.append(error)
            starts += [start for plan in plans for start in plan.starts]
            tasks_of[group.name] = _tasks_of(plans)
        return [error for error in errors if error]

    def _serve(self, group: PoolGroup, view: Observation) -> tuple[list[ScalingPlan], str]:
        """Decide for one group and carry the decision out. Return the plans, and the growth
        policy's error, or "".
        """
        dealt = self._without_kept(self._decide(group))
        plans = [plan for _, plan in dealt]
        payers = {job.id: payer(job.account, job.user) for job in view.jobs}
        # Journal before acting. After a crash the new daemon reads from the journal which jobs
        # already have machines (`recalled`). It would otherwise start machines for them twice.
        nodes = self._journal(group, dealt, payers, view)
        covered = {job for plan in plans for job in plan.covered}
        counted = {job.id for now, _ in dealt for job in now.queue}
        begun = {job for plan in plans for job in plan.begun}
        self._covered_jobs[group.name].add(covered, nodes, counted, view.jobs, begun)
        self._release_holds(group)
        self._hold(group, frozenset(nodes))
        self._start(nodes)
        self._leave(group, [leave.node for plan in plans for leave in plan.leaves])
        kept = [node for plan in plans for node in plan.kept]
        keep_idle_machines(self._site, kept, view.nodes)
        self._set_weights(group, view)
        return plans, next((plan.unserved or "" for plan in plans if plan.failed), "")

    def _decide(self, group: PoolGroup) -> Sequence[tuple[GroupSnapshot, ScalingPlan]]:
        """Return the plans of the group, each with the snapshot that it was made from. A growth
        policy that does not answer in time yields a plan without growth.
        """
        now = group.now
        if foreign.is_ours(now):
            return split_demand(now)
        try:
            # A policy of another package may never answer. Without a time-out it would block the
            # other groups.
            return self._calls.call(group.name, lambda: split_demand(now), POLICY_TIMEOUT_S)
        except TimeoutError as error:
            error_text = f"{foreign.names(now)} fails: {error}"
        if isinstance(now.growth, OwnGrowth):
            return [(now, without_growth(now, error_text))]
        # Machines still start. Slurm's SuspendTime ends them.
        return [
            (snapshot, replace(plan, unserved=error_text, failed=True))
            for snapshot, plan in split_demand(foreign.without_releases(now))
        ]

    def _without_kept(
        self, dealt: Sequence[tuple[GroupSnapshot, ScalingPlan]]
    ) -> Sequence[tuple[GroupSnapshot, ScalingPlan]]:
        """Take machines out of the releases that an operator's order keeps for jobs to come."""
        kept = kept_replacements(self._site.ledger.directives.all(), self._site.now())
        if not kept:
            return dealt
        return [
            (now, replace(plan, leaves=tuple(row for row in plan.leaves if row.node not in kept)))
            for now, plan in dealt
        ]

    def _journal(
        self,
        group: PoolGroup,
        dealt: Sequence[tuple[GroupSnapshot, ScalingPlan]],
        payer_of: Mapping[int, str],
        view: Observation,
    ) -> list[str]:
        """Record the plans, and what prevents growth if that has changed. Return the nodes to start
        (this method starts none).
        """
        stops = tuple(pool.stop for pool in group.now.pools)
        cause = (
            stops,
            tuple(
                (snapshot.pools[0].name, plan_of_pool.unserved is not None)
                for snapshot, plan_of_pool in dealt
            ),
        )
        is_news = self._causes.is_news(group.name, cause)
        if is_news:
            # The cause has changed, so record again for each job why it waits.
            self._reasons.pop(group.name, None)
        waiting = {job.id for now, _ in dealt for job in now.queue} | group.too_long.keys()
        self._reasons[group.name].forget_unless(waiting.__contains__)
        started_nodes: list[str] = []
        placed = {node for _, plan in dealt for start in plan.starts for node in start.nodes}
        for now, plan in dealt:
            outlook = outlook_of(now, plan)
            chosen = _chosen(group, plan, {*started_nodes, *placed})
            nodes = [node for _, of_start in chosen for node in of_start]
            started_nodes += nodes
            self._together.add(chosen)
            # No job waits for warm machines, so no account pays for them.
            self.charge(now, nodes[: growth_stays.count_for_jobs(plan)], payer_of)
            self._guard.bought(nodes, now.queue, view)
            if outlook is None:
                continue
            if plan.starts or plan.leaves or (is_news and plan.unserved):
                further = growth_stays.detail_of(self._site, now, plan, nodes)
                # Any job of the group may get the machines, whichever job the plan is for.
                further |= growth_off_spot.detail_of(self._site, group.now.queue, view.jobs, chosen)
                nodes += [leave.node for leave in plan.leaves]
                names = (group.name, *(pool.name for pool in now.pools))
                pools = dict.fromkeys(pool_subject(name) for name in names)
                detail = {"now": msgspec.to_builtins(now), "plan": msgspec.to_builtins(plan)}
                detail |= further
                self._site.record(CORRELATION, KIND, (*pools, *nodes), outlook, detail)
                level = logging.WARNING if plan.failed else logging.INFO
                log.log(
                    level,
                    "policy group=%s nodes=%s reason=%s",
                    group.name,
                    compress(nodes),
                    outlook,
                )
            self.tell_jobs(group.name, now.queue, outlook, has_starts=bool(plan.starts))
        for job, end in islice(group.too_long.items(), MAX_NOTIFIED_JOBS):
            if self._reasons[group.name].is_news(job, end):
                self._site.record(CORRELATION, "awaited", (f"job:{job}",), end)
        return started_nodes

    def charge(self, now: GroupSnapshot, nodes: Sequence[str], payer_of: Mapping[int, str]) -> None:
        """Record who pays for machines that growth starts: the payers of the waiting jobs. A job
        counts with its nodes times its tasks.
        """
        if not nodes or not self._site.config.policies.payer_budgets:
            return
        covered_jobs = frozenset(now.covered)
        uncovered = [job for job in now.queue if job.id not in covered_jobs] or now.queue
        payer_shares = parts((payer_of.get(j.id, ""), j.nodes * max(j.times, 1)) for j in uncovered)
        self._site.ledger.books.record_payers(dict.fromkeys(nodes, payer_shares), self._site.now())

    def tell_jobs(
        self, group: str, queue: Sequence[PendingJob], cause: AnyCause, *, has_starts: bool
    ) -> None:
        """Record for each waiting job once why it waits. If ``has_starts``, record it again,
        because machines are started.
        """
        reasons = self._reasons[group]
        waiting = (job.id for job in queue if reasons.is_news(job.id) or has_starts)
        # A generator: `is_news` must not be called for jobs beyond the limit, because it marks a
        # job as reported.
        if jobs := tuple(f"job:{job}" for job in dict.fromkeys(islice(waiting, MAX_NOTIFIED_JOBS))):
            self._site.record(CORRELATION, "awaited", jobs, cause)

    def _release_holds(self, group: PoolGroup) -> None:
        """Release the holds of nodes up or coming, and the holds of pools in which Slurm may start
        nodes by itself again.
        """
        if group.needless_holds:
            holds.release(self._site, group.needless_holds, UpOrComing(), POLICY)
        if holds_back(group.now.growth):
            return
        for pool in group.now.pools:
            if pool.stop is None and group.held[pool.name]:
                nodes = tuple(group.held[pool.name])
                holds.release(self._site, nodes, MayStart(), POLICY)

    def _hold(self, group: PoolGroup, chosen: Set[str]) -> None:
        """Hold the nodes that Slurm must not start by itself, and update the cause of existing
        holds.
        """
        for pool in group.now.pools:
            policy_cause = holds.BY_POLICY if holds_back(group.now.growth) else None
            cause: AnyCause | None = pool.stop or policy_cause
            if cause is None:
                continue
            nodes = [node for node in group.unheld[pool.name] if node not in chosen]
            nodes += _held_for_another_cause(group.held[pool.name], cause)
            if nodes:
                holds.hold_back(self._site, nodes, cause)
                self._site.record(
                    CORRELATION, "held-back", (*nodes, pool_subject(pool.name)), cause
                )

    def _start(self, nodes: Sequence[str]) -> None:
        """Release the holds of these nodes and power the nodes up, except nodes that an operator
        has closed since the look began.
        """
        if not nodes:
            return
        state = self._site.ledger.state()
        closed = holds.find_closed_nodes(self._site, state)
        nodes = [node for node in nodes if node not in closed]
        if not nodes:
            return
        held_by_policy = {row.scope for row in state.exclusions if row.kind == POLICY}
        held = [node for node in nodes if node in held_by_policy]
        if held:
            # Release before the power-up: a node that is powered up while drained stays drained.
            # Holds are read from the ledger now, as they may have changed since the look began.
            holds.release(self._site, held, PoliciesStartIt(), POLICY)
        node_updates.power_up(self._site.slurm, nodes)

    def _leave(self, group: PoolGroup, nodes: Sequence[str]) -> None:
        """Hold the nodes and power them down when idle. Slurm waits for the jobs of a node, also
        for a job that began after our reading. A node that still has files of a job stays.
        """
        owing = {copy.node for copy in self._site.ledger.copies.owing()}
        nodes = [node for node in nodes if node not in owing]
        if not nodes:
            return
        stops = {pool.name: pool.stop for pool in group.now.pools}
        policy_cause = holds.BY_POLICY if holds_back(group.now.growth) else None
        pool_of = self._site.pool_of
        by_cause = group_by(nodes, lambda node: stops[pool_of[node].name] or policy_cause)
        # Hold all nodes of a cause in one transaction, because each transaction syncs the disk.
        for cause, held in by_cause.items():
            if cause is not None:
                holds.hold_back(self._site, held, cause)
        node_updates.power_down_when_idle(self._site.slurm, nodes)

    def _set_weights(self, group: PoolGroup, view: Observation) -> None:
        """Set the nodes' weights in Slurm where they differ: idle machines in the order of the
        policy, all other nodes of the pool after them. Slurm takes nodes without a machine last,
        and among them those with a stopped machine first.
        """
        weight_by_node: dict[str, int] = {}
        for pool in group.now.pools:
            domain, base = self._site.pools[pool.name], self._weights[pool.name]
            off = dict.fromkeys(domain.nodes, base + WEIGHT_LEVELS)
            off |= {n: base + WEIGHT_LEVELS - 1 for n in domain.nodes if n in view.stopped}
            if pool.rules.order is not None:
                idle = group.idle[pool.name]
                ordered = weights(pool.rules, idle, group.now.now, base, WEIGHT_LEVELS)
                weight_by_node |= off | ordered
            elif domain.stopped:
                weight_by_node |= off | dict.fromkeys(_nodes_with_machine(domain, view), base)
        nodes = view.nodes
        changed = {n: w for n, w in weight_by_node.items() if n in nodes and nodes[n].weight != w}
        if changed:
            node_updates.set_weights(self._site.slurm, changed)


def _nodes_with_machine(pool: Pool, view: Observation) -> list[str]:
    off = (Phase.POWERED_DOWN, Phase.POWERING_DOWN)
    return [n for n in pool.nodes if n in view.nodes and phase(view.nodes[n]) not in off]


def _held_for_another_cause(held: Mapping[str, AnyCause], cause: AnyCause) -> list[str]:
    return [node for node, held_cause in held.items() if held_cause != cause]


def find_elsewhere(
    groups: Sequence[PoolGroup], tasks_of: Mapping[str, Mapping[int, int]], place: int
) -> Counter[int]:
    """Return by job how many of its tasks have machines of other groups than the one at ``place``.
    ``tasks_of``: by group, the tasks whose machines boot or start.
    """
    name = groups[place].name
    tasks = [tasks for other, tasks in tasks_of.items() if other != name]
    # The idle machines of earlier groups are taken off the queue of later ones (``times_left``).
    tasks += [group.served for group in groups[place + 1 :]]
    count = Counter[int]()
    for of_group in tasks:
        count.update(of_group)
    return count


def _tasks_of(plans: Sequence[ScalingPlan]) -> dict[int, int]:
    """Return by job how many of its tasks have machines, or get them by these plans."""
    counts: dict[int, list[int]] = {}
    for plan in plans:
        for job, count in plan.served:
            counts.setdefault(job, []).append(count)
    # A job with nodes of several kinds is in several plans.
    return {job: min(of_job) for job, of_job in counts.items()}


def _may_start_unasked(now: GroupSnapshot) -> bool:
    """Whether growth may start machines although no job waits, for example at a time of day."""
    return not foreign.is_ours(now) or any(pool.rules.min_idle for pool in now.pools)


def _chosen(
    group: PoolGroup, plan: ScalingPlan, unavailable: Set[str]
) -> list[tuple[ScaleUp, Sequence[str]]]:
    """Return the nodes of each start: the nodes that the plan names, or the first startable nodes
    of the pool that are not ``unavailable``.
    """
    excluded = {*unavailable}
    chosen: list[tuple[ScaleUp, Sequence[str]]] = []
    for start in plan.starts:
        nodes: Sequence[str] = start.nodes
        if not nodes:
            free = [node for node in group.startable[start.pool] if node not in excluded]
            nodes = free[: start.machines]
        excluded.update(nodes)
        chosen.append((start, nodes))
    return chosen


def outlook_of(now: GroupSnapshot, plan: ScalingPlan) -> AnyCause | None:
    """Return the plan's starts and leaves, or why nothing is started; None if there is nothing to
    say.
    """
    if plan.starts or plan.leaves or plan.unserved:
        return GrowthPlanned(
            starts=tuple(
                PoolGrowth(pool=start.pool, machines=start.machines, reason=start.reason)
                for start in plan.starts
            ),
            leaving=len(plan.leaves),
            leave_reason=plan.leaves[0].reason if plan.leaves else "",
            unserved=plan.unserved or "",
        )
    stops = {pool.name: pool.stop for pool in now.pools if pool.stop}
    stopped = tuple(StoppedPool(pool=name, cause=cause) for name, cause in stops.items())
    return GrowthStopped(pools=stopped) if stopped else None


def recalled(site: Site, group: str) -> CoveredJobs:
    """Read from the journal the jobs for which an earlier daemon started machines. The first look
    removes jobs ended in between.
    """
    jobs: set[int] = set()
    begun: set[int] = set()
    started: dict[str, frozenset[int]] = {}
    for decision in site.ledger.decisions.about(pool_subject(group), MAX_RECALLED_DECISIONS):
        if (past_plan := _plan_of(decision)) is not None:
            leaving = {leave.node for leave in past_plan.leaves}
            nodes = [n for n in decision.subjects if n in site.pool_of and n not in leaving]
            started |= dict.fromkeys(nodes, frozenset(past_plan.covered) - jobs)
            jobs.update(past_plan.covered)
            begun.update(past_plan.begun)
    return CoveredJobs(jobs, started, begun)


def recalled_starts(site: Site) -> Iterator[tuple[ScaleUp, Sequence[str]]]:
    """Read from the journal the starts of an earlier daemon whose nodes may still boot, oldest
    first, each with its nodes.
    """
    for name, pool in site.pools.items():
        for decision in site.ledger.decisions.about(pool_subject(name), MAX_RECALLED_DECISIONS):
            past_plan = _plan_of(decision)
            is_young = age(decision.at, site.now()) <= site.config.longest_resume_timeout
            if past_plan is None or not is_young:
                continue
            leaving = {leave.node for leave in past_plan.leaves}
            nodes = [n for n in decision.subjects if n in pool.nodes and n not in leaving]
            yield from ((start, nodes) for start in past_plan.starts if start.pool == name)


def _plan_of(decision: Decision) -> ScalingPlan | None:
    plan = (decision.detail or {}).get("plan")
    try:
        return msgspec.convert(plan, ScalingPlan)
    except msgspec.ValidationError:
        # Another release wrote the decision, or it has no plan. Growth must not stop for that.
        return None
