"""The copies of jobs' files to machines that share no file system with the head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    @property
    def cause_against_image(self) -> str:
        """Why no run may continue from an image of this run, whose files are lost."""
        return f"the files of its run are lost with {self.machine}"

    @property
    def cause_to_hold(self) -> str:
        """Why a person must decide about the job that has such an image."""
        return (
            f"{self.cause_against_image}, and its image needs them; slurm-elastic-ckptman should "
            "have removed this image and has not; submit the job again, or release it to continue "
            "from the image with the files as they are"
        )


_ENDS = frozenset({CopyState.BACK, CopyState.LOST})
REFUSALS = frozenset({CopyState.UNSENT, CopyState.REFUSED})
"""The states of a job that was held, or is about to be, because its files cannot be copied."""


def find_lost_run(rows: Iterable[JobCopy], uid: int, restarts: int) -> JobCopy | None:
    """Return a lost copy of the last run that had files on a machine, before the run ``restarts``
    of the same user's job. None if the files of that run came back, or if a person was already
    asked what becomes of the job.

    ``rows``: the copies of the job.
    """
    earlier = [row for row in rows if row.uid == uid and row.restarts < restarts]
    last_run = max((row.restarts for row in earlier if row.state in _ENDS), default=-1)
    lost = next((r for r in earlier if r.restarts == last_run and r.state is CopyState.LOST), None)
    if lost is None:
        return None
    was_asked = any(
        row.restarts > last_run and row.state in REFUSALS and row.reason == lost.cause_to_hold
        for row in earlier
    )
    return None if was_asked else lost
