"""Slurm's nodes and jobs as values, as its commands or pyslurm tell them: frozen, without I/O.

Units are those of ``model``; what Slurm does not tell is empty or 0.
"""

from __future__ import annotations

from msgspec import Struct, field

from slurm_elastic.model.slurm_words import job_states, pending_reasons

ON_NODES, ENDED = job_states.ON_NODES, job_states.ENDED
REQUEUE_HOLD = 130.0
"""Seconds: no requeue's begin time is farther off (121 s on 22.05)."""

NOWHERE = "233.252.0.1"
"""The address of a node that has no machine: of the multicast network for documentation (RFC 6676),
to which connect() fails at once (ENETUNREACH), whatever routes and firewalls a site has. slurmctld
resets it when the node has powered down.

It has to tell a refused node that its jobs are killed. By default it looks for the node's name,
which nobody knows: up to ten times, a second apart, with its configuration locked (Debian's 22.05,
measured: the job starts elsewhere 10 to 20 s later, and squeue hangs for up to 10 s; 24.11 and
26.05 need it not, and take it as well). And that order, of a node that was lost, must not reach the
machine that has its old address now.
"""


class SlurmNode(Struct, frozen=True, kw_only=True, gc=False):
    """A node as Slurm sees it. ``states``: base state and flags, upper case.

    Flags are spelled as in ``sinfo --json`` (``CLOUD POWERED_DOWN POWERING_DOWN POWERING_UP
    POWER_DOWN POWER_UP DRAIN NOT_RESPONDING ...``; src/common/slurm_protocol_defs.c). ``port`` is
    its slurmd's, 0 where that is not known: one host may be several nodes. ``reason_at`` is when
    ``reason_user`` gave the reason (Unix time).
    """

    name: str
    states: frozenset[str]
    reason: str = ""
    reason_user: str = ""
    partitions: tuple[str, ...] = ()
    address: str = ""
    port: int = 0
    cpus: int = 0
    memory: int = 0
    last_busy: float = 0.0
    boot_time: float = 0.0
    weight: int = 0
    comment: str = ""
    reason_at: float = 0.0


class Reservation(Struct, frozen=True, kw_only=True):
    """Nodes that Slurm keeps for something from ``start`` to ``end`` (Unix time). ``flags`` in
    upper case, MAINT among them for a maintenance. If ``is_partial``, Slurm keeps only some cores
    of the nodes, and other jobs may use the others. ``owners`` are the users and accounts that may
    use it.
    """

    name: str
    start: float
    end: float
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    is_partial: bool = False
    owners: tuple[str, ...] = ()


class SuspendExclusions(Struct, frozen=True, kw_only=True):
    """The options by which slurm.conf keeps nodes from being powered down: SuspendExcNodes,
    SuspendExcParts, and SuspendExcStates in upper case.
    """

    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


