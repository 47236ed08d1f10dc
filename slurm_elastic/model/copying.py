"""The copies of jobs' files to machines that share no file system with the head."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class CopyState(StrEnum):
    """OUT: on its way to the machine. THERE: the job may start. OWED: the job is over, and its
    files are to come back. BACK: they are back. LOST: they did not come back. UNSENT: they were not
    copied, and the job must be held. REFUSED: they were not copied, and the job has been held.
    """

    OUT = "out"
    THERE = "there"
    OWED = "owed"
    BACK = "back"
    LOST = "lost"
    UNSENT = "unsent"
    REFUSED = "refused"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to this copy."""
        return self in {CopyState.BACK, CopyState.LOST, CopyState.UNSENT, CopyState.REFUSED}


class JobCopy(Struct, frozen=True, kw_only=True):
    """The files of one run of a job (``restarts`` of the job) on one node, in state ``state`` since
    ``since`` (Unix time). ``outputs``: by path, where this run's output begins in the file on the
    head. ``reason``: why it was lost or not sent, for people.
    """

    job: int
    restarts: int
    node: str
    machine: str
    uid: int
    directory: str
    outputs: Mapping[str, int]
    state: CopyState
    since: float
    reason: str = ""
