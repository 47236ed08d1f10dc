"""All that threatens a running job's work is one notion: what, until when, why, and what is to be
done. Pure: each source is a function of facts that somebody else has read.

=============  ==========================  ==========================================  ===========
cause          told by                     the job is                                  at once?
=============  ==========================  ==========================================  ===========
reclaim        the cloud, a person         moved                                       yes
rebalance      the cloud, a person         saved, and stays                            yes
price          a price over the bid        saved, and stays                            yes
health         a node in Slurm's FAIL      moved                                       yes
planned end    its machine's maximum age   moved                                       no
maintenance    a reservation (MAINT)       moved, if it may still run when that begins no
drain          a date in the drain's text  moved, if it may still run at that time     no
limit          the job's own time limit    requeued, with a full limit                 no
preemption     Slurm, for a job of higher  moved, within the site's GraceTime          yes
               priority
unsavable      its first saves, that fail  requeued to on-demand, where a site wants   yes
=============  ==========================  ==========================================  ===========
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.base.units import money
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_reasons import has_mark

LEAD = 15.0
"""Seconds kept, besides a save's own and the site's slack, for the look that finds it due, the stop
and the requeue.
"""
FALSE_AFTER = 600.0
"""Seconds after its deadline after which a machine that is still there was warned of wrongly."""
HORIZON = 900.0
"""Seconds before its end, or as long as three saves, from which on a planned threat counts."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?(?:Z|[+-]\d\d:\d\d)?")


class Cause(StrEnum):
    """Who or what takes the job's place."""

    RECLAIM = "reclaim"
    REBALANCE = "rebalance"
    PRICE = "price"
    HEALTH = "health"
    PLANNED_END = "planned end"
    MAINTENANCE = "maintenance"
    DRAIN = "drain"
    DEPARTURE = "departure"
    LIMIT = "limit"
    PREEMPTION = "preemption"
    UNSAVABLE = "unsavable"


PLANNED = frozenset({Cause.PLANNED_END, Cause.MAINTENANCE, Cause.DRAIN, Cause.LIMIT})
CERTAIN = PLANNED | {Cause.PREEMPTION}
"""The run is over at that time for certain, so that a save for it is no matter of the policy."""
OF_JOBS = frozenset({Cause.LIMIT, Cause.PREEMPTION})
"""They end the job and concern none of its nodes."""
OF_SLURM = frozenset({Cause.MAINTENANCE, Cause.DRAIN, Cause.HEALTH})
"""The causes that Slurm's own nodes and reservations tell."""
LEAVING = frozenset({Cause.RECLAIM, Cause.DEPARTURE})
"""The machine goes, whatever its jobs are saved to by then."""
OF_MACHINES = LEAVING | {Cause.REBALANCE, Cause.PLANNED_END}
"""The causes for which nodes may be drained and powered down: other drains are others'."""


class Response(StrEnum):
    """The thing to do: ``MOVE`` the job, saved first; only ``SAVE`` it, as what threatens it
    may not come; or let it ``END``.
    """

    MOVE = "move"
    SAVE = "save"
    END = "end"


class Threat(Struct, frozen=True, kw_only=True):
    """``what`` is the name of a node, or ``job:NUMBER``. ``until``: Unix time at which it is lost
    (None: nobody says); ``since``: when it was heard of. ``why`` in one line, the same for all that
    a cloud takes, so that a thousand nodes are one command. ``notice``: the kind of a notice that
    has no reason of its own.
    """

    what: str
    cause: Cause
    answer: Response
    why: str
    since: float
    until: float | None = None
    notice: str = ""

    def begins(self, job: SlurmJob, dump: float, slack: float) -> float:
        """When this is to be answered for a job on it whose save may take ``dump`` seconds, with
        ``slack`` seconds kept.
        """
        if self.cause not in PLANNED or self.until is None:
            return self.since
        # As late as a save allows: the job may end by itself until then.
        at = self.until - dump - slack - LEAD
        # A job with a new limit works for half of it at least: else it would only be saved.
        return max(at, (job.start + self.until) / 2) if self.cause is Cause.LIMIT else at

    def concerns(self, job: SlurmJob) -> bool:
        """Whether that job may still run when it comes."""
        if self.cause not in PLANNED or self.until is None or self.cause is Cause.LIMIT:
            return True
        if self.cause is Cause.MAINTENANCE and job.reservation:
            return False  # it is a part of it
        ends = end_of(job)
        return ends is None or ends > self.until


