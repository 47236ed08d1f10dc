"""The sentences of the month's report, for the terminal and the page. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from slurm_elastic.base.month import parse_month
from slurm_elastic.base.units import brief, counted, does, money
from slurm_elastic.cli.planning.simulate_tables import SCHEDULER, duration
from slurm_elastic.cli.reports.cost import digits_of, dollars
from slurm_elastic.simulate.studies.certainty import Interval
from slurm_elastic.simulate.studies.month_replay import Replay
from slurm_elastic.watch.view.month_report import MIN_WEEKS, Forecast, MonthReport


def amount(report: MonthReport, micro: int) -> str:
    """Dollars with as many digits as the report's sum needs, and cents at least."""
    return dollars(micro, digits_of(report.micro_dollars))


def percent(share: float, whole: float) -> str:
    """A share of the whole as text, such as ``12.3 %``."""
    return f"{100 * share / whole:.1f} %" if whole else "0.0 %"


def title(report: MonthReport) -> str:
    """The title of the report: ``alps: report of October 2026``."""
    return f"{report.cluster}: report of {parse_month(report.month).name}"


def span(report: MonthReport) -> str:
    """The span of the figures."""
    until = f"{datetime.fromtimestamp(report.until, UTC):%Y-%m-%d %H:%M}"
    begin = f"{datetime.fromtimestamp(report.since, UTC):%Y-%m-%d %H:%M}"
    so_far = "" if report.is_over else ", the month so far"
    own_jobs = ", your own jobs' part" if report.own_jobs_only else ""
    return f"From {begin} to {until} (UTC){so_far}{own_jobs}."


def spent(report: MonthReport) -> str:
    """The sum, and the machines that it is for."""
    if not report.machines and not report.micro_dollars:
        so_far = "" if report.is_over else " so far"
        return f"Nothing was spent in {parse_month(report.month).name}{so_far}."
    hours = f"{report.machine_hours:,.{0 if report.machine_hours >= 10 else 2}f}"
    text = (
        f"{amount(report, report.micro_dollars)} for {counted(report.machines, 'machine')} in "
        f"{hours} machine-hours"
    )
    if not report.budget_micro_dollars:
        return f"{text}."
    share = percent(report.micro_dollars, report.budget_micro_dollars)
    budget = amount(report, report.budget_micro_dollars)
    return f"{text}; {share} of the month's budget of {budget}."


def saved(report: MonthReport) -> Iterator[tuple[str, str]]:
    """Yield pairs of texts: the cost that the month's costs are compared with, and the result."""
    on_demand = report.on_demand_micro_dollars
    yield (
        "Against on demand",
        (
            f"{_saving(report, on_demand)}. Compared with {amount(report, on_demand)}: the same "
            "machines for the same hours at the on-demand prices that the clouds quoted."
        ),
    )
    fleet = report.always_on
    if fleet is None:
        return
    moment = f"{datetime.fromtimestamp(fleet.at, UTC):%Y-%m-%d %H:%M} UTC"
    price = money(fleet.micro_dollars_per_hour / 1_000_000)
    since = f"{datetime.fromtimestamp(fleet.since, UTC):%Y-%m-%d %H:%M} UTC"
    began = f" since the first launch on record ({since})" if fleet.since > report.since else ""
    hours = f"{fleet.hours:,.{0 if fleet.hours >= 10 else 2}f}"
    machines = "paid machine" if fleet.machines == 1 else f"{fleet.machines:,} paid machines"
    text = (
        f"{_saving(report, fleet.micro_dollars)}. Compared with "
        f"{amount(report, fleet.micro_dollars)}: the {machines} of the busiest moment ({moment}), "
        f"which cost {price} an hour on demand, running all {hours} hours{began}."
    )
    yield "Against always on", text


def _saving(report: MonthReport, other: int) -> str:
    saving = other - report.micro_dollars
    if saving < 0:
        return f"nothing, {amount(report, -saving)} more was paid"
    return f"{amount(report, saving)} ({percent(saving, other)})"


def unused(report: MonthReport) -> Iterator[str]:
    """Sentences about the paid time that no job used, and about its normal part."""
    whole, unused_micro = report.micro_dollars, report.unused_micro_dollars
    if report.normal_unused is None or not whole:
        return
    normal = report.normal_unused
    share = percent(unused_micro, whole)
    yield f"{amount(report, unused_micro)} ({share}) was for time that no job used."
    wait = f", waits {brief(normal.wait_s)} for another job" if normal.wait_s else ""
    yield (
        f"With these settings {amount(report, normal.micro_dollars)} "
        f"({percent(normal.micro_dollars, whole)}) is normal: each machine boots once{wait}, and "
        "ends."
    )


def waiting_time(hours: float) -> str:
    """A time as text, such as ``260 hours``, or in minutes below one hour. It never
    shows ``-0``.
    """
    if abs(hours) >= 1:
        return f"{hours:,.0f} {'hour' if round(abs(hours)) == 1 else 'hours'}"
    minutes = round(60 * hours)
    return f"{minutes} {'minute' if abs(minutes) == 1 else 'minutes'}"


