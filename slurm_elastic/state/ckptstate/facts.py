"""The facts that slurm-elastic-ckptman remembers, as values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.hindrances import Hindrance
from slurm_elastic.model.causes.threats import MoveReason
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.threat import OF_JOBS, ThreatCause


class MigrationStep(StrEnum):
    """How far the move of a job has come. The last three are its ends."""

    PLANNED = "planned"
    SAVING = "saving"
    WAITING = "waiting"
    SAVED = "saved"
    REQUEUEING = "requeueing"
    REQUEUED = "requeued"
    BACK = "back"
    STAYED = "stayed"
    ENDED = "ended"


ENDS = frozenset({MigrationStep.BACK, MigrationStep.STAYED, MigrationStep.ENDED})


MAX_RETRY_WAIT_S = 60.0
"""A failed save counts as given up if the wait for the next one is longer (s)."""


class FailedRelease(Struct, frozen=True, kw_only=True):
    """A stopped run that could not be released: the ``cause`` (None: it was not tried yet), and
    ``until`` when (Unix time) it is not tried again, after a ``pause`` (s).
    """

    cause: AnyCause | None = None
    pause: float = 0.0
    until: float = 0.0


class Migration(Struct, frozen=True, kw_only=True):
    """The move of one run of a job, written before each effect.

    ``reason``: why it moves. ``note``: why it is not further, or how it ended.
    ``threatened``: the nodes to leave; none if the time limit ends or the job is preempted.
    ``deadline``: when they end (Unix time; None: unknown). ``saves``: a save is wanted and fits
    before the deadline. ``image``: what the next run continues from (None: its start). ``at``: when
    to act again in WAITING, SAVED and REQUEUEING; in WAITING None means when the node is lost.
    ``again``: another save is tried at that time.

    ``newest``: the number of the job's newest image when the save of this move was requested (None:
    not requested). ``reached``: when each step was reached (Unix time). ``stopped``: the run was
    stopped for an earlier move, and continued. ``pause``: for how long it then works before a save
    without a deadline (s; 0: it was not stopped). ``helped``: how often we released a hold of the
    requeued job. ``suspended``: since when the run was suspended as the move was planned (Unix
    time; 0: it was not). ``held``: the run is stopped and could be neither moved nor released.
    ``avoids``: the nodes that the user excluded; ``excluded``: these and the nodes that we exclude
    (None: we exclude none).
    """

    run: JobRun
    method: str
    threatened: tuple[str, ...]
    reason: MoveReason
    step: MigrationStep
    began: float
    changed: float
    cause: ThreatCause = ThreatCause.RECLAIM
    deadline: float | None = None
    dump: float = 60.0
    saves: bool = True
    image: Image | None = None
    at: float | None = None
    again: bool = False
    tries: int = 0
    newest: int | None = None
    helped: int = 0
    note: AnyCause | None = None
    stopped: bool = False
    pause: float = 0.0
    suspended: float = 0.0
    held: FailedRelease | None = None
    avoids: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    reached: dict[str, float] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """The subjects in the sense of ``policies.checkpoint.threat``: the nodes, or the job."""
        return (f"job:{self.run.job}",) if self.cause in OF_JOBS else self.threatened

    @property
    def was_renewed(self) -> bool:
        """Whether the job was requeued to continue with a new time limit."""
        return self.cause is ThreatCause.LIMIT and MigrationStep.REQUEUED in self.reached

    @property
    def was_stopped(self) -> bool:
        """Whether the run was stopped for a save, for this move or an earlier one."""
        return self.stopped or MigrationStep.SAVED in self.reached

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.step in ENDS

    @property
    def has_left_exclusions(self) -> bool:
        """Whether the move is over, and its job still has the list of excluded nodes that we set
        for it.
        """
        return self.is_over and self.avoids is not None

    @property
    def is_hopeless(self) -> bool:
        """Whether the run cannot be saved, and is left where it is. Another save may be tried some
        minutes later.
        """
        if self.step is not MigrationStep.WAITING:
            return False
        if not self.again:
            return self.at is None
        is_far = self.at is not None and self.at - self.changed > MAX_RETRY_WAIT_S
        return self.tries > 0 and self.image is None and is_far


class UnsavableRun(Struct, frozen=True, kw_only=True):
    """A run of a job that cannot be saved. ``at``: when we found out (Unix time).
    ``moved``: the job was requeued to machines that are not taken away.
    """

    job: int
    label: str
    attempt: int
    method: str
    at: float
    cause: Hindrance
    moved: bool = False

    @property
    def remedy(self) -> str:
        """What its user can do, to stand after "it would help to"."""
        return self.cause.remedy


class Suspension(Struct, frozen=True, kw_only=True):
    """A run that a person had suspended (``since``, Unix time) and that we resumed for a save. Its
    job must be suspended again, in place or on its next node.
    """

    job: int
    attempt: int
    since: float


class AvoidedNodes(Struct, frozen=True, kw_only=True):
    """The nodes that we have added to a job's excluded nodes because they could not use its image.
    ``nodes``: by node, the id of the machine that could not ("": a node without a machine of ours).
    """

    job: int
    nodes: dict[str, str]


class RecordedNotice(Struct, frozen=True, kw_only=True):
    """A notice as it was taken in. ``source``: where it came from. ``closed``: when it was over
    (Unix time). ``offer``: the Offer.key of its machine, if it is known. ``was_drained``,
    ``was_away``: since the notice its node was seen drained, and was seen not answering.
    ``is_standing``: its source repeats it, without a time, as long as it is true.
    """

    key: str
    notice: Notice
    source: str
    offer: str = ""
    closed: float | None = None
    was_drained: bool = False
    was_away: bool = False
    is_standing: bool = False

    @property
    def takes(self) -> bool:
        """Whether a machine of a known offer is taken away."""
        return bool(self.offer) and self.notice.kind is NoticeKind.INTERRUPTION