Threats = Mapping[str, tuple[Threat, ...]]
"""By what is threatened, the earliest end first."""


def end_of(job: SlurmJob) -> float | None:
    """When Slurm ends a running job by its time limit (Unix time); None: it has none."""
    return None if job.limit is None or not job.start else job.start + job.limit


# the sources


_CAUSES = {
    NoticeKind.INTERRUPTION: Cause.RECLAIM,
    NoticeKind.REBALANCE: Cause.REBALANCE,
    NoticeKind.DEPARTURE: Cause.DEPARTURE,
}


def of_notice(node: str, notice: Notice) -> Threat:
    """The threat of a cloud's notice, or of a person's."""
    cause = _CAUSES[notice.kind]
    return Threat(
        what=node,
        cause=cause,
        answer=Response.MOVE if cause in LEAVING else Response.SAVE,
        why=notice.reason or f"{notice.kind} notice",
        notice="" if notice.reason else notice.kind,
        since=notice.seen,
        until=notice.deadline,
    )


def is_false(notice: Notice, now: float) -> bool:
    """Whether a machine that is still there was warned of wrongly, and may take jobs again."""
    return notice.deadline is not None and now > notice.deadline + FALSE_AFTER


def of_age(node: str, launched: float, max_age: float | None, now: float) -> Threat | None:
    """A machine that comes to its pool's maximum age (s) soon, or is over it. None: not yet."""
    if max_age is None or launched + max_age - now > HORIZON:
        return None
    ends = launched + max_age
    # Nobody ends it while it has jobs: one that is over its age may be left at leisure.
    return Threat(
        what=node, cause=Cause.PLANNED_END, answer=Response.MOVE, since=now,
        why=f"its machine reaches the pool's maximum age of {_span(max_age)}",
        until=ends if ends > now else None,
    )  # fmt: skip


def of_reservations(reservations: Iterable[Reservation], now: float) -> list[Threat]:
    """The maintenances that are to begin, one for each of their nodes."""
    return [
        Threat(
            what=node, cause=Cause.MAINTENANCE, answer=Response.MOVE, since=now, until=one.start,
            why=f"maintenance {one.name} begins",
        )
        for one in reservations
        if "MAINT" in one.flags and one.start > now
        for node in one.nodes
    ]  # fmt: skip


def of_node(node: SlurmNode, now: float, ours: str) -> Threat | None:
    """The threat in a node's own state: FAIL, which an administrator or a health check sets
    where it is expected to fail soon; or a drain whose reason has a date (ISO 8601) that is to
    come. Slurm itself has no date for a drain. ``ours`` begins the reasons that we set.
    """
    if node.states & {"FAIL", "FAILING"}:
        why = f"Slurm has its node as failing: {node.reason or 'no reason is given'}"
        return Threat(what=node.name, cause=Cause.HEALTH, answer=Response.MOVE, why=why, since=now)
    if "DRAIN" not in node.states or has_mark(node, ours):
        return None
    when = _date(node.reason)
    if when is None or when <= now:
        return None
    why = f"its node is drained: {node.reason}"
    return Threat(
        what=node.name, cause=Cause.DRAIN, answer=Response.MOVE, why=why, since=now, until=when
    )


def of_price(
    node: str, prices: tuple[tuple[float, float], ...], bid: float | None
) -> Threat | None:
    """A price ($/h) over the bid: the machine may be taken at any moment."""
    if bid is None or not prices or prices[-1][1] <= bid:
        return None
    since = next(at for at, _ in reversed(_last_over(prices, bid)))
    why = f"price {money(prices[-1][1])} is over the bid of {money(bid)}"
    return Threat(what=node, cause=Cause.PRICE, answer=Response.SAVE, why=why, since=since)


