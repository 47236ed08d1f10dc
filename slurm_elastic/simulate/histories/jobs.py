"""Jobs as columns of integers, which take 88 bytes per job."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_elastic.policies.launch.job_data import NO_DATA, JobData

MAX_SECONDS = 2**33
"""Seconds (272 years). Longer histories and jobs, and later Unix times, are errors of the file."""
_MAX_VALUE = 2**40
_MAX_NUMBER = 2**63 - 1
"""Some histories have hashes for users. A number that only names something may fill its column."""
_NUMBERS = frozenset({"number", "user", "partition", "account"})


class Job(NamedTuple):
    """A job. ``submit``: the second of its submission; ``run``: its duration in seconds; ``limit``:
    its time limit in seconds; ``procs``: its processors. ``user``, ``partition`` and ``account``
    are numbers of the history. ``memory`` (MiB, 0 if unknown) and ``gpus`` are sums over its nodes.
    ``nodes``: the machines that it needs at least, even if it uses few processors of each.
    """

    number: int
    submit: int
    run: int
    limit: int
    procs: int
    user: int = -1
    partition: int = -1
    account: int = -1
    memory: int = 0
    gpus: int = 0
    nodes: int = 1


def implausible_value(job: Job) -> str | None:
    """Return the first implausibly large value, as ``name value``; None if there is none."""
    if -_MAX_VALUE < min(job) <= max(job) < MAX_SECONDS:
        return None
    for name, value in zip(Job._fields, job, strict=True):
        if not -_bound(name) < value < _bound(name):
            return f"{name} {str(value)[:24]}"
    return None


def _bound(name: str) -> int:
    if name in _NUMBERS:
        return _MAX_NUMBER
    return MAX_SECONDS if name in ("submit", "run", "limit") else _MAX_VALUE


class Jobs:
    """Jobs in the order of submission. Jobs of the same second keep the order of the history.
    ``data``: by number, the data that jobs move, of the few that say so. ``machines_needed``: by
    the size of machines, how many of them each job needs (``shared_machines`` fills it).
    """

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self.number = array("q")
        self.submit = array("q")
        self.run = array("q")
        self.limit = array("q")
        self.procs = array("q")
        self.user = array("q")
        self.partition = array("q")
        self.account = array("q")
        self.memory = array("q")
        self.gpus = array("q")
        self.nodes = array("q")
        self.data: dict[int, JobData] = {}
        self.machines_needed: dict[tuple[int, ...], array[int]] = {}
        for job in jobs:
            self.append(job)
        self.sort()

    @property
    def columns(self) -> tuple[array[int], ...]:
        """Return the columns, in the order of the fields of ``Job``."""
        return (
            self.number,
            self.submit,
            self.run,
            self.limit,
            self.procs,
            self.user,
            self.partition,
            self.account,
            self.memory,
            self.gpus,
            self.nodes,
        )

    @property
    def begin(self) -> int:
        """Return when the first job was submitted (0: there is none)."""
        return self.submit[0] if self.submit else 0

    def __len__(self) -> int:
        return len(self.submit)

    def __getitem__(self, index: int) -> Job:
        return Job(*(column[index] for column in self.columns))

    def data_of(self, index: int) -> JobData:
        """Return the data that the job moves."""
        return self.data.get(self.number[index], NO_DATA) if self.data else NO_DATA

    def append(self, job: Job) -> None:
        """Add a job at the end. Call ``sort`` after the last job."""
        # Written out, because a history may have a million jobs.
        number, submit, run, limit, procs, user, partition, account, memory, gpus, nodes = job
        self.number.append(number)
        self.submit.append(submit)
        self.run.append(run)
        self.limit.append(limit)
        self.procs.append(procs)
        self.user.append(user)
        self.partition.append(partition)
        self.account.append(account)
        self.memory.append(memory)
        self.gpus.append(gpus)
        self.nodes.append(nodes)

    def sort(self) -> None:
        """Sort by submission. Jobs of the same second keep their order."""
        submit = self.submit
        if all(submit[i] <= submit[i + 1] for i in range(len(submit) - 1)):
            return
        order = sorted(range(len(submit)), key=submit.__getitem__)
        for column in self.columns:
            column[:] = array("q", (column[index] for index in order))

    def only(self, indices: Sequence[int]) -> Jobs:
        """Return a copy with only these jobs."""
        subset = Jobs()
        for subset_column, column in zip(subset.columns, self.columns, strict=True):
            subset_column.extend(column[index] for index in indices)
        subset.sort()
        subset.data = self.data
        return subset
