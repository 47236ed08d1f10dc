"""One observation of Slurm for the growth policies, and a pool's nodes sorted into classes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.age import known_age_s
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.holds import is_held
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.growth.capacity import OwnGrowth, SemiElastic
from slurm_elastic.policies.growth.release import Flagged
from slurm_elastic.policies.growth.scaling import IdleInstance, PoolSnapshot
from slurm_elastic.policies.growth.usable import in_maintenance
from slurm_elastic.policies.money.account_budgets import Overdrawn
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.state.ledger import Machine

START_GRACE_S = 30
"""A job may wait beside an idle machine for this many seconds. After that slurmctld evidently does
not start the job on it (memory, reservations, limits: we do not know why).
"""
UNLIMITED_JOB_S = 10 * 365 * 86400
"""A job without a time limit is assumed to end after this many seconds."""


def is_fresh(since: float, now: float) -> bool:
    """Whether ``since`` was a moment ago. A time far ahead is from before the clock was set back,
    and would else be fresh for as long as the step.
    """
    age_s = known_age_s(since, now, START_GRACE_S)
    return age_s is not None and age_s < START_GRACE_S


class QueueFacts(Struct, frozen=True, kw_only=True):
    """Restrictions on the nodes of waiting jobs, in addition to the reason that Slurm reports.

    ``excluded``: by job, the nodes that it excludes. ``tasks``: by job with licences, the number of
    tasks that free licences allow. ``max_times``: by partition, its time limit (s; None: no
    limit). ``fixed_arrays``: arrays whose other tasks have the limit that Slurm gave to the first
    task. ``closed_partitions``: partitions that start no job.
    """

    reservations: tuple[Reservation, ...] = ()
    excluded: Mapping[int, tuple[str, ...]] = {}
    tasks: Mapping[int, int] = {}
    max_times: Mapping[str, float | None] = {}
    fixed_arrays: frozenset[int] = frozenset()
    closed_partitions: frozenset[str] = frozenset()


class Observation(Struct, frozen=True, kw_only=True):
    """The state of Slurm and the ledger at ``at`` (Unix time, s).

    ``machines``: by node. ``policy``, ``capacity``: holds of growth policies and for lack of
    capacity, by node. ``stops``: by pool, why nothing may start. ``closed``: nodes of other pools
    that operators have closed. ``over``: by scope, exhausted budgets of accounts and users, who get
    no new machine of a public cloud. ``pool_nodes``: the present ``max_nodes`` by pool. ``facts``:
    further restrictions. ``stopped``: nodes that have a stopped machine. ``unhelped``: jobs that
    growth does not count. ``machines_by_host``: how many machines each host (cloud and zone) has,
    if the cloud's zones are hosts. ``reservations``: those of Slurm, if pools keep warm machines.
    """

    at: int
    nodes: Mapping[str, SlurmNode]
    jobs: Sequence[SlurmJob]
    machines: Mapping[str, Machine]
    policy: Mapping[str, Exclusion]
    capacity: frozenset[str]
    stops: Mapping[str, AnyCause]
    over: Mapping[str, Overdrawn]
    pool_nodes: Mapping[str, int | None]
    closed: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    facts: QueueFacts = QueueFacts()
    unhelped: frozenset[int] = frozenset()
    machines_by_host: Mapping[tuple[str, str], int] = {}
    reservations: tuple[Reservation, ...] = ()


class PoolNodes:
    """One pool's nodes, sorted into classes: ``off`` (may be started), ``unheld`` and ``held``
    (powered down, without or with a policy's hold), ``needless_holds``, ``booting``, ``up``, and
    among the latter ``busy`` and ``idle``.
    """

    def __init__(self, site: Site, view: Observation, pool: Pool) -> None:
        self.pool, self._view, self._rules = pool, view, site.rules[pool.name]
        boots_until = view.at + self._rules.boot
        maintained = in_maintenance(view.reservations, view.at, boots_until)
        usable_count = sum(name not in maintained for name in pool.nodes)
        # No job starts on a node in maintenance, so a warm machine would wait there for nothing.
        if usable_count < self._rules.min_idle:
            self._rules = replace(self._rules, min_idle=usable_count)
        self.off: list[str] = []
        self.unheld: list[str] = []
        self.held: dict[str, AnyCause] = {}
        self.needless_holds: list[str] = []
        self.booting: list[str] = []
        self.up: list[str] = []
        self.busy: list[str] = []
        self._idle: list[IdleInstance] = []
        self._starting = 0
        self._young_count: int | None = None
        for name in pool.nodes:
            if name in view.nodes:
                self._sort(view.nodes[name])
        # A stopped machine starts sooner than a fresh one, and costs its disk until it starts.
        self.off.sort(key=lambda name: (name in maintained, name not in view.stopped))

    def now(self, running: Sequence[SlurmJob], *, named: bool = False) -> PoolSnapshot:
        """The pool's snapshot for the policies. ``named``: include the names of the nodes that may
        be started.
        """
        stop = self._view.stops.get(self.pool.name)
        node_names = set(self.pool.nodes)
        running_here = sum(not node_names.isdisjoint(job.nodes) for job in running) + self._starting
        asks = isinstance(self._rules.growth, SemiElastic | OwnGrowth)
        is_flagged = isinstance(self._rules.release, Flagged)
        return PoolSnapshot(
            name=self.pool.name,
            rules=self._rules,
            cloud=self.pool.cloud,
            room=self._room(),
            total_room=None if self.pool.max_booting is None else self._total_room(),
            stop=stop,
            off=compress(self.off) if named else "",
            idle=self.idle,
            # The journal contains node names only if the pool's policy can ask for them.
            taken=tuple(self.busy) if is_flagged else (),
            promised=0 if is_flagged else len(self.busy),
            booting=len(self.booting),
            # A completing node has no job, but it is not idle either.
            running=max(running_here, int(bool(self.busy))),
            free=tuple(sorted(self.free(running))) if asks else (),
        )

    @property
    def idle(self) -> tuple[IdleInstance, ...]:
        """Machines that have no job and that ``give`` has given to no job."""
        return tuple(self._idle)

    @functools.cached_property
    def reachable(self) -> frozenset[str]:
        """The nodes that can serve a job now or later."""
        return frozenset((*self.off, *self.booting, *self.up))

    def free(self, running: Iterable[SlurmJob]) -> Iterable[int]:
        """Yield for each machine when it is expected to be free (Unix time), by the time limits of
        its jobs.
        """
        now, machines = self._view.at, self._view.machines
        yield from (now for _ in self._idle)
        for name in self.booting:
            launched = machines[name].instance.launched if name in machines else now
            yield int(launched) + self._rules.boot
        ends = dict.fromkeys(self.busy, now)
        for job in running:
            ends_at = job.ends_at_latest
            if ends_at is None:
                # A suspended job has a limit and no known end: its time stands still.
                ends_at = job.start + UNLIMITED_JOB_S if job.limit is None else now + job.limit
            end = int(ends_at)
            ends.update({n: max(ends[n], end) for n in job.nodes if n in ends})
        yield from ends.values()

    def count_fresh(self, now: int, submit: int, avoids: Set[str] = frozenset()) -> int:
        """Count the idle machines that slurmctld may be about to allocate to a job that was
        submitted at ``submit``.
        """
        if avoids:
            idle = [r for r in self._idle if r.node not in avoids]
            is_new = is_fresh(submit, now)
            return sum(is_new or is_fresh(r.since, now) for r in idle)
        if is_fresh(submit, now):
            return len(self._idle)
        if self._young_count is None:
            self._young_count = sum(is_fresh(r.since, now) for r in self._idle)
        return self._young_count

    def give(self, count: int, now: int, submit: int, avoids: Set[str] = frozenset()) -> int:
        """Mark up to ``count`` idle machines as busy, because slurmctld is about to start a job on
        them. Return how many were marked.
        """
        candidates = [
            r
            for r in self._idle
            if (is_fresh(submit, now) or is_fresh(r.since, now)) and r.node not in avoids
        ]
        given_machines = candidates[: max(count, 0)]
        given_nodes = {r.node for r in given_machines}
        self._idle = [r for r in self._idle if r.node not in given_nodes]
        self._young_count = None
        self.busy += [r.node for r in given_machines]
        self._starting += bool(given_machines)
        return len(given_machines)

    def _room(self) -> int:
        total, at_once = self._total_room(), self.pool.max_booting
        return total if at_once is None else max(min(total, at_once - len(self.booting)), 0)

    def _total_room(self) -> int:
        max_nodes = self._view.pool_nodes.get(self.pool.name, self.pool.max_nodes)
        machine_count = len(self._idle) + len(self.busy) + len(self.booting)
        return max(
            len(self.off) if max_nodes is None else min(len(self.off), max_nodes - machine_count), 0
        )

    def _sort(self, node: SlurmNode) -> None:
        name, node_phase = node.name, phase(node)
        row = self._view.policy.get(name)
        has_no_capacity = name in self._view.capacity
        is_ours = is_held(node) and (row is not None or has_no_capacity)
        if is_down(node) or (is_drained(node) and not is_ours):
            return  # Slurm has marked it down, or an admin has drained it
        if node_phase in (Phase.POWERED_DOWN, Phase.POWERING_DOWN):
            if row is None:
                self.unheld.append(name)
            else:
                self.held[name] = row.cause
            # A closed node stays drained when its policy's hold is released, so no job could use
            # its machine.
            may_start = not has_no_capacity and name not in self._view.closed
            if node_phase is Phase.POWERED_DOWN and may_start:
                self.off.append(name)
        elif "POWER_DOWN" not in node.states:  # else Slurm starts no new job on it
            self._sort_up(node, node_phase)
            if row is not None:
                self.needless_holds.append(name)

    def _sort_up(self, node: SlurmNode, node_phase: Phase) -> None:
        if node_phase is Phase.POWERING_UP:
            self.booting.append(node.name)
            return
        self.up.append(node.name)
        if is_busy(node):
            self.busy.append(node.name)
        else:
            self._add_idle(node)

    def _add_idle(self, node: SlurmNode) -> None:
        machine = self._view.machines.get(node.name)
        if machine is None:
            return
        started = machine.instance.launched
        since = min(max(node.last_busy, node.boot_time, started), self._view.at)
        place = machine.instance.cloud, machine.instance.zone
        self._idle.append(
            IdleInstance(
                node.name,
                min(int(started), self._view.at),
                int(since),
                self._view.machines_by_host.get(place, 0),
            )
        )