def of_limit(job: SlurmJob, dump: float, times: int, renewed: int, now: float) -> Threat | None:
    """The end of a job's own time limit, for one that may be requeued for that ``times`` times and
    was ``renewed`` times already. None: not soon.
    """
    until = end_of(job)
    if job.limit is None or until is None or not times or until - now > max(HORIZON, 3 * dump):
        return None
    limit = _span(job.limit)
    if renewed >= times:
        why = f"its time limit of {limit} ends, and it was requeued for that {renewed} times"
        return Threat(
            what=f"job:{job.id}", cause=Cause.LIMIT, answer=Response.END, why=why, since=now,
            until=until,
        )  # fmt: skip
    why = f"its time limit of {limit} ends ({renewed + 1} of {times} times)"
    return Threat(
        what=f"job:{job.id}",
        cause=Cause.LIMIT,
        answer=Response.MOVE,
        why=why,
        since=now,
        until=until,
    )


def of_preemption(job: SlurmJob, now: float) -> Threat | None:
    """Slurm ends the run soon, as a job of higher priority is to have its place. None: it does not,
    or says so when it has ended it already (no GraceTime).
    """
    if not job.preempted:
        return None
    return Threat(
        what=f"job:{job.id}", cause=Cause.PREEMPTION, answer=Response.MOVE, since=now,
        why="a job of higher priority is to have its place", until=job.preempted,
    )  # fmt: skip


# all together


def by_subject(threats: Iterable[Threat]) -> Threats:
    """All that stand against each node or job together."""
    found: dict[str, tuple[Threat, ...]] = {}
    for one in sorted(threats, key=_end):
        found[one.what] = (*found.get(one.what, ()), one)
    return found


def moving(threats: Threats) -> Mapping[str, Threat]:
    """The nodes and jobs that are to be moved, each with the threat that ends first; a threat
    without a known end comes after the others.
    """
    leaving = {
        what: [t for t in some if t.answer is Response.MOVE] for what, some in threats.items()
    }
    return {what: some[0] for what, some in leaving.items() if some}


def due(
    threats: Threats, job: SlurmJob, dump: float, slack: float, now: float
) -> tuple[Threat, ...]:
    """The threats to a job that are to be answered now, the earliest end first."""
    found = [t for what in (*job.nodes, f"job:{job.id}") for t in threats.get(what, ())]
    mine = [t for t in found if t.concerns(job) and now >= t.begins(job, dump, slack)]
    return tuple(sorted(mine, key=_end))


def notices(threats: Iterable[Threat], now: float) -> tuple[Notice, ...]:
    """The threats as a checkpoint policy sees them."""
    return tuple(
        Notice(
            instance="",
            node=one.what,
            kind=NoticeKind.REBALANCE if one.answer is Response.SAVE else NoticeKind.INTERRUPTION,
            # Now, where the machine goes, whenever that was heard: a periodic save in between is no
            # answer to it, as the job is to be moved.
            seen=one.since if one.answer is Response.SAVE else now,
            deadline=one.until,
            reason=one.why,
        )
        for one in threats
        if one.answer is not Response.END
    )


def _span(seconds: float) -> str:
    """A time as Slurm has it: [DAYS-]HH:MM:SS."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{rest:02}"


def _end(threat: Threat) -> float:
    return float("inf") if threat.until is None else threat.until


def _last_over(prices: Collection[tuple[float, float]], bid: float) -> list[tuple[float, float]]:
    """The prices since the last one that was not over the bid, newest first."""
    found: list[tuple[float, float]] = []
    for one in reversed(list(prices)):
        if one[1] <= bid:
            break
        found.append(one)
    return found


def _date(text: str) -> float | None:
    """The first date in a text, as Unix time; local time where it names no zone."""
    found = _DATE.search(text)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(found[0]).timestamp()
    except ValueError:
        return None
