"""The columns of the tables of Slurm's words."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Actor(Enum):
    """The party that must act before the job starts, or the node or partition takes jobs."""

    SLURM = "Slurm"
    USER = "the job's user"
    OPERATOR = "an operator"
    SITE = "the site's administrator"
    SLURM_ELASTIC = "slurm-elastic"


class Fate(Enum):
    """How a pending job continues if no person acts."""

    STARTS = "starts by itself"
    HELD = "held until a person releases it"
    NEVER = "can never start"


class ReasonRow(Struct, frozen=True, kw_only=True):
    """One pending reason, or a family of reasons that differ in a resource.

    ``pattern`` matches the whole reason. ``meaning`` is the sentence for people and ``advice`` the
    command that helps; both may name the pattern's groups, and ``advice`` the ``{job}``.
    ``is_counted``: a new machine may start the job, so growth policies and forecasts count it.
    ``is_leftover``: the reason is that of the job's last run until Slurm's next look at the queue.
    ``is_refusal``: Slurm does not let the job's account or QOS in. ``is_of_partition``: the reason
    is that of one of the job's partitions. ``is_persons``: a person holds the job on purpose.
    ``may_free``: other nodes may start the job, so ckptman releases it after it has moved the job.
    """

    pattern: str
    fate: Fate
    actor: Actor
    meaning: str
    advice: str = ""
    is_counted: bool = False
    is_leftover: bool = False
    may_free: bool = False
    is_refusal: bool = False
    is_of_partition: bool = False
    is_persons: bool = False


class JobStateRow(Struct, frozen=True, kw_only=True):
    """One base state or flag of a job. ``shown`` is the word of squeue if that is another one.

    ``has_nodes``: the job keeps its nodes. ``has_ended``: no process of it runs any more.
    ``is_hold``: beside PENDING, a person must release the job.
    """

    name: str
    meaning: str
    shown: str = ""
    has_nodes: bool = False
    has_ended: bool = False
    is_hold: bool = False


class NodeStateRow(Struct, frozen=True, kw_only=True):
    """One base state or flag of a node; ``shown`` are other words for it in Slurm's answers.

    ``keeps_jobs``: no job starts there. ``passes``: it ends by itself. ``actor`` ends it, or does
    what it waits for.
    """

    name: str
    meaning: str
    shown: tuple[str, ...] = ()
    keeps_jobs: bool = False
    passes: bool = True
    actor: Actor = Actor.SLURM


class PartitionStateRow(Struct, frozen=True, kw_only=True):
    """One state of a partition. ``keeps_jobs``: no job of its queue starts. ``refuses``: sbatch is
    refused there. An operator ends any state but UP.
    """

    name: str
    meaning: str
    keeps_jobs: bool = False
    refuses: bool = False
