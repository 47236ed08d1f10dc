"""Threats to a running job's work: to which node or job, until when, why, and how to answer.
Pure: each source is a function of facts that its caller has read.

=============  ==========================  ==========================================  ===========
cause          reported by                 the job is                                  at once?
=============  ==========================  ==========================================  ===========
reclaim        the cloud, a person         moved                                       yes
departure      an order of a person        moved                                       yes
rebalance      the cloud, a person         saved, and stays                            yes
price          a price over the bid        saved, and stays                            yes
health         a node in Slurm's FAIL      moved                                       yes
planned end    its machine's maximum age   moved                                       no
reservation    its machine's reservation   moved                                       no
end            in the cloud
maintenance    a reservation (MAINT)       moved, if it may still run when that begins no
drain          a date in the drain's text  moved, if it may still run at that time     no
limit          the job's own time limit    requeued, with a full limit                 no
preemption     Slurm, for a job of higher  moved, within the site's GraceTime          yes
               priority
unsavable      its first saves, that fail  requeued to on-demand, where a site wants   yes
save           Slurm: the signal of a      requeued                                    yes
               save has ended its script
=============  ==========================  ==========================================  ===========
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.model.causes.saves import NoticeGiven
from slurm_elastic.model.causes.threats import (
    EndsWithReservation,
    JobPreempted,
    JobThreat,
    MaintenanceBegins,
    MaximumAgeReached,
    NodeDrained,
    NodeFailing,
    NoticeExplained,
    PriceOverBid,
    TimeLimitEnds,
    TimeLimitLast,
)
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_reasons import has_mark

LEAD = 15.0
"""Seconds kept, besides the save, its verification and the site's slack, for the look that finds
the threat, the stop and the requeue.
"""
FALSE_AFTER = 600.0
"""Seconds after the deadline of a notice after which a machine that still runs was warned by
mistake.
"""
HORIZON = 900.0
"""A planned threat counts from this long before its end (s), or three times a save's duration if
longer.
"""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?(?:Z|[+-]\d\d:\d\d)?")


class ThreatCause(StrEnum):
    """The person or event that takes the job off its nodes, or may do so."""

    RECLAIM = "reclaim"
    REBALANCE = "rebalance"
    PRICE = "price"
    HEALTH = "health"
    PLANNED_END = "planned end"
    RESERVATION_END = "reservation end"
    MAINTENANCE = "maintenance"
    DRAIN = "drain"
    DEPARTURE = "departure"
    LIMIT = "limit"
    PREEMPTION = "preemption"
    UNSAVABLE = "unsavable"
    SAVE = "save"


PLANNED = frozenset(
    {
        ThreatCause.PLANNED_END,
        ThreatCause.RESERVATION_END,
        ThreatCause.MAINTENANCE,
        ThreatCause.DRAIN,
        ThreatCause.LIMIT,
    }
)
CERTAIN = PLANNED | {ThreatCause.PREEMPTION}
"""By these causes the run certainly ends at that time, so the checkpoint policy has no say in the
save.
"""
OF_JOBS = frozenset({ThreatCause.LIMIT, ThreatCause.PREEMPTION})
"""These causes end the job and concern no node."""
OF_SLURM = frozenset({ThreatCause.MAINTENANCE, ThreatCause.DRAIN, ThreatCause.HEALTH})
"""The causes that Slurm's own nodes and reservations report."""
LEAVING = frozenset({ThreatCause.RECLAIM, ThreatCause.DEPARTURE})
"""By these causes the machine goes, whether or not its jobs are saved in time."""
EXPIRING = frozenset({ThreatCause.PLANNED_END, ThreatCause.RESERVATION_END})
"""By these causes the machine has a known end. At its maximum age nothing ends it while jobs run on
it. With its reservation the cloud ends it.
"""
OF_MACHINES = LEAVING | EXPIRING | {ThreatCause.REBALANCE}
"""The causes for which we may drain and power down nodes: other drains belong to others."""


class Response(StrEnum):
    """The answer: ``MOVE`` the job after a save; only ``SAVE`` it, because the threat may not come
    true; or let it ``END``.
    """

    MOVE = "move"
    SAVE = "save"
    END = "end"


class Threat(Struct, frozen=True, kw_only=True):
    """A threat to a node or a job.

    ``target``: the name of a node, or ``job:NUMBER``. ``until``: when it is lost (Unix s; None:
    unknown). ``since``: when we learnt of it. ``reason``: the same for all machines that a cloud
    takes, so that a thousand nodes need one command.
    """

    target: str
    cause: ThreatCause
    answer: Response
    reason: JobThreat
    since: float
    until: float | None = None

    def answer_at(self, job: SlurmJob, dump: float, slack: float, check: float = 0.0) -> float:
        """Return when to answer the threat for a job whose save may take ``dump`` seconds, and the
        verification of its image ``check`` seconds, with ``slack`` seconds kept (Unix s).
        """
        if self.cause not in PLANNED or self.until is None:
            return self.since
        # As late as the save allows, because the job may end by itself first.
        latest = self.until - dump - check - slack - LEAD
        # A job with a new limit works for at least half of it; else it would do nothing but save.
        return (
            max(latest, self.until - (job.limit or 0) / 2)
            if self.cause is ThreatCause.LIMIT
            else latest
        )

    def concerns(self, job: SlurmJob) -> bool:
        """Whether the job may still run when the threat comes true."""
        if self.cause not in PLANNED or self.until is None or self.cause is ThreatCause.LIMIT:
            return True
        # The jobs of its own reservation belong to the maintenance.
        reason, own_reservations = self.reason, job.reservation.split(",")
        if isinstance(reason, MaintenanceBegins) and reason.reservation in own_reservations:
            return False
        ends_at = job.ends_at_latest
        return ends_at is None or ends_at > self.until


