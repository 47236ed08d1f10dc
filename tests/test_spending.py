"""The cost of machines in a span of time, by the ledger."""

from __future__ import annotations

import math
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from cost_cases import config_file
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.config import Config, configfile
from slurm_elastic.config.pool_rules import purchase_terms
from slurm_elastic.config.sections.policies import Budget, PoolPolicies, SitePolicies
from slurm_elastic.controller.launching.budget import read_spending
from slurm_elastic.features.money.books import read_books, report, reports
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.model.memory import PurchaseTerms
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.bills.billing import Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.books import (
    RESERVED_ENDED,
    SPENT_BY_ENDED,
    SPENT_BY_LIVE,
)

T = 1_800_000_000.0
Lease = tuple[float, float, float | None]


def machine(number: int, price: float, launched: float, cloud: str = "aws") -> Instance:
    return Instance(
        id=f"i-{number}", cloud=cloud, node=f"n{number}", generation=f"g{number}",
        instance_type="small", zone="a", market=Market.SPOT, price=price,
        state=InstanceState.RUNNING, launched=launched,
    )  # fmt: skip


def with_budget(config: Config) -> Config:
    return replace(config, policies=SitePolicies(budget=Budget(per_month=1e6)))


def with_terms(config: Config, unit: float, disk_price: float) -> Config:
    """The configuration with another billing increment and another price of disks."""
    policies, machine = PoolPolicies(billing_increment=unit), MachineOptions(disk_price=disk_price)
    pools = tuple(replace(pool, policies=policies, machine=machine) for pool in config.pools)
    return replace(config, pools=pools)


def cost(lease: Lease, since: float, now: float, unit: int) -> float:
    """The rule in plain words: begun units whole, less what lies before the span."""
    price, launched, ended = lease
    if ended is not None and ended < since - unit:
        return 0.0
    seconds = max((now if ended is None else ended) - launched, 0.0)
    paid = max(seconds, 60.0) if unit <= 1 else max(math.ceil(seconds / unit), 1) * unit
    return price / 3600 * max(paid - max(since - launched, 0.0), 0.0)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 10), st.integers(-20_000, 0), st.none() | st.integers(0, 20_000)),
        max_size=5,
    ),
    st.sampled_from((1, 60, 3600)),
    st.integers(-20_000, 0),
)
def test_the_sum_is_that_of_each_lease(
    rows: list[tuple[float, int, int | None]], unit: int, since: int
) -> None:
    leases: list[Lease] = []
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(Path(directory) / "ledger.db")
        for number, (price, begin, length) in enumerate(rows):
            end = None if length is None or begin + length > 0 else T + begin + length
            leases.append((price, T + begin, end))
            terms = PurchaseTerms(billing_increment_s=unit)
            ledger.machines.adopt(machine(number, price, T + begin), "pool", T, terms=terms)
            if end is not None:
                ledger.machines.record_end("aws", [f"i-{number}"], Quoted(text="over"), end)
        found = ledger.books.dollars("aws", T + since, T)
        ledger.close()
    assert found == pytest.approx(sum(cost(one, T + since, T, unit) for one in leases))


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(("launch", "end", "again")), st.integers(0, 4)), max_size=30)
)
def test_sums_that_are_kept_are_those_of_a_new_reading(steps: list[tuple[str, int]]) -> None:
    """Machines start, end and are listed again after their end, in two clouds."""
    since, over = T - 3600, Quoted(text="over")
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(Path(directory) / "ledger.db")
        for passed, (step, number) in enumerate(steps, 1):
            cloud, now = ("aws", "other")[number % 2], T + 60.0 * passed
            if step == "end":
                ledger.machines.record_end(cloud, [f"i-{number}"], over, now)
            else:
                terms = PurchaseTerms(billing_increment_s=(1, 3600)[number // 3])
                one = machine(number, 1.0 + number, T - 600, cloud)
                ledger.machines.adopt(one, "pool", now, terms=terms)
            stamp = ledger.books.ended_stamp(since - 3600)
            for name in ("aws", "other"):
                kept = ledger.books.cost_by_payers(name, since, now, stamp)
                assert kept == ledger.books.cost_by_payers(name, since, now)
        ledger.close()


def test_a_launch_does_not_add_up_the_machines_that_ended_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, read = Ledger(tmp_path / "ledger.db"), Counter[str]()
    select = ledger.store.select

    def counted(sql: str, *values: object) -> list[sqlite3.Row]:
        read[sql] += 1
        return select(sql, *values)

    monkeypatch.setattr(ledger.store, "select", counted)
    stamp = ledger.books.ended_stamp(T - 7200)
    for _ in range(5):
        ledger.books.cost_by_payers("aws", T - 3600, T, stamp)
        ledger.books.reserved("aws", T - 3600, T, stamp)
    assert (read[SPENT_BY_ENDED], read[RESERVED_ENDED]) == (1, 1)
    assert read[SPENT_BY_LIVE] == 5
    ledger.machines.adopt(machine(1, 3.6, T - 600), "pool", T)
    assert ledger.books.ended_stamp(T - 7200) == stamp
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="over"), T)
    assert ledger.books.ended_stamp(T - 7200) != stamp
    ledger.close()


