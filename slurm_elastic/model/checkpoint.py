"""A job's runs, and the checkpoints that they go on from."""

from __future__ import annotations

from msgspec import Struct, field


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a batch job: from a start on its nodes to its end or requeue.

    ``job`` is Slurm's job id, ``label`` what users call it (``12`` or ``12_3`` of an array);
    ``attempt`` is the number of Slurm's restarts before it. Times are Unix time. ``options`` are
    what its user says of the method; ``directory`` is the job's working directory.
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


class Image(Struct, frozen=True, kw_only=True):
    """A checkpoint of a job's run that was found complete. ``path`` is its directory ("" where the
    application keeps it itself), ``size`` bytes, ``seconds`` what taking it took.
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


class Origin(Struct, frozen=True, kw_only=True):
    """Where a run of a job began: the number of the image that it goes on from, 0 for the start of
    its script (None: not told), and ``why`` not from the newest image.
    """

    image: int | None = None
    why: str = ""
