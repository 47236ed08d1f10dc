"""Every reason for which Slurm keeps a job pending: releases 22.05 to 26.05. Pure.

If slurmctld has set a text, squeue shows the text instead of the reason. We look the text up first,
because it is more precise: a job of ``scontrol requeuehold`` has the reason JobHeldUser in JSON,
and only the text "job requeued in held state" in the output of 22.05 (measured).
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from msgspec import Struct

from slurm_elastic.model.slurm_words.rows import Actor, Fate, ReasonRow

# People copy a remedy. It is a command for the shell, with words in capitals to fill in, or a
# sentence that does not begin like a command. Which option is too large, Slurm does not say.
_RELEASE = "scontrol release {job}"
_SMALLER = "submit again with a smaller request, after scancel {job}"
_WHAT = r"(?:BB|Billing|C[Pp][Uu]|Energy|GRES|License|Mem|Memory|Node|Unknown)"
"""The resource that a limit is of, as the reasons of limits spell it."""


def _passes(
    pattern: str, meaning: str, *, actor: Actor = Actor.SLURM, advice: str = "",
    counted: bool = False, waits_for: str = "", partition: bool = False,
) -> ReasonRow:  # fmt: skip
    """A reason that ends by itself; ``actor`` may end it earlier."""
    return ReasonRow(
        pattern=pattern, fate=Fate.STARTS, actor=actor, meaning=meaning, advice=advice,
        is_counted=counted, waits_for=waits_for, is_of_partition=partition,
    )  # fmt: skip


def _held(
    pattern: str,
    actor: Actor,
    meaning: str,
    advice: str = _RELEASE,
    *,
    may_free: bool = False,
    persons: bool = False,
) -> ReasonRow:
    return ReasonRow(
        pattern=pattern, fate=Fate.HELD, actor=actor, meaning=meaning, advice=advice,
        may_free=may_free, is_persons=persons,
    )  # fmt: skip


def _never(
    pattern: str,
    meaning: str,
    advice: str,
    *,
    may_free: bool = False,
    refuses: Literal["", "account", "QOS"] = "",
    partition: bool = False,
    elsewhere: bool = False,
) -> ReasonRow:
    return ReasonRow(
        pattern=pattern, fate=Fate.NEVER, actor=Actor.USER, meaning=meaning, advice=advice,
        may_free=may_free, refuses=refuses, is_of_partition=partition,
        may_fit_elsewhere=elsewhere,
    )  # fmt: skip


def _leftover(pattern: str, meaning: str) -> ReasonRow:
    return ReasonRow(
        pattern=pattern, fate=Fate.STARTS, actor=Actor.SLURM, meaning=meaning,
        is_leftover=True,
    )  # fmt: skip


_UNSEEN = _passes("|None", "slurmctld has not looked at it yet", counted=True)
_BEGIN_TIME = _passes(
    "BeginTime", "its begin time has not come", counted=True, waits_for="for the begin time"
)
_PRIORITY = _passes("Priority", "jobs with a higher priority come first", counted=True)
_NODES = _passes("Resources", "it waits for nodes that are busy, or on their way", counted=True)
_NODES_DOWN = _passes(
    r"Nodes required for job are DOWN.*",
    "its nodes are down, drained, or kept for jobs of partitions with a higher priority",
    counted=True, actor=Actor.OPERATOR, advice="sinfo -R",
)  # fmt: skip
_JOBS = _passes(
    "Dependency", "it waits for the jobs that it depends on", waits_for="for other jobs"
)
_FAILED_JOB = _never(
    "DependencyNeverSatisfied",
    "a job that it depends on failed, so it never starts",
    "scancel {job}",
)
_TOO_LONG = _never(
    "PartitionTimeLimit", "its time limit is over the partition's",
    "scontrol update jobid={job} timelimit=MINUTES", partition=True, elsewhere=True,
)  # fmt: skip
_QUEUE = (
    _UNSEEN,
    _PRIORITY,
    _NODES,
    _passes("SchedDefer", "slurmctld defers it to its next look at the queue", counted=True),
    # Whether a machine helps depends on the missing node, which this reason does not name.
    _passes(r"ReqNodeNotAvail,? ?", "a node that it needs is not available", counted=True),
    _passes(
        r"(?:ReqNodeNotAvail, ?)?(?:UnavailableNodes|Reserved nodes):(?P<nodes>.*)",
        "a node that it needs is not available", counted=True, actor=Actor.OPERATOR,
        advice="sinfo -R",
    ),
    _passes(
        r"ReqNodeNotAvail, Reserved for maintenance",
        "a reservation for maintenance has nodes that it needs", counted=True,
        actor=Actor.OPERATOR, advice="scontrol show reservation",
    ),
    _passes(
        r"ReqNodeNotAvail, May be reserved.*",
        "nodes that it needs may be reserved for another job", counted=True,
    ),
    _NODES_DOWN,
    _passes(
        "NodeDown", "a node that it needs is down", actor=Actor.OPERATOR, advice="sinfo -R",
        counted=True,
    ),
    _BEGIN_TIME,
    _JOBS,
    _passes(
        "Licenses", "it waits for licences", advice="scontrol show licenses",
        waits_for="for licences",
    ),
    _passes(
        "JobArrayTaskLimit", "as many tasks of its array run as it allows",
        waits_for="for tasks of the array",
    ),
    _passes("Cleaning", "Slurm still cleans up after its last run"),
    _passes("Prolog", "PrologSlurmctld still runs for it"),
    _passes("FedJobLock", "it waits for the clusters of the federation to agree"),
    _passes("BlockFreeAction", "it waits until blocks of nodes are free"),
    _passes("BlockMaxError", "blocks of its nodes are in error", actor=Actor.OPERATOR),
    _passes("FrontEndDown", "no front-end node is up", actor=Actor.OPERATOR, advice="sinfo -R"),
    _passes("PowerNotAvail", "the site's power cap leaves no power for it"),
    _passes("PowerReserved", "a reservation keeps the power that it needs"),
    _passes("MpiPortsBusy", "all ports for MPI are in use on its nodes"),
    _passes("NvidiaImexChannels", "all IMEX channels of its nodes are in use"),
    _passes("MaxPoweredUpNodes", "the partition has as many nodes up as it may have"),
    _passes("BurstBufferResources", "it waits for space in the burst buffer"),
    _passes("BurstBufferStageIn|Stage-out in progress", "its files are copied by the burst buffer"),
    _passes("Reservation", "it waits for its reservation", advice="scontrol show reservation"),
)  # fmt: skip
_PARTITIONS = (
    _passes(
        "PartitionDown", "the partition takes no job to its nodes", actor=Actor.OPERATOR,
        advice="scontrol update partitionname=PARTITION state=up", partition=True,
    ),
    _passes(
        "PartitionInactive", "the partition is inactive", actor=Actor.OPERATOR,
        advice="scontrol update partitionname=PARTITION state=up", partition=True,
    ),
    _never(
        "PartitionConfig", "its partition has not what it asks for",
        _SMALLER, partition=True, elsewhere=True,
    ),
    _never(
        "PartitionNodeLimit", "it asks for more nodes than the partition allows",
        "scontrol update jobid={job} numnodes=N", partition=True, elsewhere=True,
    ),
    _TOO_LONG,
    _never(
        "AccountNotAllowed", "its account may not use the partition",
        "scontrol update jobid={job} account=ACCOUNT", refuses="account",
        partition=True, elsewhere=True,
    ),
)  # fmt: skip
_REQUESTS = (
    _never(
        "BadConstraints", "no node of its partition has what it asks for",
        _SMALLER, may_free=True, partition=True,
    ),
    _never(
        "Constraints", "no node of its partition has what it asks for",
        _SMALLER, partition=True,
    ),
    _FAILED_JOB,
    _never("DeadLine", "its deadline has passed", "scancel {job}"),
    _never(
        "InvalidAccount", "Slurm does not know its account",
        "scontrol update jobid={job} account=ACCOUNT",
    ),
    _never(
        "InvalidQOS", "Slurm does not know its QOS", "scontrol update jobid={job} qos=QOS",
    ),
    _never(
        "ReservationInvalid", "its reservation does not exist, or is not for it",
        "scontrol update jobid={job} reservationname=",
    ),
    _never(
        "MaxMemPerLimit", "it asks for more memory than slurm.conf allows (MaxMemPerCPU or"
        " MaxMemPerNode)", "scontrol update jobid={job} minmemorynode=MIB",
    ),
    _never(
        r"Invalid burst buffer spec \(.*\)|Could not find burst buffer record"
        r"|Error managing persistent burst buffers|Burst buffer create_persistent error",
        "its burst buffer request failed",
        "correct the #BB or #DW lines and submit again, after scancel {job}",
    ),
)  # fmt: skip
_BY_ADMIN = _held("JobHeldAdmin", Actor.OPERATOR, "an admin holds it", persons=True)
_HOLDS = (
    _BY_ADMIN,
    _held("JobHeldUser", Actor.USER, "it is held by its user (scontrol release)", persons=True),
    _held(
        "JobHoldMaxRequeue", Actor.OPERATOR,
        "it was requeued too often, and is held (scontrol release)",
    ),
    _held(
        "job requeued in held state", Actor.USER,
        "it was put back into the queue and is held (scontrol requeuehold)", persons=True,
    ),
    _held(
        "job requeued in special exit state", Actor.USER,
        "Slurm holds it since its script ended with an exit code of RequeueExitHold",
    ),
    _held(
        "launch failed requeued held", Actor.OPERATOR,
        "Slurm holds it since the Prolog or slurmd of a node failed to start it", may_free=True,
    ),
    _held(
        "launch failure limit exceeded requeued held", Actor.OPERATOR,
        "Slurm holds it since it failed to start too often", may_free=True,
    ),
    _held(
        "user env retrieval failed requeued held", Actor.OPERATOR,
        "Slurm holds it since no node could read its user's environment (--get-user-env)",
        may_free=True,
    ),
    _held(
        r"ReservationDeleted|Reservation (?P<reservation>\S+) was deleted"
        r"|Reservation (?P<ended>\S+), which this job was running under, has ended",
        Actor.USER, "Slurm holds it since its reservation is gone",
        "scontrol update jobid={job} reservationname= && scontrol release {job}",
    ),
    _held(
        r"BurstBufferOperation|Burst buffer pre_run error|teardown failed: .*",
        Actor.OPERATOR, "an operation of its burst buffer failed",
    ),
    _held(r"MB failed on node (?P<node>.*)", Actor.OPERATOR, "a device of its node failed"),
)  # fmt: skip
_LEFTOVERS = (
    _leftover("NonZeroExitCode", "its last run ended with an error"),
    _leftover(r"RaisedSignal(?::.*)?", "a signal ended its last run"),
    _leftover("TimeLimit", "its last run reached its time limit"),
    _leftover("InactiveLimit", "its last run was inactive for too long"),
    _leftover("OutOfMemory", "its last run was out of memory"),
    _leftover("SystemFailure", "its last run ended by a failure of Slurm or of a node"),
    _leftover("JobLaunchFailure", "its last start failed"),
)
_OF_ASSOC = "sacctmgr show assoc"
_OF_QOS = "sacctmgr show qos"
_LIMITS = (
    _passes(
        rf"AssocGrp(?:{_WHAT}(?:(?:Run)?Minutes)?|CPU(?:Run)?Minutes|Jobs|SubmitJobs|Wall|Cpu)"
        r"(?:Limit)?",
        "a limit of its account or user is reached", actor=Actor.SITE, advice=_OF_ASSOC,
    ),
    _passes(
        r"AssocMax(?:SubmitJob|Jobs)Limit|Association(?:Job|Resource)Limit",
        "a limit of its account or user is reached", actor=Actor.SITE, advice=_OF_ASSOC,
    ),
    _never(
        rf"AssocMax(?:{_WHAT}(?:Minutes)?Per(?:Job|Node)|WallDurationPerJob)(?:Limit)?"
        r"|AssociationTimeLimit",
        "it asks for more than its account or user may have in one job",
        f"submit again within the limits ({_OF_ASSOC}), after scancel {{job}}",
    ),
    _passes(
        r"AccountingPolicy|Job is at or exceeds association .*",
        "a limit of its account or user is reached", actor=Actor.SITE, advice=_OF_ASSOC,
    ),
    _passes(
        rf"QOSGrp(?:{_WHAT}(?:(?:Run)?Minutes)?|CPU(?:Run)?Minutes|Jobs|SubmitJobs|Wall|Cpu)"
        r"(?:Limit)?|QOS(?:Job|Resource)Limit|Job is at or exceeds QOS .*",
        "a limit of its QOS is reached", actor=Actor.SITE, advice=_OF_QOS,
    ),
    _passes(
        rf"QOSMax(?:{_WHAT}|Jobs|SubmitJob)PerUser(?:Limit)?"
        rf"|Max(?:{_WHAT}(?:RunMins)?|Jobs|SubmitJobs)Per(?:Account|User)",
        "its user or account has as much as the QOS allows", actor=Actor.SITE, advice=_OF_QOS,
    ),
    _never(
        rf"QOSMax(?:{_WHAT}(?:Minutes)?Per(?:Job|Node)|WallDurationPerJob)(?:Limit)?|QOSTimeLimit",
        "it asks for more than its QOS allows in one job",
        f"submit again within the limits ({_OF_QOS}), after scancel {{job}}",
    ),
    _never(
        rf"QOSMin{_WHAT}(?:NotSatisfied)?", "it asks for less than its QOS demands of a job",
        f"submit again with a larger request ({_OF_QOS}), after scancel {{job}}",
    ),
    _never(
        "QOSNotAllowed", "its QOS may not use the partition",
        "scontrol update jobid={job} qos=QOS", refuses="QOS", partition=True,
    ),
    _passes(
        "QOSUsageThreshold", "its account has used too much for its QOS", actor=Actor.SITE,
        advice=_OF_QOS,
    ),
)  # fmt: skip
REASONS = (*_QUEUE, *_PARTITIONS, *_REQUESTS, *_HOLDS, *_LEFTOVERS, *_LIMITS)
"""Each reason of these releases matches exactly one row."""

# Counted: a machine may help. If the job does not start on it, growth stops buying for the job.
UNKNOWN = _passes(".*", "see squeue(1), JOB REASON CODES", counted=True)
"""The row of a reason of a later release."""
_COMPILED = tuple((re.compile(row.pattern), row) for row in REASONS)


class Reason(Struct, frozen=True, kw_only=True):
    """One job's reason: its text and its row."""

    text: str
    row: ReasonRow

    @property
    def is_held(self) -> bool:
        return self.row.fate is Fate.HELD

    @property
    def is_by_admin(self) -> bool:
        return self.row is _BY_ADMIN

    @property
    def is_begin_time(self) -> bool:
        return self.row is _BEGIN_TIME

    @property
    def is_unseen(self) -> bool:
        """Whether slurmctld has not given a reason yet."""
        return self.row is _UNSEEN

    @property
    def is_for_turn(self) -> bool:
        """Whether the job may wait only because other jobs come first."""
        return self.row is _PRIORITY or self.is_unseen

    @property
    def is_for_nodes(self) -> bool:
        """Whether the job comes first and waits for nodes."""
        return self.row is _NODES

    @property
    def is_within_limits(self) -> bool:
        """Whether Slurm gives the reason only to jobs within the partition's limits."""
        return self.row in (_PRIORITY, _NODES, _NODES_DOWN)

    @property
    def is_for_jobs(self) -> bool:
        """Whether the job waits for other jobs, perhaps in vain."""
        return self.row in (_JOBS, _FAILED_JOB)

    @property
    def is_over_time(self) -> bool:
        """Whether the job's time limit is over the partition's."""
        return self.row is _TOO_LONG

    @property
    def is_known(self) -> bool:
        return self.row is not UNKNOWN

    def advice(self, job: str) -> str:
        """The command that helps the job of this label; empty if none does."""
        return self.row.advice.replace("{job}", job)


@functools.lru_cache(maxsize=4096)
def reason_of(reason: str, description: str = "") -> Reason:
    """The Reason for the fields ``reason`` and ``description`` of a ``SlurmJob``."""
    text = _with_spaces(description)
    reason_row, description_row = row_of(reason), row_of(text) if text else UNKNOWN
    # The text of a failed launch stays when an administrator then holds the job (22.05, measured).
    if description_row is UNKNOWN or reason_row is _BY_ADMIN:
        return Reason(text=reason, row=reason_row)
    return Reason(text=text, row=description_row)


def row_of(reason: str) -> ReasonRow:
    """The row of a reason or text; ``UNKNOWN`` if it is of a later release."""
    text = _with_spaces(reason)
    return next((row for pattern, row in _COMPILED if pattern.fullmatch(text)), UNKNOWN)


def _with_spaces(text: str) -> str:
    """The text with spaces, as in slurmctld. scontrol prints underscores instead."""
    return text.replace("_", " ")
