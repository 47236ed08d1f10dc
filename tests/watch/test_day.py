"""The last 24 hours as series."""

from __future__ import annotations

import random
import time

import pytest
from ledger_cases import instance
from machine_cases import machine_with
from msgspec.structs import replace

from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.planning.day_table import day_table
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import ChargedRun, Machine
from slurm_elastic.model.requeued_jobs import RequeuedJob, with_waits
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.watch.view.day import (
    DAY_S,
    DAY_STEP_S,
    DaySpan,
    HourView,
    Peak,
    day_view,
    hours,
    still_waiting,
)

NOW = 1_800_000_000.0


def machine(launched: float, ended: float | None = None, **more: object) -> Machine:
    one = replace(instance("i-1", launched=launched), price=0.5)
    return machine_with(instance=one, pool="p", ended=ended, **more)


def test_the_last_point_is_now_and_the_first_a_day_ago() -> None:
    day = day_view([machine(NOW - 2 * DAY_S)], [], NOW)
    assert (day.begin, day.begin + (day.points - 1) * day.step) == (NOW - DAY_S, NOW)
    assert day.machines == {"spot": [1] * day.points}
    assert day.dollars == {"spot": [0.5] * day.points}
    assert day_view([], [], NOW).machines == {}


def test_a_machine_boots_until_it_registers_or_leaves() -> None:
    day = day_view(
        [machine(NOW - 1000, registered=NOW - 400), machine(NOW - 1000, suspending=NOW - 700),
         machine(NOW - 500), machine(NOW - 900, NOW - 600, registered=NOW - 800)], [], NOW
    )  # fmt: skip
    assert day.booting[-5:] == [2, 3, 2, 1, 1]
    assert day.machines["spot"][-5:] == [2, 3, 3, 3, 3]


def test_machines_between_two_points_are_seen() -> None:
    short = [machine(NOW - 7000 + n, NOW - 6900 + n) for n in range(14)]
    day = day_view([*short, machine(NOW - 900)], [], NOW)
    assert max(day.machines["spot"]) == 14
    assert sum(day.dollars["spot"]) * DAY_STEP_S == pytest.approx(
        (14 * 100 + 900) * 0.5 + 0.5 * DAY_STEP_S
    )
    assert day.most["machines"] == Peak(value=14, at=NOW - 7000 + 13)
    hour = hours(day)[22]
    assert hour.at == NOW - 7200
    assert hour.machines == [14]
    assert hour.dollars == pytest.approx(14 * 100 * 0.5 / 3600, abs=1e-6)
    assert hours(day)[-1] == HourView(NOW, [1], 0.5, 1, 0, None)


def test_at_most_is_of_one_moment_over_all_markets() -> None:
    one = replace(instance("i-2", launched=NOW - 800), price=2.0, market=Market.ON_DEMAND)
    dear = machine_with(instance=one, pool="p", ended=NOW - 700)
    day = day_view([machine(NOW - 880, NOW - 810), machine(NOW - 870, NOW - 805), dear], [], NOW)
    assert max(map(sum, zip(*day.machines.values(), strict=True))) == 3, "of one point"
    assert day.most["machines"] == Peak(value=2, at=NOW - 870)
    assert day.most["dollars"] == Peak(value=2.0, at=NOW - 800)
    assert day.most["running"] == Peak(value=0, at=None)


@pytest.mark.parametrize("seed", range(5))
def test_each_point_is_what_a_count_of_every_second_says(seed: int) -> None:
    chance = random.Random(seed)
    begin, spans = NOW - DAY_S, []
    for _ in range(40):
        since = begin + chance.randint(-4000, int(DAY_S))
        lasts = chance.choice((chance.randint(0, 200), chance.randint(0, 9000)))
        lives = since + lasts > NOW or chance.random() < 0.1
        spans.append((since, None if lives else since + lasts))
    prices = [chance.choice((0.04, 0.12, 1.5)) for _ in spans]
    machines = [
        machine_with(instance=replace(instance(f"i-{n}", launched=b), price=p), pool="p", ended=e)
        for n, ((b, e), p) in enumerate(zip(spans, prices, strict=True))
    ]
    day = day_view(
        machines, [ChargedRun(job=n, begin=b, end=e) for n, (b, e) in enumerate(spans)], NOW
    )

    seconds, dollars = [0] * (int(DAY_S) + 1), [0.0] * (int(DAY_S) + 1)
    for (since, until), price in zip(spans, prices, strict=True):
        last = int(DAY_S) + 1 if until is None else int(until - begin)
        for second in range(max(int(since - begin), 0), last):
            seconds[second] += 1
            dollars[second] += price
    for n in range(day.points):
        of = slice(n * int(DAY_STEP_S), (n + 1) * int(DAY_STEP_S))
        assert day.running[n] == day.machines["spot"][n] == max(seconds[of])
        mean = sum(dollars[of]) / len(dollars[of])
        assert day.dollars["spot"][n] == pytest.approx(mean, abs=1e-5)
    most = max(seconds)
    assert day.most["running"] == day.most["machines"]
    assert day.most["running"] == Peak(value=most, at=begin + seconds.index(most))
    assert day.most["dollars"].value == pytest.approx(max(dollars))


