"""The memory of slurm-elastic-ckptman, as values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.model import Image, JobRun, Notice, NoticeKind


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


class Held(Struct, frozen=True, kw_only=True):
    """A stopped run that could not be let go on: why, and until when (Unix time) that is not tried
    again, after a ``pause`` in seconds.
    """

    why: str = ""
    pause: float = 0.0
    until: float = 0.0


class Rescue(Struct, frozen=True, kw_only=True):
    """The move of one run of a job, written down before each effect.

    ``threatened``: those of its nodes that are taken away; ``deadline`` (Unix time) when, where
    that is known. ``saves``: a save is wanted and fits before it. ``image`` is what the next run
    goes on from (None: from its start). In WAITING, SAVED and REQUEUEING ``at`` is when to act
    again; in WAITING None means when the node is lost, and ``again`` that another save is tried
    then.
    ``newest``: the number of the job's newest image when the save of this move was asked for (None:
    it was not). ``reached``: when each step was. ``helped``: how often a hold was taken off the
    requeued job. ``held``: its run is stopped, and neither moves nor goes on.
    """

    run: JobRun
    method: str
    threatened: tuple[str, ...]
    reason: str
    step: Step
    began: float
    changed: float
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
    held: Held | None = None
    reached: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its correlation id among the decisions."""
        return f"ckpt-{self.run.label}-{self.run.attempt}"

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.step in ENDS

    @property
    def put_off(self) -> bool:
        """Whether it waits for what may last: nothing is gained by looking often."""
        return self.held is not None and self.step in (Step.SAVED, Step.REQUEUEING)


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
