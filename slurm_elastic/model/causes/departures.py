"""The steps of an operator's order that makes machines leave (``features.departures``)."""

from __future__ import annotations

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
        return f"all have left: {self.order_text}"


class LeavesAfterJob(Cause, frozen=True, kw_only=True):
    """The machine leaves after the end of its job, which cannot be moved: it is no batch job, or
    (``is_batch``) it must not be requeued.
    """

    is_batch: bool

    @property
    def words(self) -> str:
        reason = "must not be requeued" if self.is_batch else "is no batch job"
        return f"it {reason}: its machine leaves after it"


class MoveNotBegun(Cause, frozen=True, kw_only=True):
    """slurm-elastic-ckptman got a notice for the job's node and has not begun to move the job."""

    @property
    def words(self) -> str:
        return "slurm-elastic-ckptman has not begun to move it; does it run?"


class StartsOver(Cause, frozen=True, kw_only=True):
    """The job is requeued for an operator's order without a saved state. ``number`` and
    ``order_text``: the order and its text in one line. ``obstacle``: why it was not saved, "" if no
    checkpoint method is in use.
    """

    number: int
    order_text: str
    obstacle: str = ""

    @property
    def words(self) -> str:
        obstacle = self.obstacle or "no checkpoint method is at work on this cluster"
        return f"it starts over ({obstacle}): {self.order_text}"


class JobsRedirected(Cause, frozen=True, kw_only=True):
    """The waiting jobs got other ``partitions``, because of an operator's order (its ``number``;
    ``order_text``: the order in one line).
    """

    partitions: tuple[str, ...]
    number: int
    order_text: str

    @property
    def words(self) -> str:
        return f"it may start in {', '.join(self.partitions)}: {self.order_text}"


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
    | StartsOver
    | JobsRedirected
    | PartitionRefused
)
"""All causes about departures."""