def test_the_printed_day_has_the_most_of_each_hour_and_of_the_day() -> None:
    short = [machine(NOW - 7000 + n, NOW - 6900 + n) for n in range(14)]
    console = plain()
    with console.capture() as printed:
        console.print(day_table(day_view(short, [], NOW)), width=80)
    lines = printed.get().split("\n")
    found = [line.split()[-5:] for line in lines]
    assert found[24] == ["14", "0.1944", "14", "0", "-"], "the hour from 2 h ago"
    assert found[26] == ["0", "0.0000", "0", "0", "-"]
    assert lines[26].startswith("now ")
    at = time.strftime("%d %H:%M", time.localtime(NOW - 7000 + 13))
    most = ["Maximum:", f"  14 machines ({at})", f"  7.0000 $/h ({at})"]
    assert [line.rstrip() for line in lines[-4:-1]] == most


def test_jobs_wait_from_their_submission_on() -> None:
    waiting = frozenset({"PENDING"})
    jobs = [
        SlurmJob(id=1, states=waiting, submit=NOW - 400, tasks=3),
        SlurmJob(id=2, states=waiting, submit=NOW - 9 * DAY_S),
        SlurmJob(id=3, states=frozenset({"RUNNING"}), submit=NOW - 400),
    ]
    assert still_waiting(jobs, NOW)[-3:] == [4, 4, 4]


def test_a_wait_begins_before_our_requeues_but_not_before_another_submission() -> None:
    waiting = frozenset({"PENDING"})
    requeued = {
        number: RequeuedJob(requeued_at=NOW - 101, waits_since=NOW - 9 * DAY_S)
        for number in (1, 2, 3)
    }
    jobs = [
        SlurmJob(id=1, states=waiting, submit=NOW - 100),
        SlurmJob(id=2, states=waiting, submit=NOW - 10),
        SlurmJob(id=3, states=frozenset({"RUNNING"}), submit=NOW - 100),
        SlurmJob(id=4, states=waiting, submit=NOW - 100),
    ]
    submitted = [job.submit for job in with_waits(jobs, requeued)]
    assert submitted == [NOW - 9 * DAY_S, NOW - 10, NOW - 100, NOW - 100]


def test_the_last_hour_has_a_point_each_quarter_of_a_minute() -> None:
    day = day_view([machine(NOW - 600, NOW - 300)], [], NOW, span=DaySpan.HOUR)
    assert (day.points, day.step, DaySpan.HOUR.label) == (241, 15.0, "hour")
    assert sum(day.dollars["spot"]) * day.step == pytest.approx(300 * 0.5, abs=0.01)
    assert len(hours(day)) == 2


@pytest.mark.parametrize(("span", "rows"), [("6h", 6), ("24h", 24), ("7d", 7), ("30d", 30)])
def test_other_spans_have_as_much_money_and_rows_of_hours_or_days(span: str, rows: int) -> None:
    chosen = DaySpan(span)
    day = day_view([machine(NOW - 7200, NOW - 3600)], [], NOW, span=chosen)
    assert (day.begin, day.begin + (day.points - 1) * day.step) == (NOW - chosen.seconds, NOW)
    assert sum(day.dollars["spot"]) * day.step == pytest.approx(3600 * 0.5, abs=0.01)
    assert len(hours(day)) == rows + 1, "and now"
    old = SlurmJob(id=1, states=frozenset({"PENDING"}), submit=NOW - 40 * DAY_S)
    assert still_waiting([old], NOW, chosen) == [1] * day.points


@pytest.mark.parametrize(("span", "each"), [("1h", "hour"), ("24h", "hour"), ("7d", "day")])
def test_the_note_says_of_which_time_the_counts_are_the_maximum(span: str, each: str) -> None:
    chosen = DaySpan(span)
    day = day_view([machine(NOW - 600, NOW - 300)], [], NOW, span=chosen)
    console = plain()
    with console.capture() as captured:
        console.print(day_table(day, chosen))
    assert f"Counts: the maximum in each {each};" in " ".join(captured.get().split())
