"""Several clusters in one table: a row for each, and the sums. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from slurm_elastic.base.units import brief

OLD_S = 900.0
"""Seconds after which we call a status in a file old."""


class HeadTotals(Struct, frozen=True, kw_only=True):
    """A market's sums in a head's ``status --json``."""

    machines: int = 0
    price_now: float = 0.0
    cost_live: float = 0.0
    cost_ended: float = 0.0


class HeadQueue(Struct, frozen=True, kw_only=True):
    """The queue in a head's ``status --json``."""

    running: int = 0
    waiting: int = 0
    oldest_s: float | None = None


class HeadNotice(Struct, frozen=True, kw_only=True):
    """A notice in a head's ``status --json``."""

    level: str
    text: str


class HeadDaemon(Struct, frozen=True, kw_only=True):
    """The daemon in a head's ``status --json``."""

    alive: bool = False


class HeadStatus(Struct, frozen=True, kw_only=True):
    """The part of a head's ``status --json`` that we read. The head may have another release."""

    at: float
    cluster: str
    version: int
    daemon: HeadDaemon = field(default_factory=HeadDaemon)
    ledger_error: str | None = None
    totals: tuple[HeadTotals, ...] = ()
    queue: HeadQueue | None = None
    attention: tuple[HeadNotice, ...] = ()
    private: tuple[str, ...] = ()


class HeadAnswer(Struct, frozen=True, kw_only=True):
    """The answer of the head of cluster ``name``, or the ``trouble`` that there is none.

    ``seen_at``: when the head's last answer was made (None: never). ``is_file``: it was read from
    a file.
    """

    name: str
    status: HeadStatus | None = None
    trouble: str = ""
    seen_at: float | None = None
    is_file: bool = False


class ClusterRow(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"age": "age_s", "seen": "seen_at", "oldest": "oldest_s"},
):
    """A cluster; the figures are None if its head gave none, or if it cannot read its own records
    or Slurm.

    ``trouble``: why there are none, and since when. ``note``: what needs attention first.
    ``urgent``: how many notices need attention. ``cost``: dollars of the running machines so far,
    and of machines that ended in the last 24 hours. ``seen``: when the last answer was made.
    """

    name: str
    trouble: str = ""
    note: str = ""
    urgent: int = 0
    machines: int | None = None
    price_now: float | None = None
    cost: float | None = None
    running: int | None = None
    waiting: int | None = None
    oldest: float | None = None
    age: float | None = None
    seen: float | None = None


class ClustersView(Struct, frozen=True, kw_only=True):
    """The document of ``status --clusters --json``. ``missing``: the clusters of which the
    ``total`` lacks figures, or machines and jobs of other users.
    """

    at: float
    clusters: tuple[ClusterRow, ...]
    total: ClusterRow
    missing: tuple[str, ...] = ()
    version: int = 1


def clusters_view(answers: Sequence[HeadAnswer], now: float) -> ClustersView:
    """A row for each answer, in this order, and the sums of the clusters that have figures."""
    rows = tuple(_row(answer, now) for answer in answers)
    total = ClusterRow(
        name="all",
        urgent=sum(row.urgent for row in rows),
        machines=sum(row.machines or 0 for row in rows),
        price_now=sum(row.price_now or 0.0 for row in rows),
        cost=sum(row.cost or 0.0 for row in rows),
        running=sum(row.running or 0 for row in rows),
        waiting=sum(row.waiting or 0 for row in rows),
        oldest=max((row.oldest for row in rows if row.oldest is not None), default=None),
    )
    missing = tuple(
        row.name
        for row, answer in zip(rows, answers, strict=True)
        if row.machines is None or row.running is None or _is_own_part(answer)
    )
    return ClustersView(at=now, clusters=rows, total=total, missing=missing)


def _row(answer: HeadAnswer, now: float) -> ClusterRow:
    status = answer.status
    if status is None:
        never = "it has never answered here"
        since = never if answer.seen_at is None else f"last answer {_ago(answer.seen_at, now)}"
        trouble = f"no answer ({since}): {answer.trouble}"
        return ClusterRow(name=answer.name, trouble=trouble, urgent=1, seen=answer.seen_at)
    urgent = [notice for notice in status.attention if notice.level != "note"]
    age = max(now - status.at, 0.0)
    notes = [notice.text for notice in urgent[:1]]
    if _is_own_part(answer):
        notes.insert(0, f"only your own part (PrivateData={','.join(status.private)})")
    if answer.is_file and age > OLD_S:
        notes.insert(0, f"its file is {brief(age)} old")
    queue = status.queue
    # Without its ledger a head knows no machine, although many may run and cost money.
    totals = status.totals if status.ledger_error is None else None
    return ClusterRow(
        name=answer.name,
        note="; ".join(notes),
        urgent=len(urgent),
        machines=None if totals is None else sum(t.machines for t in totals),
        price_now=None if totals is None else sum(t.price_now for t in totals),
        cost=None if totals is None else sum(t.cost_live + t.cost_ended for t in totals),
        running=queue.running if queue else None,
        waiting=queue.waiting if queue else None,
        oldest=queue.oldest_s if queue else None,
        age=age,
        seen=status.at,
    )


def _is_own_part(answer: HeadAnswer) -> bool:
    """Whether the head left out machines, jobs or costs of other users."""
    return answer.status is not None and bool(answer.status.private)


def _ago(at: float, now: float) -> str:
    return f"{brief(max(now - at, 0.0))} ago"