Threats = Mapping[str, tuple[Threat, ...]]
"""The threats by node or job, the earliest end first."""
SavesByNode = Mapping[str, float]
"""The longest save (s) of the jobs on each node."""


# the sources


_CAUSES = {
    NoticeKind.INTERRUPTION: ThreatCause.RECLAIM,
    NoticeKind.REBALANCE: ThreatCause.REBALANCE,
    NoticeKind.DEPARTURE: ThreatCause.DEPARTURE,
}


def of_notice(node: str, notice: Notice) -> Threat:
    """Return the threat of a cloud's or a person's notice."""
    cause = _CAUSES[notice.kind]
    return Threat(
        target=node,
        cause=cause,
        answer=Response.MOVE if cause in LEAVING else Response.SAVE,
        reason=NoticeExplained(text=notice.reason)
        if notice.reason
        else NoticeGiven(notice=str(notice.kind)),
        since=notice.seen,
        until=notice.deadline,
    )


def is_false(notice: Notice, now: float) -> bool:
    """Whether the notice was wrong: the machine still runs, and may take jobs again."""
    # A notice without a deadline never becomes false: a person or the cloud must withdraw it.
    return notice.deadline is not None and now > notice.deadline + FALSE_AFTER


def age_threat(
    node: str, launched: float, max_age: float | None, now: float, dump: float = 0.0
) -> Threat | None:
    """Return the threat to a machine that has reached its pool's maximum age (s), or soon will;
    None before that. ``dump``: the longest save (s) of its jobs.
    """
    if max_age is None or launched + max_age - now > horizon(dump):
        return None
    ends = launched + max_age
    # No rule ends a machine with jobs, so one over its age has no deadline.
    return Threat(
        target=node, cause=ThreatCause.PLANNED_END, answer=Response.MOVE, since=now,
        reason=MaximumAgeReached(max_age_s=max_age),
        until=ends if ends > now else None,
    )  # fmt: skip


def of_end(
    node: str, reservation: str, ends_at: float | None, now: float, dump: float = 0.0
) -> Threat | None:
    """Return the threat to a machine whose cloud ends it with its reservation; None if not soon.
    ``dump``: the longest save (s) of its jobs.
    """
    if ends_at is None or ends_at - now > horizon(dump):
        return None
    return Threat(
        target=node, cause=ThreatCause.RESERVATION_END, answer=Response.MOVE, since=now,
        reason=EndsWithReservation(reservation=reservation),
        until=ends_at if ends_at > now else None,
    )  # fmt: skip


def longest_saves(
    jobs: Iterable[SlurmJob], saves: Mapping[int, float], expected: float
) -> SavesByNode:
    """Return the longest save of the jobs on each node. ``saves``: seconds by job; ``expected``:
    the seconds for other jobs.
    """
    saves_by_node: dict[str, float] = {}
    for job in jobs:
        for node in job.nodes:
            saves_by_node[node] = max(saves_by_node.get(node, 0.0), saves.get(job.id, expected))
    return saves_by_node


def of_reservations(reservations: Iterable[Reservation], now: float) -> list[Threat]:
    """Return one threat per node of each maintenance that will begin."""
    return [
        Threat(
            target=node, cause=ThreatCause.MAINTENANCE, answer=Response.MOVE, since=now,
            until=reservation.start, reason=MaintenanceBegins(reservation=reservation.name),
        )
        for reservation in reservations
        if "MAINT" in reservation.flags and reservation.start > now
        for node in reservation.nodes
    ]  # fmt: skip


def of_node(node: SlurmNode, now: float, our_mark: str) -> Threat | None:
    """Return the threat in a node's own state; None if there is none.

    FAIL: an administrator or a health check expects the node to fail soon. A drain: its reason has
    a date (ISO 8601) in the future; Slurm itself has no date for a drain. ``our_mark``: the
    beginning of the reasons that we set.
    """
    if node.states & {"FAIL", "FAILING"}:
        return Threat(
            target=node.name,
            cause=ThreatCause.HEALTH,
            answer=Response.MOVE,
            reason=NodeFailing(node_reason=node.reason),
            since=now,
        )
    # Our own drains are answers to threats that other sources report.
    if "DRAIN" not in node.states or has_mark(node, our_mark):
        return None
    when = _date(node.reason)
    if when is None or when <= now:
        return None
    return Threat(
        target=node.name,
        cause=ThreatCause.DRAIN,
        answer=Response.MOVE,
        reason=NodeDrained(node_reason=node.reason),
        since=now,
        until=when,
    )


