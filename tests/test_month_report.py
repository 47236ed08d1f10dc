"""The month's report: its amounts are those of ``cost`` and of an independent sum."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import month_cases
import month_sums
import msgspec
import pytest
from month_cases import MONTHS, NOW
from month_sums import Contract, utc

from slurm_elastic.base.month import Month, month_at, parse_month
from slurm_elastic.cli.main import main
from slurm_elastic.cli.reports import cost as cost_table
from slurm_elastic.cli.reports import month_tables
from slurm_elastic.cli.reports import report as module
from slurm_elastic.features.money.books import Costs
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.money.cost_sums import CostLine
from slurm_elastic.model.reserved import Held, ReservationKind
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.view.month_report import forecast

CONTRACT = Contract(
    "big", 4, utc("2026-09-10T12:00+00:00"), utc("2027-03-10T12:00+00:00"),
    4 * (Fraction(1800, 4) / (181 * 24) + Fraction(21, 100)),
)  # fmt: skip
CENT = Fraction(1, 100)
DOCUMENTS: dict[tuple[str, str], dict[str, object]] = {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = month_cases.config_file(tmp_path_factory.mktemp("months"))
    month_cases.fill(path.parent / "state" / "ledger.db")
    return path


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "time", lambda: NOW)
    monkeypatch.setenv("COLUMNS", "80")


def out_of(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    assert main(["--config", str(path), *words]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def document(capsys: pytest.CaptureFixture[str], path: Path, month: str) -> dict[str, object]:
    key = (str(path), month)
    if key not in DOCUMENTS:
        text = out_of(capsys, path, "report", "--month", month, "--json", "--no-simulation")
        DOCUMENTS[key] = json.loads(text)
    return DOCUMENTS[key]


def lines(document: Mapping[str, object], name: str) -> dict[str, int]:
    rows = document[name]
    assert isinstance(rows, list)
    return {
        f"unused: {row['key']}" if row["unused"] else row["key"]: row["micro_dollars"]
        for row in rows
    }


@pytest.mark.parametrize("month", MONTHS)
def test_its_amounts_are_those_of_an_independent_sum_to_the_cent(
    site: Path, capsys: pytest.CaptureFixture[str], month: str
) -> None:
    found = document(capsys, site, month)
    span = parse_month(month)
    contracts = [CONTRACT] if month != MONTHS[0] else []
    summed = month_sums.sums(
        site.parent / "state" / "ledger.db", span.begin, span.end, NOW,
        {"aws": 1, "hourly": 3600, "own": 1}, [CONTRACT], "aws",
    )  # fmt: skip
    assert bool(contracts) == ("unused: reserved" in summed.accounts)
    for name, expected in (
        ("accounts", summed.accounts), ("users", summed.users), ("clouds", summed.clouds)
    ):  # fmt: skip
        told = lines(found, name)
        assert told.keys() == expected.keys(), name
        for key, dollars in expected.items():
            assert abs(Fraction(told[key], 1_000_000) - dollars) < CENT, (name, key)
        assert sum(told.values()) == found["micro_dollars"], "the lines sum to the total exactly"
    for name, dollars in (
        ("micro_dollars", summed.total), ("on_demand_micro_dollars", summed.on_demand)
    ):  # fmt: skip
        assert isinstance(found[name], int)
        assert abs(Fraction(found[name], 1_000_000) - dollars) < CENT, name
    always_on = found["always_on"]
    assert isinstance(always_on, dict)
    assert Fraction(always_on["micro_dollars_per_hour"], 1_000_000) == summed.busiest
    assert abs(Fraction(always_on["micro_dollars"], 1_000_000) - summed.always_on) < CENT


def test_a_cluster_that_began_within_the_month_is_compared_from_its_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, first = month_cases.config_file(tmp_path), NOW - 3000
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    month_cases.one_machine(ledger, first)
    ledger.close()
    found = json.loads(
        out_of(capsys, path, "report", "--month", "2026-11", "--json", "--no-simulation")
    )
    always_on = found["always_on"]
    assert (always_on["since"], always_on["hours"]) == (first, 3000 / 3600)
    november = parse_month("2026-11")
    summed = month_sums.sums(
        tmp_path / "state" / "ledger.db", november.begin, november.end, NOW,
        {"aws": 1, "hourly": 3600, "own": 1}, [CONTRACT], "aws",
    )  # fmt: skip
    assert abs(Fraction(always_on["micro_dollars"], 1_000_000) - summed.always_on) < CENT
    flat = re.sub(
        r"\s+", " ", out_of(capsys, path, "report", "--month", "2026-11", "--no-simulation")
    )
    assert "running all 0.83 hours since the first launch on record (2026-11-01 00:33 UTC)" in flat


@pytest.mark.parametrize("month", [MONTHS[0], pytest.param(MONTHS[2], marks=pytest.mark.release)])
def test_its_amounts_are_those_of_cost_to_the_micro_dollar(
    site: Path, capsys: pytest.CaptureFixture[str], month: str
) -> None:
    found, span = document(capsys, site, month), parse_month(month)
    for name, by in (("accounts", By.ACCOUNT), ("users", By.USER), ("clouds", By.CLOUD)):
        words = ("--since", f"{span}-01", "--until", f"{span.next}-01", "--by", str(by))
        cost = json.loads(out_of(capsys, site, "cost", *words, "--json"))
        for same in ("micro_dollars", "on_demand_micro_dollars", "machines", "since", "until"):
            assert cost[same] == found[same], (month, by, same)
        assert lines(cost, "lines") == lines(found, name)
        if by is By.ACCOUNT:
            assert cost["unused_micro_dollars"] == found["unused_micro_dollars"]


@pytest.mark.release
def test_months_sum_to_the_quarter(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--since", "2026-08-01", "--until", "2026-11-01")
    cost = json.loads(out_of(capsys, site, "cost", *words, "--json"))
    of_months = [document(capsys, site, month)["micro_dollars"] for month in MONTHS]
    assert sum(int(str(micro)) for micro in of_months) == cost["micro_dollars"]


def test_the_text_fits_and_says_what_is_compared(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = out_of(capsys, site, "report", "--no-simulation")
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("alps: report of October 2026\n"), "the last month by default"
    flat = re.sub(r"\s+", " ", text)
    assert "Against on demand: $" in flat
    assert "the same machines for the same hours at the on-demand prices" in flat
    assert "of the busiest moment (2026-10-" in flat
    assert "running all 744 hours" in flat
    assert "of the month's budget of $5,000.00" in flat
    assert "No simulation: it was left out." in flat
    assert "November 2026: about $" in flat
    assert "timings.suspend_time" in flat


def test_unused_time_is_never_among_the_users_that_are_not_shown(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = out_of(capsys, site, "report", "--no-simulation")
    by_user = text[text.index("USER ") : text.index("CLOUD ")]
    keys = lines(document(capsys, site, "2026-10"), "users")
    unused = [key for key in keys if key.startswith("unused: ")]
    assert unused
    assert all(f"({key})" in by_user for key in unused)
    number = len(keys) - len(unused) - month_tables.MAX_LINES
    assert number > 0
    assert f"and {number} more, $" in by_user


def test_a_month_without_costs_shows_cents() -> None:
    assert cost_table.dollars(0, cost_table.digits_of(0)) == "$0.00"


@pytest.mark.parametrize(
    ("month", "says", "code"),
    [
        ("2027-01", "--month: January 2027 has not begun", 2),
        ("2025-01", "they are kept for 400 days", 1),
    ],
)
def test_months_without_records_are_refused(
    site: Path, capsys: pytest.CaptureFixture[str], month: str, says: str, code: int
) -> None:
    assert main(["--config", str(site), "report", "--month", month]) == code
    assert says in capsys.readouterr().err


def test_a_wrong_month_is_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--config", str(site), "report", "--month", "October"])
    assert "'October' is not a month such as 2026-10" in capsys.readouterr().err


def test_a_month_that_runs_ends_now(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, site, "2026-11")
    assert (found["is_over"], found["until"]) == (False, NOW)


def test_months_follow_each_other() -> None:
    december = Month(2026, 12)
    assert (str(december.next), str(december.next.previous)) == ("2027-01", "2026-12")
    assert (december.days, december.name) == (31, "December 2026")
    assert month_at(december.begin) == month_at(december.end - 1) == december
    for text in ("2026-13", "2026-1", "26-01", "2026-00", "0001-01"):
        with pytest.raises(ValueError, match="is not a month"):
            parse_month(text)


def days(*micros: int, until: str = "2026-10-29T00:00+00:00") -> Costs:
    end = utc(until)
    rows = [
        CostLine(key=f"{month_sums.day(end - 86400 * (len(micros) - n))}", micro=micro)
        for n, micro in enumerate(micros)
        if micro
    ]
    return Costs(by=By.DAY, since=0.0, until=end, lines=tuple(rows))


def test_the_forecast_is_the_mean_of_whole_weeks_with_a_range() -> None:
    even = forecast(Month(2026, 11), days(*[7_000_000] * 30))
    assert even is not None
    month = 30 * 7_000_000
    assert (even.weeks, even.micro_dollars) == (4, month)
    assert (even.low_micro_dollars, even.high_micro_dollars) == (month, month)
    weeks = [[1_000_000] * 7, [3_000_000] * 7] * 3
    uneven = forecast(Month(2026, 11), days(*(micro for week in weeks for micro in week)))
    assert uneven is not None
    assert uneven.micro_dollars == 30 * 2_000_000
    assert 0 <= uneven.low_micro_dollars < uneven.micro_dollars < uneven.high_micro_dollars


def test_the_price_of_reservations_is_taken_apart_from_the_mean() -> None:
    begin, end = utc("2026-10-15T00:00+00:00"), utc("2026-11-11T00:00+00:00")
    held = Held(
        cloud="aws", name="ri", kind=ReservationKind.INSTANCES, begins_at=begin, ends_at=end,
        instance_type="big", count=2, price=1.0,
    )  # fmt: skip
    micros = [7_000_000] * 14 + [7_000_000 + 48_000_000] * 14
    found = forecast(Month(2026, 11), days(*micros), [held])
    assert found is not None
    assert found.reserved_micro_dollars == 10 * 48_000_000, "it covers ten days of November"
    assert found.micro_dollars == found.low_micro_dollars == 30 * 7_000_000 + 10 * 48_000_000
    assert found.changing == ("ri",)


def test_weeks_before_the_first_launch_are_not_in_the_mean() -> None:
    held = Held(
        cloud="aws", name="ri", kind=ReservationKind.INSTANCES, begins_at=0.0,
        ends_at=utc("2028-01-01T00:00+00:00"), instance_type="big", count=2, price=1.0,
    )  # fmt: skip
    costs = days(*[48_000_000] * 28, *[55_000_000] * 28)
    launched = msgspec.structs.replace(costs, first_launch=costs.until - 28 * 86400)
    found = forecast(Month(2026, 11), launched, [held])
    assert found is not None
    assert (found.weeks, found.micro_dollars) == (4, 30 * 55_000_000)
    assert found.changing == ()


@pytest.mark.release
def test_the_forecast_is_that_of_an_independent_sum(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, site, "2026-10")["forecast"]
    assert isinstance(found, dict)
    november = parse_month("2026-11")
    expected = month_sums.expected(
        site.parent / "state" / "ledger.db", november.begin, found["weeks"],
        (november.begin, november.end), {"aws": 1, "hourly": 3600, "own": 1}, [CONTRACT], "aws",
    )  # fmt: skip
    assert abs(Fraction(found["micro_dollars"], 1_000_000) - expected) < CENT
    text = re.sub(r"\s+", " ", out_of(capsys, site, "report", "--no-simulation"))
    reserved = CONTRACT.per_hour * 30 * 24
    assert f"${float(reserved):,.2f} of it is the fixed price of reservations" in text
    assert "half-year begins or ends between" in text


def test_a_short_history_gives_no_forecast() -> None:
    assert forecast(Month(2026, 11), days(*[7_000_000] * 27)) is None
    assert forecast(Month(2026, 11), days()) is None
