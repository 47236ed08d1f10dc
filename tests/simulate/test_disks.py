"""Disks of machines, which are paid besides their types (``machine.disk_price``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledger_cases import instance
from msgspec.structs import replace

from slurm_elastic.cli.reports.month_jobs import at_published_prices
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.memory import Machine, PurchaseTerms
from slurm_elastic.simulate import Options, simulate
from tests.simulate.test_reservations import HOUR, PRICE, rows

DISKS = 0.05
SPOT = 0.02
JOBS = [(0, HOUR), (0, 2 * HOUR)]
MACHINE_HOURS = 3.0


SITE = """
cluster: {{name: demo}}
allow: {{accounts: [physics], max_time: 7d}}
limits: {{dollars_per_hour: 900}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-0123456789abcdef0
    zones: [us-east-1a]
    types: {{c6i.large: {{cpus: 2, memory: 4G, price: {price}}}}}
pools:
  - {{name: p, cloud: aws, nodes: "n[1-99]", cpus: 2, memory: 4G, markets: [{market}],
     instance_types: [c6i.large],
     machine: {{disk_price: {disks}}}{more}}}
"""


def with_disks(tmp_path: Path, market: str, more: str = "") -> Config:
    path = tmp_path / "site.yaml"
    path.write_text(SITE.format(price=PRICE, market=market, disks=DISKS, more=more))
    return configfile.load(path)


def run(config: Config, *prices: Path) -> dict[str, Any]:
    options = Options(
        boot=((1, 0.0),), billing="per_second(minimum=0)", whole_nodes=True, prices=prices
    )
    (total,) = simulate(rows(JOBS), config, "individual", options).totals
    return dict(total)


def trace(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(["timestamp,type,zone,price", *rows, ""]))
    return path


def test_on_demand_machines_cost_their_disks_too(tmp_path: Path) -> None:
    total = run(with_disks(tmp_path, "on-demand"))
    assert total["cost"] == pytest.approx(MACHINE_HOURS * (PRICE + DISKS))


def test_spot_machines_cost_their_disks_too(tmp_path: Path) -> None:
    prices = trace(tmp_path, f"2026-01-01T00:00:00Z,c6i.large,us-east-1a,{SPOT}")
    total = run(with_disks(tmp_path, "spot"), prices)
    assert total["spot"] == pytest.approx(MACHINE_HOURS * (SPOT + DISKS))


@pytest.mark.parametrize(
    ("max_price", "lost"), [(SPOT + DISKS + 0.01, 0), (SPOT + DISKS - 0.01, 1)]
)
def test_a_highest_price_is_compared_with_the_price_including_disks(
    tmp_path: Path, max_price: float, lost: int
) -> None:
    """The published price rises to SPOT within the jobs."""
    prices = trace(
        tmp_path,
        "1970-01-01T00:00:00Z,c6i.large,us-east-1a,0.001",
        f"1970-01-01T00:30:00Z,c6i.large,us-east-1a,{SPOT}",
        f"1970-01-03T00:00:00Z,c6i.large,us-east-1a,{SPOT}",
    )
    total = run(with_disks(tmp_path, "spot", f", max_price: {max_price}"), prices)
    assert (total["interruptions"] > 0) is (lost > 0)


def test_prices_that_the_site_paid_lose_the_disks_of_their_purchase(tmp_path: Path) -> None:
    bought = [
        Machine(
            instance=replace(instance(f"i-{disks}", "n1", "g"), price=0.5), pool="p",
            terms=PurchaseTerms(disk_price=disks),
        )
        for disks in (DISKS, 0.0)
    ]  # fmt: skip
    prices = [row.price for row in at_published_prices(bought, with_disks(tmp_path, "spot"))]
    assert prices == [pytest.approx(0.5 - DISKS), 0.5]
