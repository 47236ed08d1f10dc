"""Whether and when a saved job is requeued (``ckptman.requeueing``)."""

from __future__ import annotations

from slurm_elastic.base.units import brief, counted, format_moment
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.checkpoints import SlurmRefused


class RequeueRepeated(Cause, frozen=True, kw_only=True):
    """Slurm accepted the requeue, but did not requeue the job."""

    @property
    def words(self) -> str:
        return "its requeue had no effect and is repeated"


class RequeueIgnored(Cause, frozen=True, kw_only=True):
    """Slurm accepts each requeue, but does not requeue the job."""

    @property
    def words(self) -> str:
        return "Slurm accepted it each time, without effect"


class SuspendedJustNow(Cause, frozen=True, kw_only=True):
    """A person suspended the job so short a time ago that it cannot be resumed yet."""

    @property
    def words(self) -> str:
        return "it was suspended just now"


class RunStillEnds(Cause, frozen=True, kw_only=True):
    """The run is over, but its epilog still runs, so that Slurm does not show yet how it ended."""

    @property
    def words(self) -> str:
        return "its run ends, and Slurm does not say yet whether it is finished"


RequeueObstacle = Quoted | SlurmRefused | SuspendedJustNow | RunStillEnds | RequeueIgnored
"""Why a saved job is not requeued yet."""


class RequeueNotYet(Cause, frozen=True, kw_only=True):
    """The requeue is tried again, for a ``cause``."""

    cause: RequeueObstacle

    @property
    def words(self) -> str:
        return str(self.cause)


class RequeueTooLate(Cause, frozen=True, kw_only=True):
    """The requeue did not come in ``late_s``, for a ``cause``."""

    late_s: float
    cause: RequeueObstacle

    @property
    def words(self) -> str:
        late = brief(self.late_s)
        return f"its requeue did not come in {late} ({self.cause}): the job continues where it is"


class RunContinued(Cause, frozen=True, kw_only=True):
    """The run no longer waits for its requeue after save ``number``: it works."""

    number: int

    @property
    def words(self) -> str:
        return f"it has worked since save {self.number}, and a requeue would lose that work"


class MayNotBeRequeued(Cause, frozen=True, kw_only=True):
    """The job has ``--no-requeue`` and no image."""

    @property
    def words(self) -> str:
        return "it must not be requeued (--no-requeue) and has no image: it ends with its node"


class MachinesLost(Cause, frozen=True, kw_only=True):
    """The job has lost ``count`` machines in a row, the first one at ``first_at`` (Unix s).
    ``consequence``: the consequence for the job, "" if not decided yet.
    """

    count: int
    first_at: float
    consequence: str = ""

    @property
    def words(self) -> str:
        return (
            f"{counted(self.count, 'machine')} in a row ended under it since"
            f" {format_moment(self.first_at)}: it may itself be the cause (memory, a driver)"
            f"{f'; {self.consequence}' if self.consequence else ''}"
        )


class WillContinue(Cause, frozen=True, kw_only=True):
    """The job is requeued. ``save``: the number of its image, None if it starts over."""

    save: int | None = None

    @property
    def words(self) -> str:
        source = "its start" if self.save is None else f"save {self.save}"
        return f"it will continue from {source} on another node"
