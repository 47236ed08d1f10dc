"""The steps of an operator's order that makes machines leave (``features.departures``)."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from slurm_elastic.model.causes.cause import Cause


class KeptByPerson(Cause, frozen=True, kw_only=True):
    """The order leaves the node's machine alone, because a person has drained the node."""

    @property
    def words(self) -> str:
        return "a person has drained it: its machine stays"


class AllLeft(Cause, frozen=True, kw_only=True):
    """All machines of an operator's order have left. ``number`` and ``order_text``: the order and
    its text in one line.
    """

    number: int
    order_text: str

    @property
    def words(self) -> str:
        return f"all machines have left: {self.order_text}"


class LeavesAfterJob(Cause, frozen=True, kw_only=True):
    """The machine leaves after the end of its job, which cannot be moved: it is no batch job, or
    (``is_batch``) it must not be requeued.
    """

    is_batch: bool

    @property
    def words(self) -> str:
        reason = "must not be requeued" if self.is_batch else "is no batch job"
        return f"it {reason}: its machine leaves after the job"


class MoveNotBegun(Cause, frozen=True, kw_only=True):
    """slurm-elastic-ckptman got a notice for the job's node and has not begun to move the job."""

    @property
    def words(self) -> str:
        return "slurm-elastic-ckptman has not begun to move it; does it run?"


class JobsRedirected(Cause, frozen=True, kw_only=True):
    """The waiting jobs got other ``partitions``, because of an operator's order (its ``number``;
    ``order_text``: the order in one line). ``earlier``: their partitions until then, empty if the
    release that recorded it did not say.
    """

    partitions: tuple[str, ...]
    number: int
    order_text: str
    earlier: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return f"it may start in {', '.join(self.partitions)}: {self.order_text}"


class PartitionsRestored(Cause, frozen=True, kw_only=True):
    """The waiting jobs got their own ``partitions`` back, because the operator's order ``number``,
    which had changed them, is over.
    """

    partitions: tuple[str, ...]
    number: int

    @property
    def words(self) -> str:
        return f"it may start in {', '.join(self.partitions)} again: the order is over"


class ReplacementStarted(Cause, frozen=True, kw_only=True):
    """A machine starts before a job needs it, in place of the machine of the node ``instead_of``,
    because of an operator's order (``number``, ``order_text``). It is kept without a job until
    ``kept_until`` (Unix time).
    """

    instead_of: str
    number: int
    order_text: str
    kept_until: float

    @property
    def words(self) -> str:
        until = datetime.fromtimestamp(self.kept_until, UTC)
        return (
            f"it starts in place of {self.instead_of} and is kept until {until:%Y-%m-%d %H:%M} UTC "
            f"unless used: {self.order_text}"
        )


class StandInLack(StrEnum):
    """What the other cloud lacks for a replacement."""

    POOL = "pool"
    NODE = "node"
    ROOM = "room"


class NoStandIn(Cause, frozen=True, kw_only=True):
    """The other cloud has no machine in place of a machine of ``pool``, because of a ``lack``."""

    lack: StandInLack
    pool: str

    @property
    def words(self) -> str:
        if self.lack is StandInLack.POOL:
            return f"no pool there holds a machine of pool {self.pool}"
        if self.lack is StandInLack.NODE:
            return "no node there is free"
        return "the limits leave no room"


class ReplacedHaveLeft(Cause, frozen=True, kw_only=True):
    """The machines to replace have left before their replacements could start."""

    @property
    def words(self) -> str:
        return "the machines to replace have left"


class ReplacementOver(Cause, frozen=True, kw_only=True):
    """The machine that started ahead is no longer kept: a job has used it (``is_used``), or its
    time has passed, so that it may end when idle.
    """

    is_used: bool
    number: int

    @property
    def words(self) -> str:
        if self.is_used:
            return "the replacement has its first job: it ends like any other machine"
        return "no job has used the replacement in its time: it may end now"


class PartitionRefused(Cause, frozen=True, kw_only=True):
    """Slurm refuses the ``partition`` for the job, with an ``error``."""

    partition: str
    error: str

    @property
    def words(self) -> str:
        return f"{self.partition} refuses it: {self.error}"


DepartureStep = (
    KeptByPerson
    | AllLeft
    | LeavesAfterJob
    | MoveNotBegun
    | JobsRedirected
    | PartitionsRestored
    | ReplacementStarted
    | NoStandIn
    | ReplacedHaveLeft
    | ReplacementOver
    | PartitionRefused
)
"""All causes about departures."""