class SlurmJob(Struct, frozen=True, kw_only=True, gc=False):
    """A queued, running or just ended job; ``nodes`` is empty while pending, times are Unix, 0
    unknown. ``array`` is the job id of the array that it is task ``task`` of. ``exit_code`` is its
    batch script's, ``killed_by`` the number of the signal that ended that; ``required`` are the
    nodes that its user named. ``start`` of a pending job may be an estimate, ``eligible`` is when
    it may start at the earliest (its BeginTime); ``description`` is what Slurm adds to the reason.

    ``tasks`` of an array are still one job while they are pending. ``node_count`` and ``cpus`` are
    what one of them asked for, ``limit`` its time limit (s; None: none is set), ``gres`` (of each
    node, or a part of one), ``job_gres`` (of all nodes together, as by --gpus) and ``features``
    what it wants in Slurm's spelling; ``node_cpus`` and ``node_memory`` (MiB) what
    each of its nodes must have, or ``cpu_memory`` for each CPU. ``excluded`` are nodes to avoid
    (22.05's list of jobs lacks them), ``licenses`` are in Slurm's spelling (``matlab:2,ansys``).
    ``end`` is when it ended; ``preempted`` when Slurm will end a run that is to make room for a job
    of higher priority (0: it is not); ``suspended`` since when it is suspended (0: it is not, or by
    22.05, which does not tell); ``allocated`` what it has, or had, of all its nodes, as Slurm
    spells it (``cpu=4,mem=8G,gres/gpu=1``).
    """

    id: int
    states: frozenset[str]
    user: str = ""
    account: str = ""
    partitions: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str = ""
    start: float = 0.0
    submit: float = 0.0
    requeue: bool = True
    restarts: int = 0
    name: str = ""
    uid: int = -1
    gid: int = -1
    array: int = 0
    task: int | None = None
    batch: bool = True
    comment: str = ""
    required: tuple[str, ...] = ()
    directory: str = ""
    output: str = ""
    killed_by: int = 0
    exit_code: int = 0
    tasks: int = 1
    node_count: int = 1
    cpus: int = 1
    limit: int | None = None
    priority: int = 0
    gres: str = ""
    job_gres: str = ""
    features: str = ""
    eligible: float = 0.0
    description: str = ""
    qos: str = ""
    reservation: str = ""
    licenses: str = ""
    excluded: tuple[str, ...] = ()
    node_cpus: int = 1
    node_memory: int = 0
    cpu_memory: int = 0
    end: float = 0.0
    preempted: float = 0.0
    suspended: float = 0.0
    allocated: str = ""

    @property
    def is_suspended(self) -> bool:
        """Whether all its processes are stopped, by a person or by Slurm."""
        return "SUSPENDED" in self.states and "COMPLETING" not in self.states

    @property
    def is_suspended_by_person(self) -> bool:
        """Whether that was ``scontrol suspend``: Slurm sets the priority of such a job to 0 until
        it is resumed, and leaves that of one that it suspends for another job.
        """
        return self.is_suspended and self.priority == 0

    @property
    def died_of(self) -> int:
        """The number of the signal that ended its batch script, or that ended its last command, as
        shells and launchers of MPI hand it on (128 and the signal); 0: none.
        """
        return self.killed_by or max(self.exit_code - 128, 0)

    @property
    def has_ended(self) -> bool:
        """Whether no process of it runs, nor will: Slurm only remembers it."""
        return bool(self.states & ENDED) and not self.states & {"PENDING", "COMPLETING"}

    @property
    def begin(self) -> float:
        """Before this (Unix time) a pending job may not start. For one that is held Slurm does not
        say it (22.05, measured), nor does ``start`` then.
        """
        return self.eligible if self.eligible or self.wait_reason.is_held else self.start

    @property
    def wait_reason(self) -> pending_reasons.Reason:
        """The reason for which it is pending, with its row of the table of reasons."""
        return pending_reasons.reason_of(self.reason, self.description)

    @property
    def is_held(self) -> bool:
        """Whether it starts only after somebody has released it."""
        return self.wait_reason.is_held or not self.states.isdisjoint(job_states.HOLDS)

    @property
    def is_held_by_slurm(self) -> bool:
        """Whether Slurm holds it since its script has ended, by ``--requeue=expedite`` without a
        failed epilog (25.11 and later) or by RequeueExitHold, and nobody has put a hold on it. The
        reason is JobHeldUser then; ``scontrol requeuehold`` leaves PENDING alone (measured).
        """
        return not self.states.isdisjoint(job_states.HOLDS) and not self.wait_reason.is_by_admin

    def is_requeue_hold(self, now: float) -> bool:
        """Whether the begin time of a pending job is not its user's, but comes from a requeue."""
        return self.restarts > 0 and now < self.begin <= now + REQUEUE_HOLD and not self.is_held

    @property
    def label(self) -> str:
        """The name in Slurm's commands: of an array ``12_3``, as ``12`` is all of its tasks."""
        return str(self.id) if self.task is None else f"{self.array}_{self.task}"


class Request(Struct, frozen=True, kw_only=True):
    """One call of one of slurmctld's programs: ``kind`` is resume, suspend or resume-fail. ``id``
    is the correlation id of all that follows, ``received`` when it came (Unix time), and ``jobs``
    says which job waits for which nodes; ``note`` what of that could not be read.
    """

    id: str
    kind: str
    nodes: tuple[str, ...]
    received: float
    jobs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    note: str | None = None