def of_price(
    node: str, prices: tuple[tuple[float, float], ...], bid: float | None
) -> Threat | None:
    """Return the threat of a price ($/h) over the bid: the cloud may take the machine at any
    moment.
    """
    if bid is None or not prices or prices[-1][1] <= bid:
        return None
    since = next(changed_at for changed_at, _ in reversed(_last_over(prices, bid)))
    return Threat(
        target=node, cause=ThreatCause.PRICE, answer=Response.SAVE, since=since,
        reason=PriceOverBid(price=prices[-1][1], bid=bid),
    )  # fmt: skip


def of_limit(job: SlurmJob, dump: float, times: int, renewed: int, now: float) -> Threat | None:
    """Return the threat of the job's own time limit; None if it does not end soon. The job may be
    requeued for it ``times`` times, and was ``renewed`` times.
    """
    until = job.ends_at_latest
    # Slurm does not end a preempted run later than by its limit, so that threat is enough.
    if job.preempted or not times:
        return None
    if job.limit is None or until is None or until - now > horizon(dump):
        return None
    is_last = renewed >= times
    return Threat(
        target=f"job:{job.id}",
        cause=ThreatCause.LIMIT,
        answer=Response.END if is_last else Response.MOVE,
        reason=TimeLimitLast(limit_s=job.limit, requeued=renewed)
        if is_last
        else TimeLimitEnds(limit_s=job.limit, nth=renewed + 1, times=times),
        since=now,
        until=until,
    )


def of_preemption(job: SlurmJob, now: float) -> Threat | None:
    """Return the threat of a preemption: Slurm will end the run for a job of higher priority. None
    if it will not, or has done so without notice (no GraceTime).
    """
    if not job.preempted:
        return None
    return Threat(
        target=f"job:{job.id}", cause=ThreatCause.PREEMPTION, answer=Response.MOVE, since=now,
        reason=JobPreempted(), until=job.preempted,
    )  # fmt: skip


# all together


def by_subject(threats: Iterable[Threat]) -> Threats:
    """Return all threats by node or job."""
    threats_by_subject: dict[str, tuple[Threat, ...]] = {}
    for threat in sorted(threats, key=_end):
        threats_by_subject[threat.target] = (*threats_by_subject.get(threat.target, ()), threat)
    return threats_by_subject


def moving(threats: Threats) -> Mapping[str, Threat]:
    """Return the nodes and jobs to move, each with the threat that ends first. A threat without a
    known end comes last.
    """
    leaving = {
        subject: [t for t in subject_threats if t.answer is Response.MOVE]
        for subject, subject_threats in threats.items()
    }
    return {
        subject: subject_threats[0]
        for subject, subject_threats in leaving.items()
        if subject_threats
    }


def due(
    threats: Threats, job: SlurmJob, dump: float, slack: float, now: float, check: float = 0.0
) -> tuple[Threat, ...]:
    """Return the threats to a job that must be answered now, the earliest end first. ``check``:
    see ``Threat.answer_at``.
    """
    # A job of several nodes ends with any of them, so the threats to all its nodes count.
    candidates = [t for subject in (*job.nodes, f"job:{job.id}") for t in threats.get(subject, ())]
    due_threats = [
        t for t in candidates if t.concerns(job) and now >= t.answer_at(job, dump, slack, check)
    ]
    return tuple(sorted(due_threats, key=_end))


def notices(threats: Iterable[Threat], now: float) -> tuple[Notice, ...]:
    """Return the threats in the form that a checkpoint policy reads."""
    return tuple(
        Notice(
            instance="",
            node=threat.target,
            kind=NoticeKind.REBALANCE
            if threat.answer is Response.SAVE
            else NoticeKind.INTERRUPTION,
            # If the machine goes, use now as the time of the notice. A periodic save after the
            # notice is no answer to it, because the job must still be moved.
            seen=threat.since if threat.answer is Response.SAVE else now,
            deadline=threat.until,
            reason=str(threat.reason),
        )
        for threat in threats
        if threat.answer is not Response.END
    )


def horizon(dump: float) -> float:
    """Return how long before its end a planned threat counts (s). ``dump``: a save's duration."""
    return max(HORIZON, 3 * dump)


def _end(threat: Threat) -> float:
    # Unknown ends come last: a threat with a deadline must be answered before them.
    return float("inf") if threat.until is None else threat.until


def _last_over(prices: Collection[tuple[float, float]], bid: float) -> list[tuple[float, float]]:
    """Return the prices since the last price that was not over the bid, newest first."""
    prices_over: list[tuple[float, float]] = []
    for price in reversed(list(prices)):
        if price[1] <= bid:
            break
        prices_over.append(price)
    return prices_over


def _date(text: str) -> float | None:
    """Return the first date in a text (Unix s); local time if it names no zone."""
    match = _DATE.search(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[0]).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):  # no date, or none of the years 1 to 9999 in UTC
        return None
