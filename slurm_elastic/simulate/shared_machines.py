"""Machines that jobs share, as Slurm's CR_Core_Memory has it: a job that needs less than a machine
goes to the first one in use that has cores, memory and GPUs left for it, else to one of its own.
Such a machine is busy from its first job to its last.
"""

from __future__ import annotations

from slurm_elastic.simulate.idle_set import Pieces
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.scenario import PoolModel

Share = tuple[int, int, int]
"""Cores, MiB and GPUs."""


class Host:
    """One machine in use: what it has ``left``, its jobs, from when on it is up (``ready``), and
    the expectation of when it is free. ``used``: seconds of the jobs that have left it;
    ``idle``: 1 where it was up before its first job.
    """

    def __init__(self, pieces: Pieces, whole: Share, ready: int, expected: int, idle: int) -> None:
        self.pieces, self.left, self.ready, self.expected = pieces, whole, ready, expected
        self.idle = idle
        self.jobs: set[int] = set()
        self.used = 0

    def has(self, share: Share) -> bool:
        """Whether there is room for one job more."""
        cores, memory, gpus = self.left
        return share[0] <= cores and share[1] <= memory and share[2] <= gpus

    def add(self, job: int, share: Share) -> None:
        """A job begins on it."""
        self.jobs.add(job)
        self.left = _minus(self.left, share)

    def drop(self, job: int, share: Share, seconds: int) -> None:
        """A job leaves it, which had it for so long."""
        self.jobs.remove(job)
        self.used += seconds
        self.left = _minus(self.left, (-share[0], -share[1], -share[2]))


class SharedMachines:
    """The machines of one pool that are in use by jobs that leave some of them to others.
    ``overlap``: machine-seconds that several jobs had at once, counted for each but the first.
    """

    def __init__(self, jobs: Jobs, pool: PoolModel) -> None:
        self.jobs = jobs
        self.whole: Share = (pool.procs, pool.memory, pool.gpus)
        self.hosts: list[Host] = []
        self.of: dict[int, Host] = {}
        self.overlap = 0

    def share(self, job: int) -> Share:
        """The job's needs of one machine; memory counts where the machine's is known."""
        jobs = self.jobs
        memory = jobs.memory[job] if self.whole[1] else 0
        return jobs.procs[job], memory, jobs.gpus[job]

    def with_room(self, job: int) -> Host | None:
        """The first machine in use that the job fits on."""
        share = self.share(job)
        for host in self.hosts:
            if host.has(share):
                return host
        return None

    def open(self, job: int, pieces: Pieces, ready: int, expected: int, idle: int) -> None:
        """A job begins on a machine that it leaves some of."""
        host = Host(pieces, self.whole, ready, expected, idle)
        host.add(job, self.share(job))
        self.hosts.append(host)
        self.of[job] = host

    def join(self, job: int, host: Host) -> None:
        """One more begins there."""
        host.add(job, self.share(job))
        self.of[job] = host

    def leave(self, job: int, begun: int, now: int) -> Host | None:
        """A job is over that had its machine since ``begun``; the machine, if it was the last."""
        host = self.of.pop(job)
        host.drop(job, self.share(job), max(now - begun, 0))
        if host.jobs:
            return None
        self.hosts.remove(host)
        self.overlap += host.used - max(now - host.ready, 0)
        return host


def _minus(one: Share, other: Share) -> Share:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


def machines_needed(jobs: Jobs, pool: PoolModel) -> list[int]:
    """The machines of a pool that each job needs, more than there are where none would do."""
    never = pool.machines + 1
    found = [-(-procs // pool.procs) for procs in jobs.procs]
    if pool.memory and any(jobs.memory):
        by_memory = [-(-memory // pool.memory) for memory in jobs.memory]
        found = [max(pair) for pair in zip(found, by_memory, strict=True)]
    if any(jobs.gpus):
        by_gpus = [-(-n // pool.gpus) if pool.gpus else never * (n > 0) for n in jobs.gpus]
        found = [max(pair) for pair in zip(found, by_gpus, strict=True)]
    return found
