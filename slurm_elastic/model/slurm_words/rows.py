"""The columns of the tables of Slurm's words."""

from __future__ import annotations

from enum import Enum
from typing import Literal

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

    ``pattern``: matches the whole reason. ``meaning``: the sentence for people. ``advice``: the
    command that helps. Both may contain the pattern's groups, and ``advice`` the ``{job}``.
    ``is_counted``: a new machine may start the job, so growth policies and forecasts count it.
    ``is_leftover``: the reason is from the job's last run and stays until Slurm examines the queue.
    ``refuses``: which of the job's names a partition does not admit. ``is_of_partition``: the
    reason concerns one of the job's partitions, so it proves nothing about a job that lists
    several (``waiting.is_unproven``). ``may_fit_elsewhere``: another partition may start
    the job, so ``advice`` is for jobs that no other partition can hold. ``is_persons``: a person
    holds the job on purpose. ``may_free``: other nodes may start the job, so ckptman releases it
    after it has moved the job. ``waits_for``: the phrase by which ``status`` counts such jobs, ""
    if it has none of its own.
    """

    pattern: str
    fate: Fate
    actor: Actor
    meaning: str
    advice: str = ""
    is_counted: bool = False
    is_leftover: bool = False
    may_free: bool = False
    refuses: Literal["", "account", "QOS"] = ""
    is_of_partition: bool = False
    may_fit_elsewhere: bool = False
    is_persons: bool = False
    waits_for: str = ""


class JobStateRow(Struct, frozen=True, kw_only=True):
    """One base state or flag of a job. ``shown``: squeue's word if it differs.

    ``has_nodes``: the job keeps its nodes. ``has_ended``: none of its processes runs. ``is_hold``:
    if the job is also PENDING, a person must release it.
    """

    name: str
    meaning: str
    shown: str = ""
    has_nodes: bool = False
    has_ended: bool = False
    is_hold: bool = False


class NodeStateRow(Struct, frozen=True, kw_only=True):
    """One base state or flag of a node. ``shown``: other words for it in Slurm's answers.

    ``keeps_jobs``: no job starts on the node. ``passes``: the state ends by itself. ``actor``: the
    party that ends the state.
    """

    name: str
    meaning: str
    shown: tuple[str, ...] = ()
    keeps_jobs: bool = False
    passes: bool = True
    actor: Actor = Actor.SLURM


class PartitionStateRow(Struct, frozen=True, kw_only=True):
    """One state of a partition. ``keeps_jobs``: no job of its queue starts. ``refuses``: the
    partition refuses sbatch. An operator ends any state except UP.
    """

    name: str
    meaning: str
    keeps_jobs: bool = False
    refuses: bool = False
