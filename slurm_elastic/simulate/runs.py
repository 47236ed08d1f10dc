"""The running jobs: their machines, their ends, and the work that remains after an interruption."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.checkpoint import Never, joint_mtti, observed_mtti
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.checkpointed_run import Ride, Trip, answers_notices, quiet, ride
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.queues.idle_set import Pieces
from slurm_elastic.simulate.scenario import Scenario


class SimulatedRun(NamedTuple):
    """A run of a job. It got its machines at ``assigned_at`` and runs from ``ready`` to ``end``.

    ``work``: seconds to do, including ``restart`` seconds to restore a checkpoint. ``mtti``: mean
    seconds to an interruption of the job, as far as was known (None: no spot machines).
    ``expected``: the run's entry in the expectations of ``machines``. ``pieces``: its machines;
    the ``idle`` machines that it found come first, then the machines launched for it.
    """

    job: int
    pool: int
    machines: PoolMachines
    pieces: Pieces
    need: int
    assigned_at: int
    ready: int
    idle: int
    end: int
    expected: int
    work: int
    restart: int
    mtti: float | None


_run = tuple.__new__  # `_run(Run, values)` is `Run(*values)` in a third of the time


class Runs:
    """All runs. Their machine-seconds add up to the time for which machines were busy: ``held``
    (the machine waits until the job's other machines have booted), ``useful``, ``lost``,
    ``overhead`` (checkpoints and restarts). ``kept``: (job, pool, seconds of work) that interrupted
    runs saved.
    """

    def __init__(self, jobs: Jobs, scenario: Scenario, pools: Sequence[PoolMachines]) -> None:
        self.jobs, self.scenario, self.pools = jobs, scenario, pools
        self.first = array("q", [-1]) * len(jobs)
        self.ended = array("q", [-1]) * len(jobs)
        self.where = array("h", [-1]) * len(jobs)
        self._work, self._limit = jobs.run, jobs.limit
        self.now: dict[int, SimulatedRun] = {}
        self.saved: dict[int, int] = {}
        self.kept: list[tuple[int, int, int]] = []
        self.held = self.useful = self.lost = self.overhead = 0
        self.interruptions = self.checkpoints = 0
        self.saves = not isinstance(scenario.checkpoints.policy, Never)
        self.moves_saved = answers_notices(scenario.checkpoints.policy)
        self._rides = self.saves and not quiet(scenario.checkpoints)
        self._works_on = self._rides and not scenario.checkpoints.blocking

    def expected(self, pool: int) -> list[int]:
        """Return the expectations of a pool's machines in use: one per job, and one per shared
        machine.
        """
        shared = self.pools[pool].shared
        runs = [run for run in self.now.values() if run.pool == pool]
        if shared is None:
            return [run.expected for run in runs]
        single_jobs = [run.expected for run in runs if run.job not in shared.of]
        return single_jobs + [host.expected for host in shared.hosts]

    def free_at(self, pool: int) -> list[tuple[int, Pieces]]:
        """Return when a pool's machines in use should be free, by time limits."""
        shared = self.pools[pool].shared
        hosts = [] if shared is None else shared.hosts
        on_hosts = set() if shared is None else set(shared.of)
        return [(host.expected >> 64, host.pieces) for host in hosts] + [
            (run.expected >> 64, run.pieces)
            for run in self.now.values()
            if run.pool == pool and run.job not in on_hosts
        ]

    def jobs_on(self, pool: int, batch: int) -> list[int]:
        """Return the jobs that hold machines of a batch, the latest start first."""
        return [
            run.job
            for run in reversed(list(self.now.values()))
            if run.pool == pool and any(held == batch for held, _ in run.pieces)
        ]

    def begin(
        self, job: int, pool: int, pieces: Pieces, need: int, now: int, ready: int, idle: int
    ) -> tuple[int, int]:
        """Start a run. Returns its end, and the expectation by its time limit."""
        if self.first[job] < 0:
            self.first[job] = ready
        machines = self.pools[pool]
        restart, work, mtti = 0, self._work[job], None
        if self.saved and job in self.saved:
            restart = self.scenario.checkpoints.restart
            work += restart - self.saved[job]
        if machines.spot_live:
            for batch, _ in pieces:
                if machines.batch_spot[batch]:
                    mtti = self._mtti(machines, pieces, now) if self.saves else 0.0
                    break
        end = ready + work
        # The same key as ``free_times.expectation``, inlined because each start of a job needs it.
        expected = (ready + self._limit[job] << 32 | job) << 32 | need
        row = (job, pool, machines, pieces, need, now, ready, idle, end, expected, work, restart,
               mtti)  # fmt: skip
        run = _run(SimulatedRun, row)
        if mtti is not None and self._rides:
            end = self._ride(run, None).end
            run = run._replace(end=end)
        self.now[job] = run
        self.where[job] = pool
        return end, expected

    def finish(self, run: SimulatedRun, now: int) -> None:
        """Record that a run has done its work."""
        job, _, _, _, need, assigned_at, ready, idle, _, _, work, restart, mtti = run
        del self.now[job]
        self.ended[job] = now
        if idle:
            self.held += idle * (ready - assigned_at)
        self.useful += need * (work - restart)
        self.overhead += need * (now - ready - work + restart)
        if self.saved:
            self.saved.pop(job, None)
        if mtti is not None and (now - ready > work or self._works_on):
            self.checkpoints += self._ride(run, None).checkpoints

    def moves(self, job: int, loss: int) -> int | None:
        """Return when a job that loses its machine at ``loss`` is saved and moved; None if
        never.
        """
        run = self.now[job]
        return self._ride(run, loss).moves if loss > run.ready else None

    def interrupt(self, job: int, now: int, loss: int | None = None) -> SimulatedRun:
        """Interrupt a run; its saved work counts. ``loss``: when the cloud takes its machine, if
        the job moves before that.
        """
        run = self.now.pop(job)
        self.interruptions += 1
        if now <= run.ready:
            self.held += run.idle * (now - run.assigned_at)
            if now < run.ready == self.first[job]:
                self.first[job] = -1  # the run never began, and the next may begin earlier
            return run
        self.held += run.idle * (run.ready - run.assigned_at)
        cut = Ride(end=now, saved=0, checkpoints=0, dumping=0, done=False)
        if self.saves:
            cut = self._ride(run, now if loss is None else loss)
        kept = max(cut.saved - run.restart, 0)
        overhead = (cut.dumping if self.scenario.checkpoints.blocking else 0) + (
            run.restart if kept else 0
        )
        self.useful += run.need * kept
        self.overhead += run.need * overhead
        self.lost += run.need * (now - run.ready - kept - overhead)
        self.checkpoints += cut.checkpoints
        if kept:
            self.saved[job] = self.saved.get(job, 0) + kept
            self.kept.append((job, run.pool, kept))
        return run

    def _mtti(self, machines: PoolMachines, pieces: Pieces, now: int) -> float:
        """Return the job's mean time to an interruption from the losses so far, as the daemon
        does.
        """
        spot = sum([count for batch, count in pieces if machines.batch_spot[batch]])
        on_demand_count = sum([count for _, count in pieces]) - spot
        on_spot, on_demand = machines.seconds_up(now)
        times = [observed_mtti(on_spot, machines.reclaimed) / spot]
        if on_demand_count:
            times.append(observed_mtti(on_demand, 0) / on_demand_count)
        return joint_mtti(times)

    def _ride(self, run: SimulatedRun, until: int | None) -> Ride:
        market = run.machines.market_of(run.pieces)
        notices = _notices(run, until, market) if until is not None and market else ()
        trip = Trip(
            job=run.job,
            start=run.ready,
            work=run.work,
            launched=min(run.machines.batch_start[batch] for batch, _ in run.pieces),
            until=until,
            notices=notices,
            market=market,
            mtti=run.mtti,
            lease=run.machines.pool.billing.lease,
        )
        return ride(self.scenario.checkpoints, trip)


def _notices(run: SimulatedRun, until: int, market: SpotMarket) -> tuple[Notice, ...]:
    """Return the cloud's notices before a loss: a recommendation, if it gives any, and the
    warning.
    """
    name = str(run.job)
    notices = []
    if market.rebalance > market.notice:
        # A notice before the start is seen when the job runs.
        seen_at = float(max(until - market.rebalance, run.ready))
        notices.append(Notice(instance=name, kind=NoticeKind.REBALANCE, seen=seen_at))
    if market.notice > 0:
        seen_at = float(max(until - market.notice, run.ready))
        notices.append(
            Notice(instance=name, kind=NoticeKind.INTERRUPTION, seen=seen_at, deadline=float(until))
        )
    return tuple(notices)
