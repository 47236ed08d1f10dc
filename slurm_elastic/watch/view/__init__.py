"""Joins ledger, Slurm and configuration to the value that ``status`` shows. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.config.pool_rules import paid_reservations
from slurm_elastic.model.causes.stops import CloudBlocked
from slurm_elastic.model.cluster import Pool, Usage
from slurm_elastic.model.directive import Directive, describe, limit_changes
from slurm_elastic.model.memory import REFUSED, UNOPENED, Launch, Machine
from slurm_elastic.model.requeued_jobs import with_waits
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.clock_guard import wrong_clock
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.policies.repair.strays import stray, unending
from slurm_elastic.policies.waits.wait import Waits
from slurm_elastic.state.heartbeat import alive, latest
from slurm_elastic.watch.causes import SLURM, service_errors
from slurm_elastic.watch.out_of_reach import advice, unendable
from slurm_elastic.watch.view import not_now
from slurm_elastic.watch.view.attention import attention
from slurm_elastic.watch.view.budgets import budget_view, payer_budget_view
from slurm_elastic.watch.view.checkpoints import checkpoints_view
from slurm_elastic.watch.view.departing import (
    departure_phrase,
    kept_phrase,
    replacements_phrase,
    taken_phrases,
)
from slurm_elastic.watch.view.kept import kept_views, suspend_keys, waits_of
from slurm_elastic.watch.view.next_action import (
    CALM,
    POWERED_DOWN,
    Outlook,
    node_note,
    node_states,
)
from slurm_elastic.watch.view.queue import in_order, queue_view, site_nodes
from slurm_elastic.watch.view.reserved import reserved_views
from slurm_elastic.watch.view.rows import (
    CloudRow,
    DaemonView,
    DirectiveView,
    Facts,
    InstanceView,
    JobView,
    LaunchView,
    NodesView,
    PoolView,
    SiteView,
    StatusView,
    TotalView,
)

__all__ = ["Facts", "StatusView", "status_view"]

DAY_S = 86400.0  # the totals count machines that ended within this time


class _Join:
    """The facts, sorted by node, pool and cloud."""

    def __init__(self, config: Config, facts: Facts) -> None:
        self.config = config
        self.facts = facts
        self.pools = domain_pools(config, expand)
        self.pool_by_name = {p.name: p for p in self.pools}
        self.pool_of = {name: pool for pool in self.pools for name in pool.nodes}
        self.rank_of = {name: rank for rank, name in enumerate(self.pool_of)}
        self.clouds = {c.name: c for c in config.clouds}
        # With PrivateData=nodes Slurm lists no node at all to this user.
        hidden = not facts.nodes and "nodes" in facts.private
        self.nodes = None if hidden else facts.nodes
        self._outlooks: dict[str, Outlook] = {}
        self._never_suspended = suspend_keys(config, facts)
        self.live = [m for m in facts.machines if not m.has_ended]
        self.usage: Usage = usage(
            (*self.live, *facts.stopped), facts.open_launches,
            paid=paid_reservations(config, facts.now),
        )  # fmt: skip
        self.hold_of = not_now.strongest_holds(facts.holds)
        self.jobs_of: defaultdict[str, list[SlurmJob]] = defaultdict(list)
        for job in facts.jobs:
            for name in job.nodes:
                self.jobs_of[name].append(job)
        self.newest: dict[str, Machine] = {}
        for machine in self.live:
            other = self.newest.get(machine.instance.node)
            if machine.is_wanted and (other is None or _order(other) < _order(machine)):
                self.newest[machine.instance.node] = machine
        stale = config.timings.daemon_timeout
        self.checkpoints = (
            checkpoints_view(facts.checkpoints, facts.machines, facts.now, stale)
            if facts.checkpoints
            else None
        )
        self.taken = taken_phrases(self.checkpoints, self.jobs_of)
        with_machine = {m.instance.node for m in self.live}
        if facts.ledger_error is not None:
            # Only the ledger tells which nodes lack a machine, so report none without it.
            with_machine |= self.pool_of.keys()
        self.state_of: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}
        for pool in self.pools:
            states = node_states(pool.nodes, self.nodes, self.hold_of, with_machine)
            self.state_of |= states
            self._counts[pool.name] = Counter(states.values())
        self.shut_of = {
            pool.name: not_now.shut_reason(pool, self.state_of, facts.holds) for pool in self.pools
        }

    def outlook(self, cloud: str) -> Outlook:
        """Return the outlook of this cloud's machines, which is built once for each cloud."""
        if cloud not in self._outlooks:
            self._outlooks[cloud] = Outlook(
                self.config, self.clouds.get(cloud), self.facts.now, self._never_suspended
            )
        return self._outlooks[cloud]

    def node(self, name: str) -> SlurmNode | None:
        return (self.facts.nodes or {}).get(name)

    def states(self, pools: Iterable[Pool]) -> dict[str, int]:
        """Count the pools' nodes by state."""
        return in_order(sum((self._counts[pool.name] for pool in pools), Counter[str]()))

    def place(self, machine: Machine) -> tuple[int, float]:
        """Return the sort key of a machine: its node's rank in the configuration, then its age."""
        return self.rank_of.get(machine.instance.node, len(self.rank_of)), machine.instance.launched

    def price_now(self, machines: Iterable[Machine]) -> float:
        """Return the machines' prices added up ($/h)."""
        return sum(m.instance.price for m in machines)


