"""The Python side of the compiled engine: it answers the questions of the C part.

Both engines decide by the same code: growth and release policies, purchases, the guard, the
orders of the clouds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import cast

from slurm_elastic.policies.growth.allotting import Share
from slurm_elastic.policies.growth.capacity import OwnGrowth, SteadyStream
from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.boot_slots import waves
from slurm_elastic.simulate.core import _core
from slurm_elastic.simulate.core.growing import grow_unasked
from slurm_elastic.simulate.core.pools import CompiledPool
from slurm_elastic.simulate.engine import Engine, Progress
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines, Sales
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.pool_terms import Lane
from slurm_elastic.simulate.pools import Make, machines_of
from slurm_elastic.simulate.purchases import StoredDecision
from slurm_elastic.simulate.queues.queueing import Queue
from slurm_elastic.simulate.runs import SimulatedRun
from slurm_elastic.simulate.scenario import Scenario


class CompiledEngine(Engine):
    """A run of the simulation whose events are handled in C. Methods without an underscore are
    called from there.
    """

    def __init__(
        self, jobs: Jobs, scenario: Scenario, origin: int = 0, progress: Progress | None = None
    ) -> None:
        self.core = _core.Core()
        super().__init__(jobs, scenario, origin, progress)
        self._machines = cast("list[CompiledPool]", list(self.pools))
        # Columns that no rule of this site needs stay empty.
        self._orders_of_jobs = array("q", [0]) * (0 if self.orders is None else len(jobs))
        self.grower.allot = partial(_core.allot, Share)
        self.runs.now = cast("dict[int, SimulatedRun]", _Running(self.core))
        self._set_rules()
        self._connect()
        self._begun = grow_unasked(self.core, self.grower, self.count)
        if self.orders is not None:
            lanes = _Lanes(self.core, self._orders_of_jobs)
            self.orders.lanes = cast("list[tuple[Lane, ...]]", lanes)

    def _set_rules(self) -> None:
        core, scenario, grower = self.core, self.scenario, self.grower
        core.direct, core.reuse = int(self.direct), int(scenario.reuse)
        core.depth = scenario.depth or -1
        core.period = -1 if grower.period is None else grower.period
        core.watches, core.free_of_bounds = int(grower.watches), int(grower.free_of_bounds)
        core.patience, core.counts_boots = grower.patience, int(self.counts_boots)
        core.requeue_delay = scenario.requeue_delay
        core.unlimited, core.guarded = int(self.purchases.unlimited), int(self.guard is not None)
        core.ordered = int(self.orders is not None)
        core.starts_unasked = int(isinstance(grower.policy, SteadyStream | OwnGrowth))

    def _connect(self) -> None:
        jobs, count = self.jobs, self.count
        pairs = zip(self._machines, self.needs, strict=True)
        decisions = [machines.join(n, needs) for n, (machines, needs) in enumerate(pairs)]
        self.purchases.store_in(cast("list[StoredDecision]", decisions))
        self._where = array("q", [-1]) * count
        misfits = array("q", bytes(8 * count if self.misfits else 0))
        for job in self.misfits:
            misfits[job] = 1
        self.core.connect(
            self._machines,
            [
                jobs.submit, jobs.run, jobs.limit, jobs.procs, jobs.memory, jobs.gpus, jobs.user,
                self.runs.first, self.runs.ended, self._where, self._orders_of_jobs, misfits,
            ],
        )  # fmt: skip

    def run(self) -> RunResult:
        """Simulate the whole history."""
        core, runs = self.core, self.runs
        try:
            now, self.unserved = core.run(self, self.jobs.submit[0] if self.count else 0)
            self.unserved += core.waiting()
            self.pools = runs.pools = [machines.books() for machines in self._machines]
        finally:
            core.close()
            for machines in self._machines:
                machines.forget()
            self._machines.clear()
        self.last_ready = core.last_ready
        runs.where = array("h", self._where)
        del self._where
        runs.held, runs.useful, runs.lost = core.held, core.useful, core.lost
        runs.interruptions = core.interruptions
        return self._finish(now)

    def _make_pools(self) -> list[PoolMachines]:
        return machines_of(self.scenario, self.jobs, cast("Make", CompiledPool))

    def _queue(self, origin: int) -> Queue:  # noqa: ARG002
        return CompiledQueue(self)

    # --- what Python's rules ask for, done in C ---

    def boot_ahead(
        self,
        pool: int,
        count: int,
        now: int,
        stays: Sequence[int] = (),  # noqa: ARG002
        least: int = 1,
    ) -> None:
        """Boot machines for no job in particular. No capacity block ends them."""
        self.core.boot_ahead(pool, count, now, least)

    def _look_again(self, now: int) -> None:
        self._note_unhelped()
        self.core.look_again(now)

    def _plan_look(self, when: int) -> None:
        self.core.plan_look(when)

    def _push(self, when: int, kind: int, payload: int) -> None:  # noqa: ARG002
        """Plan a look at a purchase, the only event that Python still plans."""
        self.core.look_at(when, payload)

    def _note_unhelped(self) -> None:
        self.core.unhelped = int(self.guard is not None and bool(self.guard.unhelped_jobs))

    # --- questions of the compiled part ---

    def boot_seconds(self, pool: int, count: int) -> int:
        """Return the seconds until so many machines launched together are ready."""
        return self._machines[pool].boot_seconds(count)

    def boot_delay(self, pool: int, count: int, now: int) -> int:
        """Return the seconds until so many machines would be ready that wait for their turn."""
        return self._machines[pool].boot_delay(count, now)

    def waves(self, pool: int, count: int, now: int) -> list[tuple[int, int]]:
        """Book the boots of machines that may not all boot at once: (begin, machines)."""
        machines = self._machines[pool]
        return waves(machines.turns, count, now, machines.boot_seconds)

    def decide(
        self, pool: int, count: int, now: int, whole: int, needs_s: int, least: int
    ) -> Sales:
        """Buy up to so many machines, by the ranking of the offers."""
        return self.purchases.decide(
            pool, count, now, whole=bool(whole), needs_s=needs_s, least=least
        )

    def counts_any(self, now: int) -> int:
        """Return whether growth policies count a waiting job."""
        return int(bool(self.queue.counted(now)))

    def due_on_grid(self, pool: int, start: int, since: int, now: int) -> int:
        """Ask the release policy when an idle machine may go."""
        return self._machines[pool].due_on_grid(start, since, now)

    def next_losses(self, pool: int, now: int) -> list[tuple[int, int]]:
        """Return (second, offer) of each unplanned loss of spot machines."""
        return self._machines[pool].next_losses(now)

    def surplus(self, pool: int, offer: int, now: int) -> int:
        """Return how many machines of an offer the cloud takes now; -1 for an outdated loss."""
        machines = self._machines[pool]
        if machines.falls[offer] != now:
            return -1
        machines.falls[offer] = -1
        surplus = machines.surplus_of(offer, now)
        if surplus > 0:
            self.purchases.taken(pool, offer, now)
        return max(surplus, 0)

    def interrupted(self, job: int, now: int) -> None:
        """Note that a job was interrupted, which then counts as new for growth."""
        self.grower.covered.discard(job)
        if self.guard is not None:
            self.guard.interrupted(job, now)

    def guard_started(self, pool: int, batch: int, count: int, ready: int) -> None:
        """Let the guard watch machines that boot for no job in particular."""
        if self.guard is not None:
            self.guard.started(pool, batch, count, ready)

    def may_launch(self, count: int, now: int, public: int) -> int:
        """Return whether the bounds allow all these machines for one job."""
        return int(self.grower.may_launch(count, now, public=bool(public)))

    def is_stopped(self, now: int) -> int:
        """Return whether the time of day or a spent budget blocks machines."""
        return int(self.grower.is_stopped(now))

    def launch(self, now: int) -> None:
        """Ask the growth policy, and start the machines that it wants."""
        self._launch(now)
        if self._begun is not None:
            self.core.begun_count += self._begun.added
            self._begun.added = 0

    def watch_started(self, now: int) -> None:
        """Let the guard watch the machines that C started for all waiting jobs."""
        self.queue.watch_started(self.queue.waiting, now)

    def purchase_rooms(
        self, totals: list[int], now: int
    ) -> tuple[list[int], list[tuple[float, list[float]]], int]:
        """Return by growing pool how many of these machines may be bought, the bounds that pools
        share with their costs by pool, and until which second that holds without purchases.
        """
        return self.grower.purchase_rooms(totals, now)

    def flag(self, now: int) -> None:
        """Flag surplus machines."""
        self.grower.flag(self.queue.counted(now), self.core.running, now)

    def look_at_purchase(self, number: int, now: int) -> None:
        """Let the guard look at a purchase."""
        self._look_at_purchase(number, now)
        self._note_unhelped()

    def review(self, now: int, waited_for: int) -> None:
        """Release the nodes of held pools that can be served again."""
        self.purchases.review(now, waited_for=bool(waited_for))

    def order_jobs(self, arrival: int, before: int, now: int) -> None:
        """Decide in which order jobs use the pools. ``before``: the last event."""
        if self.orders is not None:
            self.now = before
            self._order_jobs(self.orders, arrival, now)

    def order_returned(self, job: int, now: int) -> None:
        """Order the pools again for an interrupted job."""
        if self.orders is not None:
            self.orders.come_back(job, now)

    def order_started(self, job: int) -> None:
        """Forget the order of a job that waits no longer."""
        if self.orders is not None:
            self.orders.start(job)

    def progressed(self, jobs: int) -> None:
        """Report that so many more jobs have arrived."""
        if self.progress:
            self.progress(jobs)


class CompiledQueue(Queue):
    """The queue in C, as growth policies and the guard see it."""

    def __init__(self, engine: CompiledEngine) -> None:
        self.core = engine.core
        super().__init__(
            engine.jobs, engine.scenario, engine.pools, engine.needs, engine.grower, engine.runs,
            engine._start,
        )  # fmt: skip

    @property
    def waiting(self) -> list[int]:
        """The waiting jobs. A copy: only the compiled part changes the queue."""
        return self.core.waiting() if self.core.waiting_count else []

    @waiting.setter
    def waiting(self, _: list[int]) -> None:
        """The queue begins empty in any case."""

    @property
    def head(self) -> int | None:
        """The expected start of the first job on machines that are up or booting."""
        return None if self.core.head == -NEVER else self.core.head

    @head.setter
    def head(self, _: int | None) -> None:
        """It begins as None in any case."""

    def schedule(self, now: int) -> None:
        """Pass over the whole queue."""
        self.core.schedule(now)

    def _earliest(
        self,
        job: int,  # noqa: ARG002
        pool: int,
        machines: PoolMachines,  # noqa: ARG002
        need: int,
        now: int,
    ) -> tuple[int, int]:
        return self.core.earliest(pool, need, now)


class _Running:
    """How many jobs run."""

    def __init__(self, core: _core.Core) -> None:
        self._core = core

    def __len__(self) -> int:
        return self._core.running


class _Lanes:
    """The orders of the jobs, each order as a number."""

    def __init__(self, core: _core.Core, orders: array[int]) -> None:
        self._core, self._orders = core, orders
        self._numbers: dict[int, tuple[int, tuple[Lane, ...]]] = {}

    def __setitem__(self, job: int, lanes: tuple[Lane, ...]) -> None:
        entry = self._numbers.get(id(lanes))
        if entry is None:
            number = self._core.add_order([pool for pool, _, _ in lanes])
            entry = self._numbers[id(lanes)] = number, lanes
        self._orders[job] = entry[0]
