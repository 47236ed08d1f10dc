"""The report of a month: the costs, the savings, the unused part, and a forecast. Pure.

Money is in whole micro-dollars, and all amounts of the month equal those in ``cost`` for the same
span. Only the forecast is an estimate; the results of a simulation are in ``Replay``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import sqrt
from statistics import mean, stdev

from msgspec import Struct

from slurm_elastic.base.month import Month
from slurm_elastic.config import Config
from slurm_elastic.features.money.books import Costs
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.money.reservations import charged
from slurm_elastic.simulate.studies.month_replay import Replay
from slurm_elastic.watch.view.unused import (
    NormalUnused,
    UnusedShare,
    normal_unused,
    unused_shares,
)

KEYS = (By.ACCOUNT, By.USER, By.CLOUD)
"""The keys by which the report shows the costs of the month."""
MIN_WEEKS = 4
"""Whole weeks of costs that a forecast needs."""
MAX_WEEKS = 13
WEEK_S, DAY_S = 7 * 86400.0, 86400.0


class ReportLine(Struct, frozen=True, kw_only=True):
    """The costs of one account, user or cloud. ``unused``: no job used this part; the key is the
    reason. ``unused_micro_dollars``: the part of a cloud's costs that no job used.
    """

    key: str
    micro_dollars: int
    machine_hours: float
    unused: bool = False
    unused_micro_dollars: int = 0


class AlwaysOn(Struct, frozen=True, kw_only=True):
    """The cluster that the costs are compared with: the ``machines`` of the busiest moment, ``at``
    (Unix time), on demand and running during all ``hours`` from ``since`` on. ``since`` is the
    begin of the month, or the first launch on record if the cluster began within the month.
    """

    at: float
    since: float
    machines: int
    micro_dollars_per_hour: int
    hours: float
    micro_dollars: int


class Forecast(Struct, frozen=True, kw_only=True):
    """The expected costs of ``month``, from ``weeks`` whole weeks: low, expected, high.

    ``reserved_micro_dollars``: the fixed price of reservations within each. ``changing``:
    reservations that begin or end between the first of these weeks and the end of ``month``, so
    that the same machines do not cost the same all the time.
    """

    month: str
    weeks: int
    low_micro_dollars: int
    micro_dollars: int
    high_micro_dollars: int
    reserved_micro_dollars: int = 0
    changing: tuple[str, ...] = ()


class MonthReport(Struct, frozen=True, kw_only=True):
    """The document of ``report --json``, version 1.

    ``since``, ``until``: the span of the figures (Unix time); it ends before the month does if
    ``is_over`` is false. ``own_jobs_only``: as in the document of ``cost``.
    ``on_demand_micro_dollars``: the price of the same machine-hours on demand.
    ``budget_micro_dollars``: the budget of a month that is in force now (None: none).
    ``first_launch``: the first launch on record, of all months (None: none, or only own jobs are
    included).
    ``no_replay``: why there is no simulation, or "". ``problems``: sums that do not add up.
    """

    month: str
    cluster: str
    since: float
    until: float
    is_over: bool
    own_jobs_only: bool
    micro_dollars: int
    on_demand_micro_dollars: int
    machines: int
    machine_hours: float
    accounts: tuple[ReportLine, ...]
    users: tuple[ReportLine, ...]
    clouds: tuple[ReportLine, ...]
    unused_micro_dollars: int = 0
    unused: tuple[UnusedShare, ...] = ()
    normal_unused: NormalUnused | None = None
    always_on: AlwaysOn | None = None
    first_launch: float | None = None
    forecast: Forecast | None = None
    budget_micro_dollars: int | None = None
    replay: Replay | None = None
    no_replay: str = ""
    problems: tuple[str, ...] = ()
    version: int = 1


def month_report(
    config: Config, month: Month, costs: Mapping[By, Costs], days: Costs, now: float
) -> MonthReport:
    """Make the report without a simulation.

    ``costs``: of the month, by each of ``KEYS``. ``days``: by day, of the weeks up to now or to the
    month's end, for the forecast.
    """
    by_account = costs[By.ACCOUNT]
    is_own = by_account.own
    budget = config.policies.budget.per_month
    return MonthReport(
        month=str(month),
        cluster=config.cluster.name,
        since=by_account.since,
        until=by_account.until,
        is_over=month.end <= now,
        own_jobs_only=is_own,
        micro_dollars=by_account.micro,
        on_demand_micro_dollars=by_account.micro_on_demand or by_account.micro,
        machines=by_account.machines,
        machine_hours=round(by_account.hours, 6),
        accounts=_lines(by_account),
        users=_lines(costs[By.USER]),
        clouds=_lines(costs[By.CLOUD]),
        unused_micro_dollars=sum(line.micro for line in by_account.lines if line.unused),
        unused=unused_shares(config, by_account),
        normal_unused=None if is_own else normal_unused(config, by_account),
        always_on=_always_on(by_account),
        first_launch=by_account.first_launch,
        forecast=forecast(month.next, days, days.held),
        budget_micro_dollars=None if budget is None or is_own else round(budget * 1_000_000),
        problems=tuple(
            dict.fromkeys(problem for by_key in costs.values() for problem in by_key.problems)
        ),
    )


def _lines(costs: Costs) -> tuple[ReportLine, ...]:
    return tuple(
        ReportLine(
            key=line.key,
            micro_dollars=line.micro,
            machine_hours=round(line.hours, 6),
            unused=line.unused,
            unused_micro_dollars=line.micro_unused,
        )
        for line in costs.lines
    )


def _always_on(costs: Costs) -> AlwaysOn | None:
    fleet = costs.fleet
    if fleet is None:
        return None
    since = max(costs.since, costs.first_launch or costs.since)
    return AlwaysOn(
        at=fleet.at,
        since=since,
        machines=fleet.machines,
        micro_dollars_per_hour=fleet.micro_per_hour,
        hours=(costs.until - since) / 3600,
        micro_dollars=fleet.micro(since, costs.until),
    )


def forecast(month: Month, days: Costs, held: Sequence[Held] = ()) -> Forecast | None:
    """Return the costs to expect in ``month`` from the costs by day; None if the history is too
    short. ``held``: the reservations whose prices the costs include.

    The fixed price of reservations in the month is known. The other costs are expected to be the
    mean of the last whole weeks, at most ``MAX_WEEKS``, times the weeks of the month. The range has
    two standard errors on either side. They include that the weeks of a month vary, and that few
    weeks determine the mean badly.
    """
    weeks = _weeks(days, held)[:MAX_WEEKS]
    if len(weeks) < MIN_WEEKS:
        return None
    in_month = month.days / 7
    reserved = _fixed_price(held, month.begin, month.end)
    expected = mean(weeks) * in_month
    half_width = 2 * stdev(weeks) * sqrt(in_month + in_month**2 / len(weeks))
    begin = _last_midnight(days) - len(weeks) * WEEK_S
    return Forecast(
        month=str(month),
        weeks=len(weeks),
        low_micro_dollars=max(round(expected - half_width), 0) + reserved,
        micro_dollars=round(expected) + reserved,
        high_micro_dollars=round(expected + half_width) + reserved,
        reserved_micro_dollars=reserved,
        changing=tuple(
            reservation.name
            for reservation in held
            if begin < reservation.begins_at < month.end or begin < reservation.ends_at < month.end
        ),
    )


def _fixed_price(held: Iterable[Held], since: float, until: float) -> int:
    """The micro-dollars that these reservations cost in that span, whether they were
    used or not.
    """
    begin, end = round(since * 1000), round(until * 1000)
    return sum(charged(reservation, end) - charged(reservation, begin) for reservation in held)


def _weeks(days: Costs, held: Sequence[Held]) -> Sequence[int]:
    """The micro-dollars of whole weeks without the fixed price of reservations, the last week
    first.

    The history begins with the first day that has costs, because slurm-elastic may not have run
    before.
    """
    by_day = {line.key: line.micro for line in days.lines}
    first = min(by_day, default="")
    if held and days.first_launch is not None:
        # A reservation costs money on days before slurm-elastic ran.
        first = max(first, _day(days.first_launch))
    weeks = []
    end = _last_midnight(days)
    while first and _day(end - WEEK_S) >= first:
        micro = sum(by_day.get(_day(end - n * DAY_S), 0) for n in range(1, 8))
        weeks.append(max(micro - _fixed_price(held, end - WEEK_S, end), 0))
        end -= WEEK_S
    return weeks


def _last_midnight(days: Costs) -> float:
    return days.until // DAY_S * DAY_S


def _day(timestamp: float) -> str:
    return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d}"