def _order(machine: Machine) -> tuple[str, str]:
    return machine.instance.generation, machine.instance.id


def status_view(config: Config, facts: Facts, waits: Waits | None = None) -> StatusView:
    """Join all readings to the value that ``status`` shows.

    ``waits``: why the jobs wait, by the whole configuration if ``config`` is a part of it.
    """
    # A cap that an operator orders opens no cloud: the file's caps alone do (conf install).
    blocked, waits = blocked_clouds(config), waits or waits_of(config, facts)
    config = with_limits(config, limit_changes(facts.directives, facts.now))
    join = _Join(config, facts)
    view = StatusView(
        at=facts.now,
        cluster=config.cluster.name,
        daemon=_daemon(config, facts),
        slurm_error=facts.slurm_error,
        ledger_error=facts.ledger_error,
        site=_site(join),
        clouds=tuple(_cloud(join, cloud, blocked.get(cloud.name)) for cloud in config.clouds),
        pools=tuple(_pool(join, pool) for pool in join.pools),
        nodes=_nodes(join),
        instances=tuple(_instance(join, m) for m in sorted(join.live, key=join.place)),
        launches=tuple(_launch(launch, facts.now) for launch in facts.open_launches),
        cool_downs=tuple(not_now.cool_down(c, facts.now) for c in facts.cool_downs),
        holds=not_now.holds(facts, join.hold_of.values(), join.state_of),
        totals=_totals(join),
        checkpoints=join.checkpoints,
        checkpoints_error=facts.checkpoints_error,
        breakers=tuple(not_now.breaker(b, config, facts) for b in facts.breakers),
        private=facts.private,
        directives=tuple(_directive(d, facts.now) for d in facts.directives),
        clock=_clock(facts, join.live),
        budgets=(
            *(budget_view(config, facts.now, *item) for item in facts.spent.items()),
            *(payer_budget_view(config, facts.now, *item) for item in facts.payers.items()),
        ),
        queue=None
        if facts.slurm_error is not None
        else queue_view(with_waits(facts.jobs, facts.requeued), facts.now, waits),
        head=facts.head,
        kept=kept_views(config, facts, waits) if facts.slurm_error is None else (),
        unhelped=facts.obstacles.unhelped,
        site_nodes=site_nodes(join.nodes, join.pool_of),
        # A user who sees only a part of the machines would see too little use.
        reserved=()
        if facts.private or facts.ledger_error
        else reserved_views(config, join.live, facts.now),
        other_clusters=tuple(cluster.name for cluster in config.clusters),
    )
    return replace(view, attention=attention(view))


