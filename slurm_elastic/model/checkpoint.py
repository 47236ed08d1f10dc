"""The runs of a job, and the checkpoints from which they continue."""

from __future__ import annotations

from msgspec import Struct, field

from slurm_elastic.model.job_key import JobKey


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a batch job: from a start on its nodes to its end or requeue.

    ``job``: Slurm's job id. ``label``: the id in users' commands (``12``, or ``12_3`` for a task of
    an array). ``attempt``: the number of restarts by Slurm before this run. ``started``: Unix time.
    ``options``: the user's options for the checkpoint method. ``directory``: the working directory.
    ``submitted``: the SubmitTime of this run (Unix time), 0 if unknown.
    """

    job: int
    label: str
    attempt: int
    user: str
    uid: int
    gid: int
    nodes: tuple[str, ...]
    partition: str
    started: float
    options: dict[str, str] = field(default_factory=dict)
    directory: str = ""
    submitted: float = 0.0

    @property
    def key(self) -> JobKey:
        """The identity of the job, as seen in this run."""
        return JobKey(number=self.job, uid=self.uid, attempt=self.attempt, submitted=self.submitted)


class Image(Struct, frozen=True, kw_only=True):
    """A checkpoint of a job's run that was verified as complete. ``taken``: Unix time. ``seconds``:
    how long it took. ``size``: bytes. ``path``: its directory, "" if the application keeps it.
    ``uid`` and ``submitted`` (the SubmitTime of its run) tell the job from a later one with the
    same number; -1 and 0 if unknown.
    """

    job: int
    label: str
    attempt: int
    number: int
    method: str
    node: str
    taken: float
    seconds: float
    size: int = 0
    path: str = ""
    uid: int = -1
    submitted: float = 0.0

    @property
    def key(self) -> JobKey:
        """The identity of the job, as seen in the run that was saved."""
        return JobKey(number=self.job, uid=self.uid, attempt=self.attempt, submitted=self.submitted)


class Origin(Struct, frozen=True, kw_only=True):
    """The point from which a run of a job began. ``image``: the number of the image, 0 for the
    start of the script, None if unknown. ``why``: the reason if it is not the newest image.
    ``is_unfit``: the run has not begun, and waits for nodes that can use the image.
    """

    image: int | None = None
    why: str = ""
    is_unfit: bool = False
