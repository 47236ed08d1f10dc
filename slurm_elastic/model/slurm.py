"""Slurm's nodes and jobs as values, read by its commands or pyslurm: frozen, without I/O.

Units: times are Unix time, memory is in MiB. Values that Slurm does not report are empty or 0.
"""

from __future__ import annotations

import shlex

from msgspec import Struct, field

from slurm_elastic.model.job_key import JobKey
from slurm_elastic.model.slurm_words import job_states, pending_reasons

ON_NODES, ENDED, BOOTS = job_states.ON_NODES, job_states.ENDED, job_states.BOOTS
REQUEUE_HOLD = 130.0
"""The begin time that Slurm gives to a requeued job is at most this many seconds in the future
(22.05: 121 s).
"""

NOWHERE = "233.252.0.1"
"""The address of a node that has no machine. It is in the multicast network for documentation (RFC
6676), to which connect() fails at once (ENETUNREACH), independently of a site's routes and
firewalls. slurmctld resets the address when the node has powered down.

We need it because slurmctld must tell a refused node that its jobs are killed. By default it looks
up the node's name, which no DNS has, up to ten times, a second apart, with its configuration locked
(measured with Debian's 22.05: the job starts elsewhere 10 to 20 s later, and squeue hangs for up to
10 s). 24.11 and 26.05 do not need the address, but accept it. Moreover, the kill order for a lost
node must not reach another machine that has the node's old address.
"""


def leads_nowhere(address: str) -> bool:
    """Whether this is NOWHERE or one of its neighbours, which slurm.conf gives to cloud nodes until
    their machines register.
    """
    return address.startswith("233.252.")


