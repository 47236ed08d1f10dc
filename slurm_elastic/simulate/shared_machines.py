"""Machines that jobs share, as with Slurm's CR_Core_Memory: a job that needs less than a machine
goes to the first one in use that has cores, memory and GPUs left for it, otherwise to one of its
own. Such a machine is busy from its first job to its last, and should be free when the last of its
jobs has reached its limit. There is one expectation for each machine, however many jobs it has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from slurm_elastic.simulate.idle_set import Pieces
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.market import NEVER
from slurm_elastic.simulate.scenario import PoolModel

Share = tuple[int, int, int]  # cores, MiB and GPUs

_JOB = (1 << 32) - 1


class Host:
    """One machine in use: what it has ``left``, since when it is up (``ready``), and when its jobs
    end, sorted. ``used``: seconds of jobs that left; ``idle``: 1 if it was up before its first.
    """

    def __init__(self, pieces: Pieces, whole: Share, ready: int, idle: int) -> None:
        self.pieces, self.left, self.ready, self.idle = pieces, whole, ready, idle
        self.ends: list[int] = []
        self.used = 0

    @property
    def jobs(self) -> list[int]:
        """Its jobs, ordered by when they should end."""
        return [end >> 32 & _JOB for end in self.ends]

    @property
    def expected(self) -> int:
        """When it should be free: the expectation of its last job."""
        return self.ends[-1]

    def has(self, share: Share) -> bool:
        """Whether it has room for one more job."""
        return _within(share, self.left)

    def add(self, share: Share, end: int) -> None:
        """A job begins on it, which should be over at its ``end``."""
        insort(self.ends, end)
        self.left = _minus(self.left, share)

    def seat(self, share: Share, of_jobs: Sequence[Share], now: int) -> Seat:
        """When it has room for ``share``, which fits if empty. ``of_jobs``: what its jobs have."""
        left, when = self.left, NEVER
        for end, freed in zip(self.ends, of_jobs, strict=True):
            at = max(now, end >> 64)
            if at > when:
                break
            left = _plus(left, freed)
            if _within(share, left):
                when = at
        return Seat(self, when, _minus(left, share))

    def drop(self, share: Share, end: int, seconds: int) -> None:
        """A job leaves that had it for so many seconds."""
        del self.ends[bisect_left(self.ends, end)]
        self.used += seconds
        self.left = _plus(self.left, share)


class Seat:
    """Room kept for the first waiting job on a machine in use, from ``when`` on, by limits."""

    def __init__(self, host: Host, when: int, left: Share) -> None:
        self.host, self.when, self.left = host, when, left

    def has(self, share: Share) -> bool:
        """Whether one more job may stay on the machine beyond ``when``."""
        return _within(share, self.left)

    def take(self, share: Share) -> None:
        """One more job stays."""
        self.left = _minus(self.left, share)


class SharedMachines:
    """Machines of a pool that jobs share. ``overlap``: machine-seconds had more than once."""

    def __init__(self, jobs: Jobs, pool: PoolModel) -> None:
        self.jobs = jobs
        self.whole: Share = (pool.procs, pool.memory, pool.gpus)
        self.hosts: list[Host] = []
        self.of: dict[int, Host] = {}
        self.overlap = 0

    def share(self, job: int) -> Share:
        """What the job needs of one machine; memory counts only if the machine's is known."""
        jobs = self.jobs
        memory = jobs.memory[job] if self.whole[1] else 0
        return jobs.procs[job], memory, jobs.gpus[job]

    def with_room(self, share: Share) -> Iterator[Host]:
        """The machines in use that have so much left, those opened first before others."""
        return (host for host in self.hosts if host.has(share))

    def seat(self, job: int, now: int, before: int) -> Seat | None:
        """Where a machine in use should first have room, before ``before``; None if none should."""
        share, found = self.share(job), None
        if share == self.whole:
            return None
        for host in self.hosts:
            if host.ends[0] >> 64 > before:
                continue
            seat = host.seat(share, [self.share(one) for one in host.jobs], now)
            if seat.when < before or (found is None and seat.when == before):
                found, before = seat, seat.when
        return found

    def open(self, job: int, pieces: Pieces, ready: int, end: int, idle: int) -> None:
        """A job begins on a new machine and leaves room for others."""
        host = Host(pieces, self.whole, ready, idle)
        self.hosts.append(host)
        self.join(job, host, end)

    def join(self, job: int, host: Host, end: int) -> None:
        """One more job begins there."""
        host.add(self.share(job), end)
        self.of[job] = host

    def leave(self, job: int, end: int, begun: int, now: int) -> Host:
        """A job that came at ``begun`` is over; without others nobody has its machine."""
        host = self.of.pop(job)
        host.drop(self.share(job), end, max(now - begun, 0))
        if not host.ends:
            self.hosts.remove(host)
            self.overlap += host.used - max(now - host.ready, 0)
        return host


def _within(one: Share, other: Share) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2]


def _plus(one: Share, other: Share) -> Share:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _minus(one: Share, other: Share) -> Share:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


def machines_needed(jobs: Jobs, pool: PoolModel) -> list[int]:
    """How many machines of a pool each job needs; more than there are if none would do."""
    never = pool.machines + 1
    found = [-(-procs // pool.procs) for procs in jobs.procs]
    if pool.memory and any(jobs.memory):
        by_memory = [-(-memory // pool.memory) for memory in jobs.memory]
        found = [max(pair) for pair in zip(found, by_memory, strict=True)]
    if any(jobs.gpus):
        by_gpus = [-(-n // pool.gpus) if pool.gpus else never * (n > 0) for n in jobs.gpus]
        found = [max(pair) for pair in zip(found, by_gpus, strict=True)]
    if any(nodes > 1 for nodes in jobs.nodes):
        found = [max(pair) for pair in zip(found, jobs.nodes, strict=True)]
    return found
