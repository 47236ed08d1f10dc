"""The guard against useless purchases in a simulation: slurm-elasticd's own decision
(``policies.growth.unused_purchases``), from the simulated machines and jobs.

Machines of a batch are equal, so they get names only if some of them are unused. A batch is looked
at when it is ready, and once more ``IDLE_PROOF_S`` later if some of its machines got no job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.policies.growth.unused_purchases import (
    IDLE_PROOF_S,
    MOST_JOBS,
    NodeUse,
    WatchedJob,
    idle_use,
    not_counted,
    suffice,
    to_count_again,
    unhelped,
    watched,
)
from slurm_elastic.simulate.machines import PoolMachines

Later = Callable[[int, int], None]
"""Called with a second and the number with which ``look`` is to be called then."""


class _Batch:
    """Machines of a watched purchase. ``names``: of its machines without a job when it was ready
    (None: it boots). ``live``: how many existed then.
    """

    def __init__(self, pool: int, batch: int, count: int, ready: int) -> None:
        self.pool, self.batch, self.count, self.ready = pool, batch, count, ready
        self.names: list[str] | None = None
        self.live = 0

    def named(self, count: int) -> list[str]:
        """Return names for so many of its machines."""
        return [f"{self.pool}:{self.batch}:{number}" for number in range(count)]


class _Bought:
    """A purchase for the first waiting ``jobs``. ``row``: None while no machine of it is unused."""

    def __init__(self, at: int, batches: Sequence[_Batch], jobs: Sequence[int]) -> None:
        self.at, self.batches, self.jobs = at, batches, jobs
        self.row: Purchase | None = None


class SimulatedGuard:
    """The purchases of growth policies, and the jobs that they do not count. Times are seconds of
    the history. ``needs``: by pool the machines per job; ``limit``: the time limit of each job.
    """

    def __init__(
        self,
        pools: Sequence[PoolMachines],
        needs: Sequence[Sequence[int]],
        limit: Sequence[int],
        later: Later,
    ) -> None:
        self._needs, self._limit, self._pools, self._later = needs, limit, pools, later
        self._growing = [
            pool
            for pool, machines in enumerate(pools)
            if machines.pool.machines > machines.pool.standing
        ]
        self._started: list[_Batch] = []
        self._bought: dict[int, _Bought] = {}
        self._rows: dict[int, UnhelpedJob] = {}
        self._interrupted_at: dict[int, int] = {}
        self._pauses: set[int] = set()
        self._number = 0

    def started(self, pool: int, batch: int, count: int, ready: int) -> None:
        """Record machines that boot for no job in particular."""
        self._started.append(_Batch(pool, batch, count, ready))

    def bought(self, queue: Sequence[int], now: int) -> None:
        """Watch the machines that were started since the last call, for the jobs of ``queue``."""
        if self._started and queue:
            number = self._next_number()
            self._bought[number] = _Bought(now, self._started, queue[:MOST_JOBS])
            for ready in {batch.ready for batch in self._started}:
                self._later(ready, number)
        self._started = []

    def interrupted(self, job: int, now: int) -> None:
        """Note that the job starts over, so that the findings about its last wait no longer
        hold.
        """
        self._interrupted_at[job] = now

    def counted(self, waiting: Sequence[int], now: int) -> Sequence[int]:
        """Return the waiting jobs that growth policies count."""
        if not self._rows:
            return waiting
        jobs = {job: self._watched_job(job, waiting) for job in waiting if job in self._rows}
        for job in to_count_again(self._rows.values(), jobs):
            del self._rows[job]
        unhelped_jobs = not_counted(self._rows.values(), now)
        return [job for job in waiting if job not in unhelped_jobs]

    @property
    def unhelped_jobs(self) -> frozenset[int]:
        """The jobs that no machine helped so far, also after their pause."""
        return frozenset(self._rows)

    def look(self, number: int, waiting: Sequence[int], now: int) -> bool:
        """Look at a purchase. Return True if growth policies count other jobs from now on, also
        because a pause is over.
        """
        bought = self._bought.get(number)
        if bought is None:
            # A purchase may be judged before its last planned look.
            return number in self._pauses
        if bought.row is None and not any(self._has_unused(batch) for batch in bought.batches):
            # Batches that are ready were used at once. The others are looked at when they are.
            bought.batches = [batch for batch in bought.batches if batch.ready > now]
            if not bought.batches:
                del self._bought[number]
            return False
        bought.row = row = self._looked_at(number, bought, now)
        if row.open:
            return False
        del self._bought[number]
        jobs = {job: self._watched_job(job, waiting) for job in waiting}
        rows = unhelped(row, jobs, lambda _: self._sufficed(bought, now), self._rows, now)
        self._rows |= {verdict.job: verdict for verdict in rows}
        for until in {ceil(verdict.until) for verdict in rows}:
            pause = self._next_number()
            self._pauses.add(pause)
            self._later(until, pause)
        return bool(rows)

    def _has_unused(self, batch: _Batch) -> bool:
        machines = self._pools[batch.pool]
        return bool(machines.idle) and machines.idle_of(batch.batch) > 0

    def _looked_at(self, number: int, bought: _Bought, now: int) -> Purchase:
        """Return the purchase after this look."""
        use: dict[str, NodeUse] = {}
        for batch in bought.batches:
            use |= self._use(number, batch, now)
        row = bought.row
        if row is None:
            asked = {
                job: self._asks(job)
                for job in bought.jobs
                if self._interrupted_at.get(job, bought.at) <= bought.at
            }
            row = Purchase(first_node="", at=bought.at, open=frozenset(use), jobs=asked)
        return watched(row, use, now)

    def _use(self, number: int, batch: _Batch, now: int) -> dict[str, NodeUse]:
        """Return the states of a batch's machines by name."""
        if batch.ready > now:
            return dict.fromkeys(batch.named(batch.count), NodeUse.BOOTING)
        machines = self._pools[batch.pool]
        live = machines.batch_live[batch.batch]
        if batch.names is None:
            batch.names, batch.live = batch.named(machines.idle_of(batch.batch)), live
            if batch.names:
                self._later(now + IDLE_PROOF_S, number)
            used = set(batch.named(batch.count)).difference(batch.names)
            return dict.fromkeys(used, NodeUse.BUSY) | dict.fromkeys(batch.names, NodeUse.IDLE)
        idle = [
            idle_use(idle_s)
            for idle_batch, idle_s, count in self._idle(batch.pool, now)
            if idle_batch == batch.batch
            for _ in range(count)
        ]
        off = [NodeUse.OFF] * (batch.live - live)
        # Of the others, a machine whose job has ended since is used as well.
        uses = [use for use in idle if use is NodeUse.LONG_IDLE or now < batch.ready + IDLE_PROOF_S]
        uses = (uses + off)[: len(batch.names)]
        uses += [NodeUse.BUSY] * (len(batch.names) - len(uses))
        return dict(zip(batch.names, uses, strict=True))

    def _idle(self, pool: int, now: int) -> Iterator[tuple[int, int, int]]:
        """Yield the idle machines of a pool: (batch, for how many seconds, machines)."""
        machines = self._pools[pool]
        for batch, since, count in machines.free.entries():
            # Without ``since`` (0), they are idle since the batch was ready.
            yield batch, max(now - (since or machines.batch_ready[batch]), 0), count

    def _sufficed(self, bought: _Bought, now: int) -> frozenset[int]:
        """Return the jobs for which the unused machines and other long-idle ones would have
        sufficed.
        """
        unused = {pool: list(self._unused(pool, bought, now)) for pool in self._growing}
        return frozenset(
            job
            for job in bought.jobs
            if any(
                suffice(self._needs[pool][job], (self._usable(pool, job, batches, now),))
                for pool, batches in unused.items()
            )
        )

    def _unused(self, pool: int, bought: _Bought, now: int) -> Iterator[tuple[int, int]]:
        """Yield (batch, machines) of a pool's unused machines."""
        machines = self._pools[pool]
        for batch, idle_s, count in self._idle(pool, now):
            if idle_use(idle_s) is NodeUse.LONG_IDLE:
                yield batch, count
        for watched_batch in bought.batches:
            if watched_batch.pool == pool:
                # Machines that were given back unused.
                gone = watched_batch.live - machines.batch_live[watched_batch.batch]
                yield watched_batch.batch, min(gone, len(watched_batch.names or ()))

    def _usable(self, pool: int, job: int, unused: Sequence[tuple[int, int]], now: int) -> int:
        """Return how many of these machines the job may use: those that the cloud does not end
        before the job's limit.
        """
        machines = self._pools[pool]
        if machines.ending is None:
            return sum([count for _, count in unused])
        until = now + machines.boot_seconds(1) + self._limit[job]
        return sum([count for batch, count in unused if until <= machines.ending.end(batch)])

    def _watched_job(self, job: int, waiting: Sequence[int]) -> WatchedJob:
        return WatchedJob(self._asks(job), "Resources" if job == waiting[0] else "Priority")

    def _asks(self, job: int) -> str:
        """Return the wishes of a job. In a history only its restarts change them."""
        return str(self._interrupted_at.get(job, ""))

    def _next_number(self) -> int:
        self._number += 1
        return self._number
