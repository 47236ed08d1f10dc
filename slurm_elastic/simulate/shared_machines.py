"""Machines that jobs share, as with Slurm's CR_Core_Memory.

A job that needs less than a machine goes to the first machine in use with enough free cores, memory
and GPUs. If there is none, it gets another machine. A shared machine is busy from the start of its
first job to the end of its last, and is expected to be free when all its jobs have reached their
limits. Each shared machine has one expectation, for any number of jobs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from slurm_elastic.simulate.bills.market import NEVER
from slurm_elastic.simulate.core import compiled
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.queues.idle_set import Pieces
from slurm_elastic.simulate.scenario import PoolModel

Share = tuple[int, int, int]  # cores, MiB and GPUs
ANYBODY = -2  # in a history, -1 is a user whom it does not name
_MOST_SHAPES = 16

_JOB_MASK = (1 << 32) - 1


class SharedMachine:
    """A shared machine in use. ``left``: its free share; ``ready``: when its boot ended; ``ends``:
    the expected ends of its jobs, sorted; ``used``: the sum of the seconds of its past jobs;
    ``idle``: 1 if it was up before its first job. ``user``: whose jobs may join. ``until``: when
    the cloud ends it.
    """

    def __init__(self, pieces: Pieces, whole: Share, ready: int, idle: int, until: int) -> None:
        self.pieces, self.left, self.ready, self.idle = pieces, whole, ready, idle
        self.user = ANYBODY
        self.until = until
        self.ends: list[int] = []
        self.used = 0

    @property
    def jobs(self) -> list[int]:
        """The machine's jobs, ordered by their expected ends."""
        return [end >> 32 & _JOB_MASK for end in self.ends]

    @property
    def expected(self) -> int:
        """The expectation of the job that ends last, when the machine should be free."""
        return self.ends[-1]

    def has(self, share: Share) -> bool:
        """Return True if the machine has room for the share."""
        return _within(share, self.left)

    def add(self, share: Share, end: int) -> None:
        """Add a job with the expected ``end``."""
        insort(self.ends, end)
        self.left = _minus(self.left, share)

    def seat(self, share: Share, of_jobs: Sequence[Share], now: int) -> Seat:
        """Return when the machine has room for ``share``, which must fit on an empty machine.
        ``of_jobs``: the shares of its jobs.
        """
        free_share, when = self.left, NEVER
        for end, freed in zip(self.ends, of_jobs, strict=True):
            end_at = max(now, end >> 64)
            if end_at > when:
                break
            free_share = _plus(free_share, freed)
            if _within(share, free_share):
                when = end_at
        return Seat(self, when, _minus(free_share, share))

    def drop(self, share: Share, end: int, seconds: int) -> None:
        """Remove a job that used the machine for so many seconds."""
        del self.ends[bisect_left(self.ends, end)]
        self.used += seconds
        self.left = _plus(self.left, share)


class Seat:
    """Room reserved for the first waiting job on a machine in use, from ``when`` on. ``left``: the
    share that other jobs may still use after ``when``.
    """

    def __init__(self, host: SharedMachine, when: int, free_share: Share) -> None:
        self.host, self.when, self.left = host, when, free_share

    def has(self, share: Share) -> bool:
        """Return True if another job may stay on the machine after ``when``."""
        return _within(share, self.left)

    def take(self, share: Share) -> None:
        """Subtract the share of a job that stays after ``when``."""
        self.left = _minus(self.left, share)