def avoided_range(avoided: Interval) -> tuple[str, str]:
    """The least and the most waiting of the range. If clouds added waiting, these are the least and
    the most added waiting.
    """
    if avoided.value < 0:
        return waiting_time(-avoided.high), waiting_time(-avoided.low)
    return waiting_time(avoided.low), waiting_time(avoided.high)


def waiting(report: MonthReport) -> Iterator[str]:
    """The waiting that clouds avoided, by simulation."""
    replay = report.replay
    if replay is None:
        yield f"No simulation: {report.no_replay}."
        return
    jobs = f"{replay.jobs:,} {'job' if replay.jobs == 1 else 'jobs'}"
    if replay.without is None:
        yield (
            f"By simulation of the month's {jobs}: mean wait "
            f"{duration(replay.configured.mean_wait)}. The waiting that clouds avoided is unknown: "
            f"{replay.no_comparison}."
        )
        return
    if replay.avoided is not None:
        low, high = avoided_range(replay.avoided)
        effect = "avoided" if replay.avoided.value >= 0 else "added"
        yield (
            f"By simulation of the month's {jobs}: clouds {effect} "
            f"{waiting_time(abs(replay.avoided.value))} of waiting ({low} to {high}, the range of "
            "9 in 10 random draws of the month's days and of random choices)."
        )
    yield (
        f"Mean wait with clouds {duration(replay.configured.mean_wait)}, without "
        f"{duration(replay.without.mean_wait)}."
    )
    if replay.never:
        yield (
            f"{replay.never:,} jobs would never have run without clouds: they need more than the "
            "site has. They are not in the hours."
        )


def simulated_dollars(replay: Replay, amount_dollars: float) -> str:
    """Dollars of the simulation, with the digits that the dearest point of its curve needs."""
    dearest = max(point.dollars for point in (*replay.curve, replay.configured))
    return dollars(round(amount_dollars * 1_000_000), digits_of(round(dearest * 1_000_000)))


def curve(report: MonthReport) -> Iterator[str]:
    """The text above the curve of budget and wait."""
    replay = report.replay
    if replay is None or not replay.curve:
        return
    limit = "" if replay.is_complete else "; the time was too short to try all"
    yield (
        f"Each row is the policy with the shortest mean wait for that money, by simulation of the "
        f"same jobs ({replay.tried} policies tried{limit}). Now: the current configuration, which "
        f"costs {simulated_dollars(replay, replay.configured.dollars)} in the simulation; the real "
        f"cost was {amount(report, report.micro_dollars)}."
    )
    if replay.on_demand_pools:
        number = len(replay.on_demand_pools)
        pools = f"{'pool' if number == 1 else 'pools'} {', '.join(replay.on_demand_pools)}"
        yield (
            "The simulation knows no spot prices, so it reckons with on-demand prices for "
            f"{pools}. Its dollars are an upper bound."
        )
    yield from _alternatives(replay)


def _alternatives(replay: Replay) -> Iterator[str]:
    """A sentence about the next points of the curve above and below the current costs."""
    now = replay.configured
    dearer = next(
        (p for p in replay.curve if p.dollars > now.dollars and p.mean_wait < now.mean_wait), None
    )
    cheaper = next((p for p in reversed(replay.curve) if p.dollars < now.dollars), None)
    texts = []
    if dearer is not None:
        increase = f"{simulated_dollars(replay, dearer.dollars - now.dollars)} more"
        texts.append(
            f"{increase} in the month would buy a mean wait of {duration(dearer.mean_wait)}"
        )
    if cheaper is not None:
        saving = f"{simulated_dollars(replay, now.dollars - cheaper.dollars)} less"
        texts.append(f"{saving} would mean {duration(cheaper.mean_wait)}")
    if texts:
        yield f"Now it is {duration(now.mean_wait)}. {', '.join(texts)}."


def notes(report: MonthReport) -> Iterator[str]:
    """The limits of the simulation."""
    if report.replay is not None:
        yield SCHEDULER
        yield from (f"{note}." for note in report.replay.notes)


def forecast(report: MonthReport) -> str:
    """The expected costs of the next month."""
    expected = report.forecast
    if expected is None:
        return f"No forecast: it needs {MIN_WEEKS} whole weeks of costs."
    name = parse_month(expected.month).name
    text = (
        f"{name}: about {amount(report, expected.micro_dollars)} "
        f"({amount(report, expected.low_micro_dollars)} to "
        f"{amount(report, expected.high_micro_dollars)}), from the last {expected.weeks} weeks. It "
        "assumes that the coming weeks vary as these did."
    )
    text += _reserved_part(report, expected)
    budget = report.budget_micro_dollars
    if budget and expected.high_micro_dollars > budget:
        return f"{text} The budget of {amount(report, budget)} may be reached; it stops launches."
    return text


def _reserved_part(report: MonthReport, expected: Forecast) -> str:
    """Sentences about the reservations in the forecast, each after a space; or ""."""
    text = ""
    if expected.reserved_micro_dollars:
        text = (
            f" {amount(report, expected.reserved_micro_dollars)} of it is the fixed price of "
            "reservations in that month; the weeks are counted without it."
        )
    names = expected.changing
    if names:
        text += (
            f" {', '.join(names)} {does(len(names), 'begin')} or {does(len(names), 'end')} between "
            "the first of these weeks and the end of that month, so the other costs may differ "
            "from their mean."
        )
    return text