class SlurmNode(Struct, frozen=True, kw_only=True, gc=False):
    """A node in Slurm. ``states``: base state and flags, upper case.

    Flags are spelled as in ``sinfo --json`` (``CLOUD POWERED_DOWN POWERING_DOWN POWERING_UP
    POWER_DOWN POWER_UP DRAIN NOT_RESPONDING ...``; src/common/slurm_protocol_defs.c). ``port``: its
    slurmd's port, 0 if unknown; one host may run several nodes. ``reason_at``: when
    ``reason_user`` set the reason. ``memory``: MiB. Times are Unix time.
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
    """A reservation of nodes from ``start`` to ``end`` (Unix time). ``flags``: upper case, with
    MAINT for a maintenance. ``is_partial``: Slurm reserves only some cores of the nodes, and other
    jobs may use the other cores. ``owners``: the users and accounts that may use it.
    """

    name: str
    start: float
    end: float
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    is_partial: bool = False
    owners: tuple[str, ...] = ()


class SuspendExclusions(Struct, frozen=True, kw_only=True):
    """The options in slurm.conf that prevent the power-down of nodes: SuspendExcNodes,
    SuspendExcParts, and SuspendExcStates in upper case.
    """

    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()


class SlurmJob(Struct, frozen=True, kw_only=True, gc=False):
    """A pending, running or ended job. Times are Unix time, 0 if unknown. Strings of requests are
    in Slurm's spelling.

    Identity: ``array``: the job id of its array, ``task``: its task in the array. ``tasks``: the
    number of an array's tasks that are pending as one job, ``task_list``: their numbers, as
    ``3-6,9``; the requests below are those of one task. ``max_running_tasks``: how many tasks of
    the array may run together (``--array=0-99%4``: 4), 0 if there is no limit. ``het_job``: the
    number of the heterogeneous job of which it is a component, 0 if it is none.

    Times: ``start``: for a pending job it may be an estimate. ``eligible``: the earliest start (its
    BeginTime). ``end``: when it ended. ``preempted``: when Slurm will end the run for a job of
    higher priority, 0 if it will not. ``suspended``: since when it is suspended, 0 if it is not or
    if Slurm (22.05) does not report it. ``limit``: time limit in seconds, None if none is set.
    ``min_limit``: the limit to which backfill may lower it (``--time-min``), 0 if it may not.
    ``limit_ends_at``: when the time limit ends a running job, which is later than ``start`` plus
    ``limit`` if the job was suspended in between.

    Request: ``node_count``, ``cpus``: numbers of nodes and CPUs. ``gres``: per node. ``job_gres``:
    for all nodes together, as by --gpus. ``node_cpus``, ``node_memory`` (MiB): minimum of each
    node, or ``cpu_memory`` (MiB) per CPU. ``gres_cpus``, ``gres_memory`` (MiB): what each gres that
    the job takes needs beside it, as ``gres:gpu:4`` (--cpus-per-gpu, --mem-per-gpu). ``required``:
    the nodes that its user named.
    ``excluded``: nodes to avoid (22.05's list of jobs lacks them). ``licenses``: as
    ``matlab:2,ansys``. ``output``, ``error_output``: the files of standard output, and of standard
    error if that is another file.

    Result: ``nodes``: empty while it is pending. ``allocated``: its resources on all nodes
    together, as ``cpu=4,mem=8G,gres/gpu=1``. ``exit_code``: of its batch script. ``killed_by``: the
    number of the signal that ended the script. ``description``: Slurm's addition to the reason.
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
    error_output: str = ""
    killed_by: int = 0
    exit_code: int = 0
    tasks: int = 1
    task_list: str = ""
    max_running_tasks: int = 0
    node_count: int = 1
    cpus: int = 1
    limit: int | None = None
    min_limit: int = 0
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
    gres_cpus: str = ""
    gres_memory: str = ""
    het_job: int = 0
    end: float = 0.0
    limit_ends_at: float = 0.0
    preempted: float = 0.0
    suspended: float = 0.0
    allocated: str = ""

    @property
    def key(self) -> JobKey:
        """The identity of the job, as seen in its present run."""
        return JobKey(number=self.id, uid=self.uid, attempt=self.restarts, submitted=self.submit)

    @property
    def is_suspended(self) -> bool:
        """Whether the job's processes are stopped, by a person or by Slurm."""
        return "SUSPENDED" in self.states and "COMPLETING" not in self.states

    @property
    def is_suspended_by_person(self) -> bool:
        """Whether the job was suspended by ``scontrol suspend``. Slurm sets the priority of such a
        job to 0 until it is resumed. If Slurm itself suspends a job for another job, the priority
        stays.
        """
        return self.is_suspended and self.priority == 0

    @property
    def ends_at_latest(self) -> float | None:
        """When Slurm ends the run by its time limit (Unix time). None if the job has no limit or is
        not started. None also while it is suspended, because that stops the clock of its limit.
        """
        if self.limit is None or not self.start or self.is_suspended:
            return None
        return self.limit_ends_at or self.start + self.limit

    @property
    def least_limit(self) -> int | None:
        """The shortest time limit with which Slurm may start the job; None: no limit."""
        return self.min_limit or self.limit

    @property
    def died_of(self) -> int:
        """The number of the signal that ended the job's batch script or the script's last command,
        0 if none. Shells and MPI launchers report a command's signal as exit code 128 plus the
        signal.
        """
        return self.killed_by or max(self.exit_code - 128, 0)

    @property
    def has_ended(self) -> bool:
        """Whether the job is over: none of its processes runs, and none will."""
        return bool(self.states & ENDED) and not self.states & {"PENDING", "COMPLETING"}

    @property
    def begin(self) -> float:
        """The begin time of a pending job (Unix time), before which it may not start. Slurm does
        not report the begin time of a held job, and ``start`` does not show it either (measured
        with 22.05).
        """
        return self.eligible if self.eligible or self.wait_reason.is_held else self.start

    @property
    def wait_reason(self) -> pending_reasons.Reason:
        """Why the job is pending, with the row in the table of reasons."""
        return pending_reasons.reason_of(self.reason, self.description)

    @property
    def is_held(self) -> bool:
        """Whether the job starts only after a release."""
        return self.wait_reason.is_held or not self.states.isdisjoint(job_states.HOLDS)

    @property
    def is_held_by_slurm(self) -> bool:
        """Whether Slurm itself has held the job since the end of its script, and no admin holds it.
        Slurm does so by ``--requeue=expedite`` without a failed epilog (25.11 and later) or by
        RequeueExitHold; the reason is then JobHeldUser. After ``scontrol requeuehold`` the only
        state is PENDING (measured).
        """
        return not self.states.isdisjoint(job_states.HOLDS) and not self.wait_reason.is_by_admin

    def is_requeue_hold(self, now: float) -> bool:
        """Whether a requeue, and not the user, set the begin time of the pending job."""
        return self.restarts > 0 and now < self.begin <= now + REQUEUE_HOLD and not self.is_held

    @property
    def tasks_at_a_time(self) -> int:
        """How many of the waiting ``tasks`` may run together, and so may need machines now."""
        return min(self.tasks, self.max_running_tasks or self.tasks)

    @property
    def label(self) -> str:
        """The job's id in Slurm's commands. It is ``12_3`` for a task of an array, because ``12``
        means all tasks.
        """
        return str(self.id) if self.task is None else f"{self.array}_{self.task}"

    @property
    def shell_label(self) -> str:
        """The job's id in a command that a person copies into a shell.

        It is ``'12_[3-6]'`` for the waiting tasks of an array, because scontrol and scancel would
        also change or end the running tasks of ``12``. Our own updates take ``12``, because
        an update of ``12_[3-6]`` makes each task a job of its own.
        """
        # Quoted, because a shell may take the brackets for a pattern.
        return shlex.quote(f"{self.array}_[{self.task_list}]") if self.task_list else self.label


class JobMail(Struct, frozen=True, kw_only=True):
    """The mail that a job asks for. ``address``: as slurmctld gives it to MailProg. ``types``: the
    words of ``--mail-type``.
    """

    address: str
    types: frozenset[str]


class Request(Struct, frozen=True, kw_only=True):
    """One call of a program by slurmctld. ``kind``: resume, suspend or resume-fail. ``id``: the
    correlation id of everything that follows from it. ``received``: Unix time. ``jobs``: by job,
    the nodes that it waits for. ``note``: the part of the call that could not be read.
    """

    id: str
    kind: str
    nodes: tuple[str, ...]
    received: float
    jobs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    note: str | None = None
