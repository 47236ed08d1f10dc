"""The facts that slurm-elastic-ckptman remembers, as values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.threat import OF_JOBS, Cause


class Step(StrEnum):
    """How far the move of a job off a threatened node has come; the last three are its ends."""

    PLANNED = "planned"
    SAVING = "saving"
    WAITING = "waiting"
    SAVED = "saved"
    REQUEUEING = "requeueing"
    REQUEUED = "requeued"
    BACK = "back"
    STAYED = "stayed"
    ENDED = "ended"


ENDS = frozenset({Step.BACK, Step.STAYED, Step.ENDED})


class FailedRelease(Struct, frozen=True, kw_only=True):
    """A stopped run that could not be let go on: why, and until when (Unix time) that is not tried
    again, after a ``pause`` in seconds.
    """

    why: str = ""
    pause: float = 0.0
    until: float = 0.0


class Migration(Struct, frozen=True, kw_only=True):
    """The move of one run of a job, written down before each effect.

    ``cause``: of what; ``threatened``: those of its nodes that are to be left, none where only its
    time limit ends, or it is preempted; ``deadline`` (Unix time) when, where that is known.
    ``saves``: a save is wanted and fits before it. ``image`` is what the next run goes on from
    (None: from its start). In WAITING, SAVED and REQUEUEING ``at`` is when to act again; in WAITING
    None means when the node is lost, and ``again`` that another save is tried then. ``newest``: the
    number of the job's newest image when the save of this move was asked for (None: it was not).
    ``reached``: when each step was. ``stopped``: its run was stopped for an earlier move, and went
    on. ``helped``: how often a hold was taken off the requeued job.
    ``suspended``: since when its run was (Unix time), as the move was planned; 0: it was not.
    ``held``: its run is stopped, and neither moves nor goes on. ``avoids``: the nodes that its user
    keeps it off, and ``excluded`` all of them, where we keep it off more (None: we do not).
    """

    run: JobRun
    method: str
    threatened: tuple[str, ...]
    reason: str
    step: Step
    began: float
    changed: float
    cause: Cause = Cause.RECLAIM
    deadline: float | None = None
    dump: float = 60.0
    saves: bool = True
    image: Image | None = None
    at: float | None = None
    again: bool = False
    tries: int = 0
    newest: int | None = None
    helped: int = 0
    note: str = ""
    stopped: bool = False
    suspended: float = 0.0
    held: FailedRelease | None = None
    avoids: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    reached: dict[str, float] = field(default_factory=dict)

    @property
    def what(self) -> tuple[str, ...]:
        """The nodes, or the job, that ``policies.checkpoint.threat`` names as threatened."""
        return (f"job:{self.run.job}",) if self.cause in OF_JOBS else self.threatened

    @property
    def renewed(self) -> bool:
        """Whether it was requeued to go on with a new time limit."""
        return self.cause is Cause.LIMIT and Step.REQUEUED in self.reached

    @property
    def was_stopped(self) -> bool:
        """Whether its run was stopped for a save, for this move or an earlier one."""
        return self.stopped or Step.SAVED in self.reached

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.step in ENDS

    @property
    def hopeless(self) -> bool:
        """Whether nothing of the run can be saved, and it is left where it is."""
        return self.step is Step.WAITING and self.at is None and not self.again


class UnsavableRun(Struct, frozen=True, kw_only=True):
    """A run of a job cannot be saved: ``why`` in one sentence, and ``remedy``, which would help.
    Found ``at`` (Unix time). ``moved``: it was requeued to machines that are not taken away.
    """

    job: int
    label: str
    attempt: int
    method: str
    at: float
    why: str
    remedy: str
    moved: bool = False


class Suspension(Struct, frozen=True, kw_only=True):
    """A run that a person had suspended (``since``, Unix time), and that was resumed to be saved:
    its job is to be suspended again, where it is or where it goes on.
    """

    job: int
    attempt: int
    since: float


class RecordedNotice(Struct, frozen=True, kw_only=True):
    """A notice as it was taken in. ``source`` says from where; ``closed`` (Unix time) when it was
    over. ``offer`` is the Offer.key of its machine, where that is known.
    """

    key: str
    notice: Notice
    source: str
    offer: str = ""
    closed: float | None = None

    @property
    def takes(self) -> bool:
        """Whether a machine of a known offer is taken away."""
        return bool(self.offer) and self.notice.kind is NoticeKind.INTERRUPTION
