"""The steps of a job's move to other nodes (``ckptman.steps``)."""

from __future__ import annotations

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.requeues import (
    MayNotBeRequeued,
    RequeueIgnored,
    RequeueNotYet,
    RequeueRepeated,
    RequeueTooLate,
    RunContinued,
    RunStillEnds,
    SuspendedJustNow,
    WillContinue,
)
from slurm_elastic.model.causes.run_starts import NextRunStart
from slurm_elastic.model.causes.save_refusals import SaveRefusal
from slurm_elastic.model.causes.threats import (
    MachineLostUnannounced,
    MoveReason,
    RunEndedUnannounced,
)
from slurm_elastic.model.causes.waits import WaitHint


class MovePlanned(Cause, frozen=True, kw_only=True):
    """The move begins. ``cause``: what threatens the job."""

    cause: MoveReason

    @property
    def words(self) -> str:
        return str(self.cause)


class DeadlineSooner(Cause, frozen=True, kw_only=True):
    """The job's nodes go away earlier than planned, in ``left_s``."""

    left_s: float

    @property
    def words(self) -> str:
        return f"its deadline is earlier: {brief(self.left_s)} are left"


class DeadlineLater(Cause, frozen=True, kw_only=True):
    """The job's nodes go away later than planned, in ``left_s``, so it is saved once more."""

    left_s: float

    @property
    def words(self) -> str:
        return f"its deadline is later: {brief(self.left_s)} are left, so another save is tried"


class SaveFoundWhole(Cause, frozen=True, kw_only=True):
    """Save ``number`` was complete when this service started."""

    number: int

    @property
    def words(self) -> str:
        return f"save {self.number} was complete before a restart"


class SaveIsWhole(Cause, frozen=True, kw_only=True):
    """Save ``number`` of the move is complete."""

    number: int
    size_bytes: int
    took_s: float

    @property
    def words(self) -> str:
        return f"save {self.number} is whole: {self.size_bytes} bytes in {self.took_s:.1f} s"


class MoveSaveFailed(Cause, frozen=True, kw_only=True):
    """The job was not saved for its move, because of an ``error``."""

    error: str

    @property
    def words(self) -> str:
        return self.error


class RunNotReleased(Cause, frozen=True, kw_only=True):
    """The stopped run cannot continue, because of an ``error``."""

    error: str

    @property
    def words(self) -> str:
        return self.error


class MethodUnusable(Cause, frozen=True, kw_only=True):
    """The stopped run cannot continue, because its ``method`` cannot be used now."""

    method: str

    @property
    def words(self) -> str:
        return f"checkpoint method {self.method!r} cannot be used now"


class MethodGone(Cause, frozen=True, kw_only=True):
    """The ``method`` with which the move was planned cannot be used any longer."""

    method: str

    @property
    def words(self) -> str:
        return f"method {self.method} can no longer be used here"


class SaveTooLong(Cause, frozen=True, kw_only=True):
    """A save may take ``save_s``, but only ``left_s`` are left."""

    save_s: float
    left_s: float

    @property
    def words(self) -> str:
        return f"a save may take {brief(self.save_s)}, which does not fit into {brief(self.left_s)}"


class StoppedInVain(Cause, frozen=True, kw_only=True):
    """The run was stopped for an earlier move and continued, so it works for a while before it is
    stopped again.
    """

    @property
    def words(self) -> str:
        return "it was stopped for an earlier save, without success"


class PolicyWantsNoSave(Cause, frozen=True, kw_only=True):
    """The job's checkpoint ``policy`` (in its text form, "" if unknown) wants no save now."""

    policy: str

    @property
    def words(self) -> str:
        policy = f" is {self.policy}, and" if self.policy else ""
        return f"its checkpoint policy{policy} wants no save now"


class DeadlineTooNear(Cause, frozen=True, kw_only=True):
    """Not even the shortest save ends before the deadline."""

    @property
    def words(self) -> str:
        return "the deadline is too near"


class SaveNotWhole(Cause, frozen=True, kw_only=True):
    """Save ``number`` of the move was made, and cannot be trusted."""

    number: int

    @property
    def words(self) -> str:
        return f"save {self.number} is not whole"


SaveObstacle = (
    SaveRefusal
    | MethodGone
    | SaveTooLong
    | StoppedInVain
    | PolicyWantsNoSave
    | DeadlineTooNear
    | SaveNotWhole
    | MoveSaveFailed
)
"""Why a job is not saved for its move."""


class NoImage(Cause, frozen=True, kw_only=True):
    """No save is possible, for a ``cause``, and the job has no image. ``runs``: its run exists."""

    cause: SaveObstacle
    runs: bool

    @property
    def words(self) -> str:
        outlook = "the job keeps running; if its machine is lost, it starts over"
        return f"{self.cause}; there is no image: {outlook if self.runs else 'its run is over'}"


