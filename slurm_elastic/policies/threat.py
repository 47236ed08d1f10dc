"""What threatens a running job's work, as one notion: what, until when, why, and what is to be
done. Pure: each source is a function of facts that somebody else has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.model import Notice, NoticeKind


class Cause(StrEnum):
    """Who or what takes the job's place."""

    RECLAIM = "reclaim"
    REBALANCE = "rebalance"


class Answer(StrEnum):
    """What is to be done: ``MOVE`` the job, saved first; or only ``SAVE`` it, as what threatens it
    may not come.
    """

    MOVE = "move"
    SAVE = "save"


class Threat(Struct, frozen=True, kw_only=True):
    """``what`` is the name of a node. ``until``: Unix time at which it is lost (None: nobody
    says); ``since``: when it was heard of. ``why`` in one line, the same for all that a cloud
    takes, so that a thousand nodes are one command.
    """

    what: str
    cause: Cause
    answer: Answer
    why: str
    since: float
    until: float | None = None


Threats = Mapping[str, tuple[Threat, ...]]
"""By what is threatened, the earliest end first."""


def of_notice(node: str, notice: Notice) -> Threat:
    """The threat of a cloud's notice, or of a person's."""
    taken = notice.kind is NoticeKind.INTERRUPTION
    return Threat(
        what=node,
        cause=Cause.RECLAIM if taken else Cause.REBALANCE,
        answer=Answer.MOVE if taken else Answer.SAVE,
        why=notice.reason or f"{notice.kind} notice",
        since=notice.seen,
        until=notice.deadline,
    )


def of_notices(told: Iterable[tuple[str, Notice]]) -> Threats:
    """The threats of notices, each with the node that it is about."""
    return by_subject(of_notice(node, notice) for node, notice in told)


def by_subject(threats: Iterable[Threat]) -> Threats:
    """All that stand against each node together."""
    found: dict[str, tuple[Threat, ...]] = {}
    for one in sorted(threats, key=_end):
        found[one.what] = (*found.get(one.what, ()), one)
    return found


def moving(threats: Threats) -> Mapping[str, Threat]:
    """What is to be left, with the threat that ends first: those of which it is said when come
    before the others.
    """
    leaving = {what: [t for t in some if t.answer is Answer.MOVE] for what, some in threats.items()}
    return {what: some[0] for what, some in leaving.items() if some}


def notices(threats: Iterable[Threat], now: float) -> tuple[Notice, ...]:
    """The threats as a checkpoint policy sees them. What takes the machine away is seen now,
    whenever it came: a job that is to be moved is saved for that, though a periodic save may have
    come in between.
    """
    return tuple(
        Notice(
            instance="",
            node=one.what,
            kind=NoticeKind.REBALANCE if one.answer is Answer.SAVE else NoticeKind.INTERRUPTION,
            seen=one.since if one.answer is Answer.SAVE else now,
            deadline=one.until,
            reason=one.why,
        )
        for one in threats
    )


def _end(threat: Threat) -> float:
    return float("inf") if threat.until is None else threat.until
