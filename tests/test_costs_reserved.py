"""Costs with reservations: by any key they sum to what the cloud bills, also in exports."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from cost_cases import YAML, T, machine
from msgspec.structs import replace

from slurm_elastic.config import configfile
from slurm_elastic.features.money.books import (
    CostRows,
    charges,
    idle_reservations,
    read_books,
    report,
)
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.money.usage_counters import counted
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import ChargedRun, PurchaseTerms
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.view.focus import rows

HOUR = 3600
NOW = T + 2 * HOUR
RESERVATIONS = """
    reservations:
      - {{name: year, type: small, count: 2, from: "2027-01-15T08:00Z", to: "2027-01-15T18:00Z",
         upfront: 2, price: 0.1}}
"""
"""From T on: $0.40 an hour for two machines. On demand one costs $0.36."""


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, Path]:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    path = tmp_path / "slurm-elastic.yaml"
    text = YAML.replace("price: 0.36}}}}\n", f"price: 0.36}}}}}}}}{RESERVATIONS}", 1)
    path.write_text(text.format(state=state, user="root"))
    path.chmod(0o644)
    with_machines(state / "ledger.db")
    return path, state / "ledger.db"


def with_machines(path: Path) -> None:
    """One launched on the reservation, two bought on demand, one on spot, each for an hour."""
    ledger = Ledger(path)
    for node, market, price, on in (
        ("pub1", Market.RESERVED, 0.2, "year"), ("pub2", Market.ON_DEMAND, 0.36, ""),
        ("pub3", Market.ON_DEMAND, 0.36, ""), ("pub4", Market.SPOT, 0.1, ""),
    ):  # fmt: skip
        one = replace(machine(node, T, price, market=market), reservation=on)
        ledger.machines.adopt(one, "burst", T, 0.36)
        ledger.machines.record_end("aws", [one.id], Quoted(text="gone"), T + HOUR)
    run = ChargedRun(
        job=7, begin=T, end=T + HOUR, label="7", user="ann", uid=65534, account="physics",
        partition="aws", shares=(("pub3", 1_000_000),),
    )  # fmt: skip
    ledger.usage.write((run,), ())
    ledger.close()


def read(site: tuple[Path, Path]) -> CostRows:
    config, ledger = configfile.load(site[0]), Ledger(site[1])
    try:
        return read_books(config, ledger, T - HOUR, None, NOW)
    finally:
        ledger.close()


def test_a_reservation_dearer_than_on_demand_prices_nothing_else(site: tuple[Path, Path]) -> None:
    """After the reservation's end the machine runs on at its price on demand."""
    text = site[0].read_text().replace("T18:00Z", "T08:30Z").replace("price: 0.1", "price: 5")
    site[0].write_text(text)
    ledger = Ledger(site[1])
    one = replace(machine("pub9", T, 9.0, market=Market.RESERVED), reservation="year")
    terms = PurchaseTerms(on_demand_price=0.36)
    ledger.machines.adopt(one, "burst", T, 9.0, terms=terms)
    ledger.machines.record_end("aws", [one.id], Quoted(text="gone"), T + HOUR)
    ledger.close()
    (charge,) = [c for c in charges(read(site)) if c.machine.instance.node == "pub9"]
    assert charge.is_settled
    assert charge.micro < 6_000_000, "not half an hour at $9"


BILL = 2 * 400_000 + 360_000 + 100_000
"""Two hours of the reservation, which covers two machines of the first; one on demand; one spot."""


@pytest.mark.parametrize("by", list(By))
def test_the_sum_by_any_key_is_the_bill(site: tuple[Path, Path], by: By) -> None:
    found = report(read(site), by)
    assert found.problems == ()
    assert found.micro == sum(line.micro for line in found.lines) == BILL


def test_what_no_machine_used_has_a_reason_of_its_own(site: tuple[Path, Path]) -> None:
    lines = {line.key: line.micro for line in report(read(site), By.ACCOUNT).lines if line.unused}
    assert lines["reserved"] == 400_000, "the second hour"
    pools = {line.key: line.micro for line in report(read(site), By.POOL).lines}
    assert pools["(reservation year)"] == 400_000


def test_a_user_pays_the_same_alone(site: tuple[Path, Path]) -> None:
    """The job's machine is the third: the reservation covers the older two."""
    assert report(read(site), By.JOB, uid=65534).micro == 360_000


def test_exports_and_counters_have_it_too(site: tuple[Path, Path]) -> None:
    books = read(site)
    exported = list(rows(charges(books), books.runs, "alps", idle_reservations(books)))
    assert sum(Decimal(row["BilledCost"]) for row in exported) * 1_000_000 == BILL
    assert exported[-1]["ResourceName"] == "year"
    ledger = Ledger(site[1])
    try:
        counts = counted(configfile.load(site[0]), ledger, T, T + HOUR, T + HOUR)
    finally:
        ledger.close()
    dollars = sum(n for name, n in counts.items() if name.startswith("dollars"))
    assert dollars == pytest.approx(0.4 + 0.36 + 0.1)


def test_the_unused_part_of_a_reservation_has_the_label_of_all_unused_dollars(
    site: tuple[Path, Path],
) -> None:
    ledger = Ledger(site[1])
    try:
        counts = counted(configfile.load(site[0]), ledger, T + HOUR, T + 2 * HOUR, T + 2 * HOUR)
    finally:
        ledger.close()
    unused = [name for name in counts if name.startswith("unused_dollars")]
    assert any("(reservation year)" in name for name in unused)
    assert all("reason=" in name for name in unused)
