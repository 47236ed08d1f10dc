"""Why slurm-elastic-ckptman does something with a job, a node or a notice, and how saves went."""

from __future__ import annotations

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes.cause import Cause, Quoted
from slurm_elastic.model.causes.save_refusals import SaveRefusal
from slurm_elastic.model.causes.threats import JobThreat, MoveReason


class JobNotHelped(Cause, frozen=True, kw_only=True):
    """A request for the job cannot be followed, or the job ends in spite of it. ``cause``: the
    refusal, or the event that ends the job.
    """

    cause: SaveRefusal | JobThreat

    @property
    def words(self) -> str:
        return str(self.cause)


class SlurmRefused(Cause, frozen=True, kw_only=True):
    """Slurm did not carry out a command; ``error`` is its answer."""

    error: str

    @property
    def words(self) -> str:
        return self.error


class NodeThreatened(Cause, frozen=True, kw_only=True):
    """The node's machine goes away or reaches its planned end, by a threat's ``cause``."""

    cause: JobThreat

    @property
    def words(self) -> str:
        return str(self.cause)


class NoticesOver(Cause, frozen=True, kw_only=True):
    """The node is given back to Slurm."""

    @property
    def words(self) -> str:
        return "no notice concerns the node now"


class MachineTaken(Cause, frozen=True, kw_only=True):
    """The cloud took the machine of the node."""

    @property
    def words(self) -> str:
        return "its machine was taken away"


class NoJobLeft(Cause, frozen=True, kw_only=True):
    """The drained node is empty."""

    @property
    def words(self) -> str:
        return "no job is left on it"


class NoticeArrived(Cause, frozen=True, kw_only=True):
    """A ``source`` gave a ``notice`` (``NoticeKind``), with a ``reason`` of its own or without.
    ``left_s``: seconds until its deadline, None if it has none.
    """

    notice: str
    source: str
    reason: str = ""
    left_s: float | None = None

    @property
    def words(self) -> str:
        remaining = "" if self.left_s is None else f", {brief(self.left_s)} left"
        return f"{self.reason or f'{self.notice} notice from {self.source}'}{remaining}"


class NoticedMachineGone(Cause, frozen=True, kw_only=True):
    """The machine that the notice named does not exist any longer."""

    @property
    def words(self) -> str:
        return "its machine is gone"


class NoticeProvedWrong(Cause, frozen=True, kw_only=True):
    """The notice's deadline passed long ago."""

    @property
    def words(self) -> str:
        return "its machine is still there long after the deadline"


class NoticedNodeDown(Cause, frozen=True, kw_only=True):
    """Slurm has powered down the node that the notice named."""

    @property
    def words(self) -> str:
        return "its node is powered down"


class NoticedNodeBack(Cause, frozen=True, kw_only=True):
    """The node that the notice named was away, as announced, and is back."""

    @property
    def words(self) -> str:
        return "its node did not answer for a while, and is back"


class NoticedNodeResumed(Cause, frozen=True, kw_only=True):
    """After the deadline a person has resumed the node that the notice named."""

    @property
    def words(self) -> str:
        return "a person has resumed its node"


class NoticedNodeGone(Cause, frozen=True, kw_only=True):
    """Slurm no longer has the node that the notice named."""

    @property
    def words(self) -> str:
        return "Slurm no longer has its node"


class NoticeWithdrawn(Cause, frozen=True, kw_only=True):
    """A person withdrew the notice."""

    @property
    def words(self) -> str:
        return "an operator withdrew it"


class DaemonAway(Cause, frozen=True, kw_only=True):
    """slurm-elasticd, which launches the job's machines, gave no sign of life for ``away_s``."""

    away_s: float

    @property
    def words(self) -> str:
        return f"slurm-elasticd is away for {brief(self.away_s)}"


class NodeNotGivenUp(Cause, frozen=True, kw_only=True):
    """The job has waited for the ``node`` for ``waits_s``, after which a healthy slurm-elasticd
    gives nodes up.
    """

    node: str
    waits_s: float

    @property
    def words(self) -> str:
        waits = brief(self.waits_s)
        return f"{self.node} has not come up for {waits}, and slurm-elasticd has not given it up"