def test_each_cloud_is_asked_for_itself(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.machines.adopt(machine(1, 3.6, T - 600), "pool", T)
    ledger.machines.adopt(machine(2, 36.0, T - 600, "other"), "pool", T)
    assert ledger.books.dollars("aws", T - 3600, T) == pytest.approx(0.6)
    assert ledger.books.dollars("none", T - 3600, T) == 0.0
    ledger.close()


def test_costs_and_budgets_bill_a_pool_by_its_own_unit(tmp_path: Path) -> None:
    """Growth and release have the unit of the pool, so its money has it, too."""
    path = config_file(tmp_path)
    text = path.read_text().replace(
        "{name: burst,", "{name: burst, policies: {billing_increment: 1h},"
    )
    path.write_text(f"{text}policies: {{budget: {{per_month: 100}}}}\n")
    config = configfile.load(path)
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    for number, pool in ((1, "burst"), (2, "other"), (3, "burst")):
        terms = purchase_terms(config, "aws", pool, "small", Market.ON_DEMAND)
        ledger.machines.adopt(machine(number, 3.6, T), pool, T, terms=terms)
    ledger.machines.record_end("aws", ["i-1", "i-2"], Quoted(text="over"), T + 600)
    now = T + 4000
    costs = report(read_books(config, ledger, T, None, now), By.POOL)
    spent = read_spending(config, ledger, now)
    ledger.close()
    assert {line.key: line.micro for line in costs.lines} == {
        "burst": 3_600_000 + 7_200_000, "other": 600_000
    }  # fmt: skip
    assert spent[""].month == pytest.approx(costs.micro / 1e6)


def test_a_change_of_the_configuration_changes_no_bill_of_the_past(tmp_path: Path) -> None:
    """A machine on a reservation and one on demand, by the hour and with disks."""
    path = config_file(tmp_path)
    reservation = (
        "price: 0.36}}\n    reservations: [{name: year, type: small, count: 1, price: 0.2,"
        ' from: "2001-01-01T00:00Z", to: "2030-01-01T00:00Z"}]\n'
    )
    path.write_text(path.read_text().replace("price: 0.36}}\n", reservation, 1))
    before = with_terms(configfile.load(path), 3600.0, 0.1)
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    for number, reserved in enumerate(("year", "", "")):
        one = replace(machine(number, 0.46, T), market=Market.ON_DEMAND, reservation=reserved)
        terms = purchase_terms(before, "aws", "burst", "small", Market.ON_DEMAND)
        ledger.machines.adopt(one, "burst", T, 0.46, terms=terms)
    ledger.machines.record_end("aws", ["i-0", "i-1"], Quoted(text="over"), T + 600)
    now = T + 86400
    after = with_terms(before, 60.0, 7.0)
    by = (By.POOL, By.CLOUD)
    found = [reports(read_books(one, ledger, T, now, now), by) for one in (before, after)]
    spent = [read_spending(with_budget(one), ledger, now) for one in (before, after)]
    ledger.close()
    # The day of the reservation, disks beside it for a day, and two begun hours on demand.
    assert found[0][By.POOL].micro == 4_800_000 + 2_400_000 + 2 * 460_000
    assert [one[By.POOL].lines for one in found] == [found[0][By.POOL].lines] * 2
    assert spent[0] == spent[1]


@pytest.mark.parametrize(("unit", "dollars"), [(1, 3000 / 3600), (3600, 1.0), (60, 3000 / 3600)])
def test_the_simulator_bills_a_machine_from_its_launch_as_the_ledger_does(
    tmp_path: Path, unit: int, dollars: float
) -> None:
    """A job of 1800 s after a boot of 600 s, then 600 s without work, at $1/h."""
    pool = PoolModel(
        name="cloud", machines=1, price=1.0, boot=BootTimes(((1, 600),)), release=Idle(600),
        billing=PerSecond() if unit == 1 else Hourly(seconds=unit),
    )  # fmt: skip
    found = simulate(Jobs([Job(1, 0, 1800, 1800, 1)]), Scenario(pools=(pool,)))
    assert found.figures.cost == pytest.approx(dollars)
    ledger = Ledger(tmp_path / "ledger.db")
    terms = PurchaseTerms(billing_increment_s=unit)
    ledger.machines.adopt(machine(1, 1.0, T), "pool", T, terms=terms)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T + 3000)
    assert ledger.books.dollars("aws", T, T + 9000) == pytest.approx(dollars)
    ledger.close()
