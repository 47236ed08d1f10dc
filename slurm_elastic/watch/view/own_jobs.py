"""The document of ``slurm-elastic mine``: a user's running, waiting and recently ended jobs."""

from __future__ import annotations

from msgspec import Struct

RUNS, WAITS, ENDED = "running", "waiting", "ended"
MAX_ROWS = 1000


class JobSave(Struct, frozen=True, kw_only=True, rename={"move": "move_step"}):
    """The saves of a job.

    ``number``: of its newest image, which was saved ``at`` (Unix time); None if it has none.
    ``reason``: why it has none, or why no new one can be made. ``is_known``: False if the records
    of saves cannot be read, so that it may have one. ``move``: the step of its move to other nodes,
    if it is being moved.
    """

    method: str = ""
    number: int | None = None
    at: float | None = None
    reason: str = ""
    is_known: bool = True
    move: str = ""


class StartForecast(Struct, frozen=True, kw_only=True):
    """When a waiting job starts, in the partition where it starts first.

    ``seconds``: until the start, at 10, 50 and 90 % of all simulated futures. ``is_guess``: the
    site has too few ended jobs for more. ``high``: dollars for the whole limit at the dearest price
    of all its partitions (None: unknown).
    """

    partition: str
    seconds: tuple[int, ...]
    is_guess: bool = False
    high: float | None = None


class OwnJob(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "submitted": "submitted_at", "started": "started_at", "ended": "ended_at",
        "limit": "limit_s", "micro": "micro_dollars", "at_most": "at_most_micro_dollars",
    },
):  # fmt: skip
    """A job, or ``tasks`` waiting tasks of an array.

    ``state``: running, waiting or ended; ``slurm_state``: Slurm's words for it. ``nodes``: a
    hostlist. ``clouds``: where these nodes are; empty for nodes of the site itself. Times are Unix
    time. ``limit``: time limit (s; None: none). ``start``: the forecast of its start. ``begin``:
    Slurm does not start it before this time (0: at any time).

    ``micro``: the cost of all its runs so far, in micro-dollars as in ``cost``. ``at_most``: its
    cost if it runs to its time limit: a running job on the machines that it has, a waiting job
    (all its ``tasks``) at the dearest price of its partitions. None: it has no limit, or the price
    is unknown.

    ``reason``: why it waits, or how it failed. ``advice``: the command that helps. ``stuck``: it
    does not start by itself. ``retry_at``: when a sold-out cloud of it is asked again (None: no
    cloud is sold out).
    """

    id: int
    label: str
    state: str
    name: str = ""
    user: str = ""
    account: str = ""
    tasks: int = 1
    slurm_state: str = ""
    partitions: tuple[str, ...] = ()
    nodes: str = ""
    clouds: tuple[str, ...] = ()
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    limit: int | None = None
    start: StartForecast | None = None
    begin: float = 0.0
    micro: int = 0
    at_most: int | None = None
    reason: str = ""
    advice: str = ""
    stuck: bool = False
    retry_at: float | None = None
    save: JobSave | None = None

    @property
    def has_no_limit(self) -> bool:
        """Whether Slurm says that the job has no time limit. Without Slurm it is unknown."""
        return self.limit is None and bool(self.slurm_state)


class OwnJobs(Struct, frozen=True, kw_only=True):
    """The document of ``mine --json``.

    ``user``: the owner of these jobs ("": all users). ``jobs``: running jobs first, ended
    jobs last, at most MAX_ROWS; ``left_out`` more are not listed. ``since``: ended jobs are listed
    from this time on. ``users``: all users who have jobs now, for users who may see all jobs.
    ``slurm_error``: why Slurm's part is missing ("": it answered). ``end_only``: why
    slurm-elasticd starts no machines.
    """

    at: float
    user: str
    since: float
    jobs: tuple[OwnJob, ...] = ()
    left_out: int = 0
    users: tuple[str, ...] = ()
    slurm_error: str = ""
    end_only: str = ""
    version: int = 1
