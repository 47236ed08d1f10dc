"""Jobs of two users on real Slurm: costs by each key sum to the emulated bill."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from decimal import Decimal

import pytest

from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import PATIENCE, back_to_zero, ledger, machines

pytestmark = pytest.mark.e2e
PRICES = {"c5.large": Decimal("0.085"), "m5.large": Decimal("0.096")}
LOOK = 3.0
"""Seconds between two looks at the metrics: each is a command of ours."""
HALF = ("--cpus-per-task=1", "--mem=100", "--partition=aws")


def cost(site: Sandbox, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "cost", *words]
    return site.run(command, check=True).stdout


def runs(site: Sandbox) -> tuple[ChargedRun, ...]:
    book = ledger(site)
    try:
        return book.usage.runs(0, time.time() + 1)
    finally:
        book.close()


def bill(site: Sandbox) -> int:
    """In micro-dollars: each of EC2's machines by its launch there and its type's price, by the
    second and a minute at least. EC2 says nothing of its end but that it is over.
    """
    ends = {m.instance.id: m.ended_at for m in machines(site, ended=True)}
    total = 0
    for one in site.ec2.state().machines:
        ended = ends.pop(one.id)
        assert ended is not None
        seconds = max(Decimal(round(ended * 1000) - round(one.launched * 1000)) / 1000, Decimal(60))
        total += int((PRICES[one.type] * seconds / 3600 * 1_000_000 * 2 + 1) // 2)
    assert ends == {}, "the ledger has no machine that EC2 had not"
    return total


def metrics(site: Sandbox) -> str:
    return site.run(
        [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "metrics"], check=True
    ).stdout


@pytest.mark.release
def test_costs_sum_to_the_emulated_bill(sandbox: Callable[..., Sandbox]) -> None:
    site = sandbox(
        static_nodes=1,
        drop=("onprem",),
        elastic={
            "clouds": [{"name": "aws", "types": {
                name: {"cpus": 2, "memory": 4096, "price": float(price)}
                for name, price in PRICES.items()
            }}],
            "pools": [
                {"name": "pub", "instance_types": list(PRICES), "markets": ["on-demand"]}
            ],
        },
    )  # fmt: skip
    both = [site.submit("sleep 20", *HALF) for _ in range(2)]
    short = site.submit("sleep 1", *HALF)
    whole = site.submit(
        "sleep 10", "--nodes=2", "--cpus-per-task=2", "--partition=aws", user="root"
    )
    for job in (*both, short, whole):
        site.wait_job(job)
    jobs = {*both, short, whole}
    site.wait_for(
        lambda: {r.job for r in runs(site) if r.end is not None} == jobs,
        3 * PATIENCE, "the ledger has every run",
    )  # fmt: skip
    back_to_zero(site)
    told = {r.job: dict(r.shares) for r in runs(site)}
    assert set(told[both[0]].values()) == {500_000}
    assert set(told[whole].values()) == {1_000_000}
    machines_of_aws = 'slurm_elastic_machines{cloud="aws"'
    site.wait_for(
        lambda: machines_of_aws not in metrics(site), PATIENCE, "all are gone", period=LOOK
    )
    found = site.wait_for(
        lambda: (text := metrics(site)) and 'slurm_elastic_launched_total{' in text and text,
        3 * PATIENCE, "the counters have the machines", period=LOOK,
    )  # fmt: skip
    for name in ("nodes{", "api_calls_total{", "boot_seconds_count{"):
        assert f"slurm_elastic_{name}" in found
    expected = bill(site)
    assert expected > 0
    for by in By:
        document = json.loads(cost(site, "--by", by, "--since", "1d", "--format", "json"))
        assert document["problems"] == []
        assert document["micro_dollars"] == expected
        assert sum(line["micro_dollars"] for line in document["lines"]) == expected
    users = json.loads(cost(site, "--by", "user", "--since", "1d", "--format", "json"))["lines"]
    assert {line["key"] for line in users if not line["unused"]} == {"nobody", "root"}
    assert {line["key"] for line in users if line["unused"]} >= {"boot", "idle"}
    rows = csv.DictReader(io.StringIO(cost(site, "--since", "1d", "--format", "focus")))
    assert sum(Decimal(row["BilledCost"]) for row in rows) * 1_000_000 == expected