class MoveNotNeeded(Cause, frozen=True, kw_only=True):
    """No save is possible, for a ``cause``, but the machine stays while a job runs on it."""

    cause: SaveObstacle
    runs: bool

    @property
    def words(self) -> str:
        return f"{self.cause}; {'the job keeps running' if self.runs else 'its run is over'}"


class OlderImage(Cause, frozen=True, kw_only=True):
    """No save is possible, for a ``cause``: the job continues from save ``number``."""

    cause: SaveObstacle
    number: int
    age_s: float

    @property
    def words(self) -> str:
        save = f"save {self.number}, {brief(self.age_s)} old"
        return f"{self.cause}; the job will continue from {save}"


class ImagesNotListed(Cause, frozen=True, kw_only=True):
    """The method cannot list the job's images."""

    error: str

    @property
    def words(self) -> str:
        return f"images cannot be listed: {self.error}"


class ImageNotUsed(Cause, frozen=True, kw_only=True):
    """Save ``number`` cannot be trusted."""

    number: int
    error: str

    @property
    def words(self) -> str:
        return f"save {self.number} is not used: {self.error}"


class JobUnlisted(Cause, frozen=True, kw_only=True):
    """The job does not exist any longer."""

    @property
    def words(self) -> str:
        return "Slurm no longer lists the job"


class JobOver(Cause, frozen=True, kw_only=True):
    """The job has ended, in these ``states`` of Slurm. ``is_unnoticed``: so soon that its output
    says nothing about its move.
    """

    states: tuple[str, ...]
    is_unnoticed: bool = False

    @property
    def words(self) -> str:
        unnoticed = "; its output says nothing about its move, because the job was over too soon"
        return f"it is {' '.join(self.states)}{unnoticed if self.is_unnoticed else ''}"


class RequeueSeen(Cause, frozen=True, kw_only=True):
    """Slurm's restart count of the job has grown."""

    @property
    def words(self) -> str:
        return "Slurm has requeued the job"


class NoLongerThreatened(Cause, frozen=True, kw_only=True):
    """The move ends, because nothing threatens the job."""

    @property
    def words(self) -> str:
        return "the job is no longer threatened"


class JobRunsAgain(Cause, frozen=True, kw_only=True):
    """The job runs on ``nodes``, ``took_s`` after its move began."""

    nodes: tuple[str, ...]
    took_s: float
    start: NextRunStart

    @property
    def words(self) -> str:
        return f"it runs on {','.join(self.nodes)} after {self.took_s:.1f} s, from {self.start}"


class LostJobRuns(Cause, frozen=True, kw_only=True):
    """The job runs on ``nodes`` after its run ended without a notice, for a ``cause``."""

    cause: Quoted | MachineLostUnannounced | RunEndedUnannounced
    nodes: tuple[str, ...]
    start: NextRunStart

    @property
    def words(self) -> str:
        return f"{self.cause}; it runs on {','.join(self.nodes)}, from {self.start}"


class NamedNodesGo(Cause, frozen=True, kw_only=True):
    """Some of the ``nodes`` that the job named go away, so its list of nodes is removed."""

    nodes: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"it asked for {','.join(self.nodes)}, whose machine goes away"


class AvoidsSpotNodes(Cause, frozen=True, kw_only=True):
    """The job is kept off ``nodes`` with spot machines."""

    nodes: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"it avoids {compress(self.nodes)}, whose machines may be taken away"


class HoldOfSlurmReleased(Cause, frozen=True, kw_only=True):
    """Slurm held the requeued job, for a ``reason`` of its own."""

    reason: str

    @property
    def words(self) -> str:
        return f"Slurm held it: {self.reason}"


class StillPending(Cause, frozen=True, kw_only=True):
    """The requeued job waits, for a ``reason`` of Slurm. ``hint``: what would help."""

    reason: str
    hint: WaitHint | None = None

    @property
    def words(self) -> str:
        return f"it waits: {self.reason}{f': {self.hint}' if self.hint else ''}"


MoveStep = (
    MovePlanned
    | DeadlineSooner
    | DeadlineLater
    | SaveFoundWhole
    | SaveIsWhole
    | RunNotReleased
    | MethodUnusable
    | SaveObstacle
    | NoImage
    | MoveNotNeeded
    | OlderImage
    | ImagesNotListed
    | ImageNotUsed
    | JobUnlisted
    | JobOver
    | RequeueSeen
    | NoLongerThreatened
    | NextRunStart
    | JobRunsAgain
    | LostJobRuns
    | RequeueIgnored
    | RequeueRepeated
    | SuspendedJustNow
    | RunStillEnds
    | RequeueNotYet
    | RequeueTooLate
    | RunContinued
    | MayNotBeRequeued
    | WillContinue
    | NamedNodesGo
    | AvoidsSpotNodes
    | HoldOfSlurmReleased
    | StillPending
    | WaitHint
)
"""All causes of a move's steps."""