def _directive(directive: Directive, now: float) -> DirectiveView:
    return DirectiveView(
        number=directive.number,
        told=f"{describe(directive, now)}{replacements_phrase(directive)}",
        who=directive.who,
        since=directive.since,
        starts=directive.starts,
        until=directive.until,
        holds=directive.holds(now),
        stops=directive.word.blocks_starts,
    )


def _clock(facts: Facts, machines: Iterable[Machine]) -> str | None:
    """Return a sentence if the clock is behind times that slurm-elasticd recorded, or was ahead of
    a cloud's, else None.
    """
    times = [m.instance.launched for m in machines] + list((facts.heartbeat or ())[:1])
    trouble = wrong_clock(times, facts.now, facts.clock_lead_s)
    return str(trouble) if trouble else None


def _daemon(config: Config, facts: Facts) -> DaemonView:
    beat = latest(facts.heartbeat, facts.mark.beat if facts.mark else None)
    beat_at, pid = beat or (None, None)
    clouds = {cloud.name for cloud in config.clouds}
    age = None if beat_at is None else max(0.0, facts.now - beat_at)
    stands_by = facts.head is not None and facts.mark is not None and facts.mark.stands_by
    trouble = None if stands_by else facts.end_only  # the head row reports a standby
    return DaemonView(
        alive=alive(beat, facts.process_found, facts.now, config.timings.daemon_timeout),
        heartbeat=beat_at,
        age=age,
        pid=pid,
        process_found=facts.process_found,
        pending_requests=facts.pending,
        problems=tuple(
            h.dated_error(max(facts.now - h.checked, 0.0))
            for h in service_errors(facts.health, clouds, {SLURM} if facts.slurm_error else set())
        ),
        end_only=str(trouble) if trouble else None,
        trouble=trouble,
    )


def _cloud(join: _Join, cloud: CloudSettings, blocked: CloudBlocked | None) -> CloudRow:
    pools = [p for p in join.pools if p.cloud == cloud.name]
    health = next((h for h in join.facts.health if h.name == cloud.name), None)
    scope = f"cloud:{cloud.name}"
    machines = [m for m in join.live if m.instance.cloud == cloud.name]
    return CloudRow(
        name=cloud.name,
        location=str(cloud.location),
        provider=cloud.provider,
        partition=cloud.partition_name,
        nodes=sum(len(p.nodes) for p in pools),
        states=join.states(pools),
        machines=join.usage.nodes.get(scope, 0),
        limit=min((n for n in (cloud.limits.nodes, cloud.room) if n is not None), default=None),
        price_now=join.price_now(machines),
        price_worst=join.usage.dollars_per_hour.get(scope, 0.0),
        price_limit=cloud.limits.dollars_per_hour,
        blocked=str(blocked) if blocked else None,
        problem=health.unnamed_error if health and health.error else None,
        checked=health.checked if health else None,
        unendable=unendable(health, machines),
        do=advice(health, machines, cloud.reach_advice) if health and health.error else "",
        refused=health is not None and health.code == REFUSED,
        unopened=health is not None and health.code == UNOPENED,
    )


def _site(join: _Join) -> SiteView:
    limits = join.config.limits
    return SiteView(
        machines=join.usage.nodes.get("", 0),
        limit=limits.nodes,
        price_now=join.price_now(join.live),
        price_worst=join.usage.dollars_per_hour.get("", 0.0),
        price_limit=limits.dollars_per_hour,
    )


def _pool(join: _Join, pool: Pool) -> PoolView:
    return PoolView(
        name=pool.name,
        cloud=pool.cloud,
        nodes=compress(pool.nodes),
        count=len(pool.nodes),
        states=join.states([pool]),
        machines=join.usage.nodes.get(f"pool:{pool.name}", 0),
        limit=pool.max_nodes,
        markets=tuple(str(m) for m in pool.markets),
        stopped=sum(m.pool == pool.name for m in join.facts.stopped),
        shut=join.shut_of[pool.name],
    )