class SharedMachines:
    """The shared machines of a pool. ``of``: the machine by job. ``overlap``: machine-seconds that
    several jobs used at the same time.
    """

    def __init__(self, jobs: Jobs, pool: PoolModel) -> None:
        self.jobs = jobs
        self.whole: Share = (pool.procs, pool.memory, pool.gpus)
        self.hosts: list[SharedMachine] = []
        self.of: dict[int, SharedMachine] = {}
        self.overlap = 0
        self._by_user = pool.by_user

    def share(self, job: int) -> Share:
        """Return the job's share of a machine. Memory counts only if the machine's size is
        known.
        """
        jobs = self.jobs
        memory = jobs.memory[job] if self.whole[1] else 0
        return jobs.procs[job], memory, jobs.gpus[job]

    def with_room(self, job: int, share: Share) -> Iterator[SharedMachine]:
        """Return the machines in use with room for the job's share, the longest in use first."""
        if not self._by_user:
            return (host for host in self.hosts if host.has(share))
        user = self._user(job)
        return (host for host in self.hosts if host.user == user and host.has(share))

    def _user(self, job: int) -> int:
        """Return the user to whom the shared machine must belong, because only jobs of one user may
        share it; ANYBODY if jobs of all users may.
        """
        return self.jobs.user[job] if self._by_user else ANYBODY

    def seat(self, job: int, now: int, before: int) -> Seat | None:
        """Return the earliest room on a machine in use, not later than ``before``; None if there is
        none.
        """
        share, user, earliest = self.share(job), self._user(job), None
        if share == self.whole:
            return None
        for host in self.hosts:
            if host.user != user or host.ends[0] >> 64 > before:
                continue
            seat = host.seat(share, [self.share(host_job) for host_job in host.jobs], now)
            if seat.when + self.jobs.limit[job] > host.until:
                continue
            if seat.when < before or (earliest is None and seat.when == before):
                earliest, before = seat, seat.when
        return earliest

    def open(
        self, job: int, pieces: Pieces, ready: int, end: int, idle: int, until: int = NEVER
    ) -> None:
        """Begin to share a machine, with the start of its first job."""
        host = SharedMachine(pieces, self.whole, ready, idle, until)
        host.user = self._user(job)
        self.hosts.append(host)
        self.join(job, host, end)

    def join(self, job: int, host: SharedMachine, end: int) -> None:
        """Add a job to a shared machine."""
        host.add(self.share(job), end)
        self.of[job] = host

    def leave(self, job: int, end: int, begun: int, now: int) -> SharedMachine:
        """Remove a job that began at ``begun``. After the last job the machine is no longer in
        use.
        """
        host = self.of.pop(job)
        host.drop(self.share(job), end, max(now - begun, 0))
        if not host.ends:
            self.hosts.remove(host)
            self.overlap += host.used - max(now - host.ready, 0)
        return host


def _within(share: Share, other: Share) -> bool:
    return share[0] <= other[0] and share[1] <= other[1] and share[2] <= other[2]


def _plus(share: Share, other: Share) -> Share:
    return share[0] + other[0], share[1] + other[1], share[2] + other[2]


def _minus(share: Share, other: Share) -> Share:
    return share[0] - other[0], share[1] - other[1], share[2] - other[2]


def machines_needed(jobs: Jobs, pool: PoolModel) -> array[int]:
    """Return how many machines of a pool each job needs. If no number suffices, the result is
    larger than the pool. It must not be changed: all runs with these jobs share it.
    """
    never = pool.machines + 1
    shape = pool.procs, pool.memory, pool.gpus, never
    needs = jobs.machines_needed.get(shape)
    if needs is None or len(needs) != len(jobs):
        if len(jobs.machines_needed) >= _MOST_SHAPES:
            jobs.machines_needed.clear()
        needs = jobs.machines_needed[shape] = _machines_needed(jobs, pool, never)
    return needs


def _machines_needed(jobs: Jobs, pool: PoolModel, never: int) -> array[int]:
    core = compiled()
    if core is not None:
        needs = array("q", bytes(8 * len(jobs)))
        columns = jobs.procs, jobs.memory, jobs.gpus, jobs.nodes
        core.machines_needed(*columns, pool.procs, pool.memory, pool.gpus, never, needs)
        return needs
    counts = [-(-procs // pool.procs) for procs in jobs.procs]
    if pool.memory and any(jobs.memory):
        by_memory = [-(-memory // pool.memory) for memory in jobs.memory]
        counts = [max(pair) for pair in zip(counts, by_memory, strict=True)]
    if any(jobs.gpus):
        by_gpus = [-(-n // pool.gpus) if pool.gpus else never * (n > 0) for n in jobs.gpus]
        counts = [max(pair) for pair in zip(counts, by_gpus, strict=True)]
    if any(nodes > 1 for nodes in jobs.nodes):
        counts = [max(pair) for pair in zip(counts, jobs.nodes, strict=True)]
    return array("q", counts)