StartDanger = Quoted | DaemonAway | NodeNotGivenUp
"""Why slurm-elasticd may not prevent that slurmctld fails a job."""


class MayBeRequeued(Cause, frozen=True, kw_only=True):
    """``--no-requeue`` is lifted until the job runs, because its nodes may not come up.
    ``danger``: what makes that likely.
    """

    danger: StartDanger

    @property
    def words(self) -> str:
        return (
            f"{self.danger}: if the nodes do not come up, slurmctld requeues the job, which has"
            " not started, instead of failing it"
        )


class JobStarted(Cause, frozen=True, kw_only=True):
    """The job runs, so ``--no-requeue`` is set again."""

    @property
    def words(self) -> str:
        return "it runs"


class ImageMakesSafe(Cause, frozen=True, kw_only=True):
    """``--no-requeue`` is lifted for good, because the job continues from its image."""

    @property
    def words(self) -> str:
        return "--no-requeue is lifted: there is an image"


class ResumedForSave(Cause, frozen=True, kw_only=True):
    """A suspended job is resumed while it is saved."""

    @property
    def words(self) -> str:
        return "it is suspended, and is resumed for the time of its save"


class SuspendedAgain(Cause, frozen=True, kw_only=True):
    """The job is suspended again after its save."""

    @property
    def words(self) -> str:
        return "it is suspended again after its save"


class SaveMade(Cause, frozen=True, kw_only=True):
    """Save ``number`` of the job is complete. ``cause``: why it was made."""

    cause: MoveReason
    number: int
    size_bytes: int
    took_s: float

    @property
    def words(self) -> str:
        return f"{self.cause}: save {self.number}, {self.size_bytes} bytes in {self.took_s:.1f} s"


class SaveFailed(Cause, frozen=True, kw_only=True):
    """The job was not saved, because of an ``error`` of the method or of Slurm."""

    error: str

    @property
    def words(self) -> str:
        return self.error


class SavedByMove(Cause, frozen=True, kw_only=True):
    """An ordered save is not made, because the job is saved for its move."""

    @property
    def words(self) -> str:
        return "it is being moved to other nodes, and saved for that"


class ImagesRemoved(Cause, frozen=True, kw_only=True):
    """The images of an ended job are removed."""

    @property
    def words(self) -> str:
        return "the job has ended, its images are removed"


class JobSavable(Cause, frozen=True, kw_only=True):
    """A save succeeded after all, or the launcher no longer reports an obstacle."""

    @property
    def words(self) -> str:
        return "it can be saved after all"


class LedgerNotWritten(Cause, frozen=True, kw_only=True):
    """The move is not begun, because the ledger cannot be written."""

    error: str

    @property
    def words(self) -> str:
        return f"the ledger cannot be written: {self.error}"


class OutputNotWritten(Cause, frozen=True, kw_only=True):
    """The job's user is not notified in the output file or the job's comment."""

    error: str

    @property
    def words(self) -> str:
        return (
            f"the job's output says nothing about this, because it cannot be written: {self.error}"
        )


class ImageUnusableThere(Cause, frozen=True, kw_only=True):
    """The job is requeued, because its ``nodes`` cannot use its image. ``error``: why, as its
    launcher reports it. The image is good, and other nodes may be able to use it.
    """

    nodes: tuple[str, ...]
    error: str

    @property
    def words(self) -> str:
        return f"{compress(self.nodes)} cannot continue it, other nodes may: {self.error}"


CheckpointStep = (
    JobNotHelped
    | SlurmRefused
    | NodeThreatened
    | NoticesOver
    | MachineTaken
    | NoJobLeft
    | NoticeArrived
    | NoticedMachineGone
    | NoticeProvedWrong
    | NoticedNodeDown
    | NoticedNodeBack
    | NoticedNodeResumed
    | NoticedNodeGone
    | NoticeWithdrawn
    | StartDanger
    | MayBeRequeued
    | JobStarted
    | ImageMakesSafe
    | ResumedForSave
    | SuspendedAgain
    | SaveMade
    | SaveFailed
    | SavedByMove
    | ImagesRemoved
    | JobSavable
    | LedgerNotWritten
    | OutputNotWritten
    | ImageUnusableThere
)
"""All causes of slurm-elastic-ckptman outside of moves."""