def _nodes(join: _Join) -> tuple[NodesView, ...]:
    """Group the nodes by cloud, state and reason, without the powered-down ones."""
    groups: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pool in join.pools:
        for name in pool.nodes:
            state = join.state_of.get(name, POWERED_DOWN)
            if state != POWERED_DOWN:
                note = node_note(state, join.node(name), join.hold_of.get(name), join.facts.now)
                groups[pool.cloud, state, note].append(name)
    return tuple(
        NodesView(state=state, cloud=cloud, nodes=compress(names), count=len(names), note=note)
        for (cloud, state, note), names in groups.items()
    )


def _instance(join: _Join, machine: Machine) -> InstanceView:
    instance, now = machine.instance, join.facts.now
    jobs = [j for j in join.jobs_of[instance.node] if machine.is_wanted]
    next_step = _next(join, machine, jobs)
    return InstanceView(
        id=instance.id,
        node=instance.node,
        pool=machine.pool,
        cloud=instance.cloud,
        instance_type=instance.instance_type,
        zone=instance.zone,
        market=str(instance.market),
        price=instance.price,
        state=str(instance.state),
        address=instance.address,
        launched=instance.launched,
        age=max(0.0, now - instance.launched),
        cost=machine.lease.cost(now),
        jobs=tuple(_job(j) for j in jobs),
        next=next_step,
        calm=next_step.startswith(CALM),
    )


def _job(job: SlurmJob) -> JobView:
    states = ",".join(sorted(job.states))
    return JobView(id=job.id, user=job.user, state=states, label=job.label)


def _next(join: _Join, machine: Machine, jobs: Sequence[SlurmJob]) -> str:
    """Return a phrase: the next thing that happens to the machine.

    The order of the tests matters: a double or a stray is ended whatever Slurm says of its node.
    """
    instance, now = machine.instance, join.facts.now
    newest = join.newest.get(instance.node, machine) if instance.node else machine
    if machine.is_wanted and newest is not machine:
        return f"double of {newest.instance.id}: one of them will be deleted"
    stray_reason = stray(instance, join.clouds, join.pool_of)
    if stray_reason and (
        instance.cloud not in join.clouds or (machine.is_wanted and not instance.node)
    ):
        return f"stray: {stray_reason}"
    if (unending_reason := unending(machine.retired_at, now)) is not None:
        return f"stray: {unending_reason}"
    pool = join.pool_by_name.get(machine.pool)
    if join.nodes is None and machine.is_wanted and machine.missed_listings == 0:
        hidden = join.facts.nodes is not None
        return f"unknown: Slurm {'does not show its nodes' if hidden else 'does not answer'}"
    node = join.node(instance.node)
    orders = join.facts.directives
    departure = departure_phrase(orders, machine, node, now) if node else ""
    if node and not departure:
        departure = kept_phrase(orders, machine, node, now)
    leaving = join.taken.get(instance.node, departure)
    return join.outlook(instance.cloud).of(
        machine, node, jobs, pool.max_age if pool else None, leaving
    )


def _launch(launch: Launch, now: float) -> LaunchView:
    return LaunchView(
        generation=launch.generation,
        request=launch.request,
        pool=launch.pool,
        offer=launch.offer.key,
        nodes=compress(launch.nodes),
        count=len(launch.nodes),
        age=max(0.0, now - launch.created),
    )


def _totals(join: _Join) -> tuple[TotalView, ...]:
    by_market: defaultdict[str, list[Machine]] = defaultdict(list)
    for machine in join.facts.machines:
        if machine.ended_at is None or machine.ended_at >= join.facts.now - DAY_S:
            by_market[str(machine.instance.market)].append(machine)
    return tuple(_total(join, market, by_market[market]) for market in sorted(by_market))


def _total(join: _Join, market: str, machines: Sequence[Machine]) -> TotalView:
    live = [m for m in machines if not m.has_ended]
    ended = [m for m in machines if m.has_ended]
    return TotalView(
        market=market,
        machines=len(live),
        price_now=sum(m.instance.price for m in live),
        cost_live=sum(m.lease.cost(join.facts.now) for m in live),
        cost_ended=sum(m.lease.cost(join.facts.now) for m in ended),
        ended=len(ended),
    )
