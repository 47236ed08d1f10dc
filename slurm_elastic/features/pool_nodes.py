"""One look at Slurm for the growth policies: what was read, and the nodes of a pool by class."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct

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
from slurm_elastic.policies.money.account_budgets import Overdrawn
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, is_drained, phase
from slurm_elastic.state.ledger import Machine

ABOUT_TO_START = 30
"""Seconds for which a job and an idle machine may be there before they count as not for each other
(memory, reservations, limits: slurmctld knows why).
"""
FAR = 10 * 365 * 86400
"""Seconds in which a job without a limit is taken to end."""


class QueueFacts(Struct, frozen=True, kw_only=True):
    """What keeps a waiting job from nodes, beside the reason that Slurm gives. By job: the nodes
    that it ``excluded``, and as many ``tasks`` as free licences admit (only of jobs with licences).
    ``max_times`` by partition (s; None: no limit) for jobs whose limit may be over it;
    ``fixed_arrays``: those whose other tasks have the limit that Slurm gave to the first;
    ``closed_partitions`` start no job at all.
    """

    reservations: tuple[Reservation, ...] = ()
    excluded: Mapping[int, tuple[str, ...]] = {}
    tasks: Mapping[int, int] = {}
    max_times: Mapping[str, float | None] = {}
    fixed_arrays: frozenset[int] = frozenset()
    closed_partitions: frozenset[str] = frozenset()


class Observation(Struct, frozen=True, kw_only=True):
    """The reading, at ``at``. Machines by node; holds of either kind by node; ``over`` has the
    accounts that get no new machine of a public cloud; ``pool_nodes``: ``max_nodes`` by pool, as it
    is now. ``facts`` has what else keeps a job from nodes; no growth counts ``unhelped`` jobs.
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
    facts: QueueFacts = QueueFacts()
    unhelped: frozenset[int] = frozenset()


class PoolNodes:
    """One pool's nodes, each in the class that it is in."""

    def __init__(self, site: Site, view: Observation, pool: Pool) -> None:
        self.pool, self._view, self._rules = pool, view, site.rules[pool.name]
        self.off: list[str] = []
        self.unheld: list[str] = []
        self.held: dict[str, AnyCause] = {}
        self.loose: list[str] = []
        self.booting: list[str] = []
        self.up: list[str] = []
        self.taken: list[str] = []
        self._idle: list[IdleInstance] = []
        self._starting = 0
        self._young: int | None = None
        for name in pool.nodes:
            if name in view.nodes:
                self._sort(view.nodes[name])

    def now(self, running: Sequence[SlurmJob], *, named: bool = False) -> PoolSnapshot:
        """As the policies may know it; ``named``: with the names of the nodes that are off."""
        stop = self._view.stops.get(self.pool.name)
        mine = set(self.pool.nodes)
        here = sum(not mine.isdisjoint(job.nodes) for job in running) + self._starting
        asks = isinstance(self._rules.growth, SemiElastic | OwnGrowth)
        flags = isinstance(self._rules.release, Flagged)
        return PoolSnapshot(
            name=self.pool.name,
            rules=self._rules,
            room=self._room(),
            total_room=None if self.pool.max_booting is None else self._total_room(),
            stop=stop,
            off=compress(self.off) if named else "",
            idle=self.idle,
            # The journal names no more nodes than a policy could ask for.
            taken=tuple(self.taken) if flags else (),
            promised=0 if flags else len(self.taken),
            booting=len(self.booting),
            # A completing node has no job, but it is not idle either.
            running=max(here, int(bool(self.taken))),
            free=tuple(sorted(self.free(running))) if asks else (),
        )

    @property
    def idle(self) -> tuple[IdleInstance, ...]:
        """Machines that are promised to no job."""
        return tuple(self._idle)

    @functools.cached_property
    def reachable(self) -> frozenset[str]:
        """The nodes that a job could have sooner or later."""
        return frozenset((*self.off, *self.booting, *self.up))

    def free(self, running: Iterable[SlurmJob]) -> Iterable[int]:
        """When each machine is expected to be free, by its jobs' limits."""
        now, machines = self._view.at, self._view.machines
        yield from (now for _ in self._idle)
        for name in self.booting:
            launched = machines[name].instance.launched if name in machines else now
            yield int(launched) + self._rules.boot
        ends = dict.fromkeys(self.taken, now)
        for job in running:
            end = int(job.start) + (FAR if job.limit is None else job.limit)
            ends.update({n: max(ends[n], end) for n in job.nodes if n in ends})
        yield from ends.values()

    def fresh(self, at: int, submit: int, avoids: Set[str] = frozenset()) -> int:
        """Idle machines that slurmctld may be about to give to a job submitted then."""
        if avoids:
            idle = [r for r in self._idle if r.node not in avoids]
            is_new = at - submit < ABOUT_TO_START
            return sum(is_new or at - r.since < ABOUT_TO_START for r in idle)
        if at - submit < ABOUT_TO_START:
            return len(self._idle)
        if self._young is None:
            self._young = sum(at - r.since < ABOUT_TO_START for r in self._idle)
        return self._young

    def give(self, count: int, at: int, submit: int, avoids: Set[str] = frozenset()) -> int:
        """Up to ``count`` idle machines to a job that slurmctld is about to start on them."""
        able = [
            r
            for r in self._idle
            if at - max(r.since, submit) < ABOUT_TO_START and r.node not in avoids
        ]
        taken = able[: max(count, 0)]
        gone = {r.node for r in taken}
        self._idle = [r for r in self._idle if r.node not in gone]
        self._young = None
        self.taken += [r.node for r in taken]
        self._starting += bool(taken)
        return len(taken)

    def _room(self) -> int:
        total, at_once = self._total_room(), self.pool.max_booting
        return total if at_once is None else max(min(total, at_once - len(self.booting)), 0)

    def _total_room(self) -> int:
        most = self._view.pool_nodes.get(self.pool.name, self.pool.max_nodes)
        there = len(self._idle) + len(self.taken) + len(self.booting)
        return max(len(self.off) if most is None else min(len(self.off), most - there), 0)

    def _sort(self, node: SlurmNode) -> None:
        name, where = node.name, phase(node)
        row = self._view.policy.get(name)
        full = name in self._view.capacity
        ours = is_held(node) and (row is not None or full)
        if is_down(node) or (is_drained(node) and not ours):
            return  # Slurm has given it up, or an admin has drained it
        if where in (Phase.POWERED_DOWN, Phase.POWERING_DOWN):
            if row is None:
                self.unheld.append(name)
            else:
                self.held[name] = row.cause
            if where is Phase.POWERED_DOWN and not full:
                self.off.append(name)
        elif "POWER_DOWN" not in node.states:  # else it gets no job any more
            self._sort_up(node, where)
            if row is not None:
                self.loose.append(name)

    def _sort_up(self, node: SlurmNode, where: Phase) -> None:
        if where is Phase.POWERING_UP:
            self.booting.append(node.name)
            return
        self.up.append(node.name)
        if is_busy(node):
            self.taken.append(node.name)
        else:
            self._rest(node)

    def _rest(self, node: SlurmNode) -> None:
        machine = self._view.machines.get(node.name)
        if machine is None:
            return
        started = machine.instance.launched
        since = min(max(node.last_busy, node.boot_time, started), self._view.at)
        self._idle.append(IdleInstance(node.name, min(int(started), self._view.at), int(since)))
