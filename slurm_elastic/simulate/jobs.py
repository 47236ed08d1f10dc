"""Jobs as columns of integers: 88 bytes a job, however long the history is."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LONGEST = 2**33
"""Seconds (272 years). No history and no job is longer, and no Unix time in one is later."""
_LARGEST = 2**40


class Job(NamedTuple):
    """One job. ``submit`` is a point in time; ``run``, how long it ran, and ``limit``, how long it
    might have, are in seconds. ``procs`` are processors. ``user``, ``partition`` and ``account``
    are the history's own numbers; ``memory`` (MiB, 0 if unknown) and ``gpus`` are of all its nodes
    together. It needs ``nodes`` machines at least, however few processors it has on each.
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


def beyond(job: Job) -> str | None:
    """The first value that is absurdly large, as ``name value``; None if there is none."""
    if -_LARGEST < min(job) <= max(job) < LONGEST:
        return None
    for name, value in zip(Job._fields, job, strict=True):
        most = LONGEST if name in ("submit", "run", "limit") else _LARGEST
        if not -most < value < most:
            return f"{name} {str(value)[:24]}"
    return None


class Jobs:
    """Jobs in the order of submission; those submitted together keep the order of the history."""

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
        for job in jobs:
            self.append(job)
        self.sort()

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The columns, in the order of ``Job``."""
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

    def __len__(self) -> int:
        return len(self.submit)

    def __getitem__(self, index: int) -> Job:
        return Job(*(column[index] for column in self.columns))

    def append(self, job: Job) -> None:
        """Add a job at the end; call ``sort`` after the last one."""
        for column, value in zip(self.columns, job, strict=True):
            column.append(value)

    def sort(self) -> None:
        """Sort by submission; jobs that were submitted together keep their order."""
        submit = self.submit
        if all(submit[i] <= submit[i + 1] for i in range(len(submit) - 1)):
            return
        order = sorted(range(len(submit)), key=submit.__getitem__)
        for column in self.columns:
            column[:] = array("q", (column[index] for index in order))

    def only(self, indices: Sequence[int]) -> Jobs:
        """These jobs as a history of their own."""
        some = Jobs()
        for mine, theirs in zip(some.columns, self.columns, strict=True):
            mine.extend(theirs[index] for index in indices)
        some.sort()
        return some
