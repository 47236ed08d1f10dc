"""The month's report of a sandbox: it equals an independent sum over the ledger's raw rows.

A sandbox lives for minutes, and time cannot be made to pass faster for slurmd and the emulated EC2.
So the first test takes the ledger of a real run as it is. For three months its real rows are
copied, with all their times moved by whole days: durations, prices, shares and users stay those of
the run; only the dates are made up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import month_sums
import pytest
from msgspec.structs import replace

from slurm_elastic.base.month import Month, month_at
from slurm_elastic.cli.machine_readable import as_json
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.features.money.books import read_books, reports
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.view.month_report import KEYS, month_report
from tests.e2e.world import ELASTIC, PATIENCE, back_to_zero, ledger

pytestmark = [pytest.mark.e2e, pytest.mark.release]
PRICES = {"c5.large": 0.085, "m5.large": 0.096}
CENT = Fraction(1, 100)
SPACING_DAYS = 9


def told(site: Sandbox, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.run([*ELASTIC, *words], check=True).stdout)
    return found


def same_to_the_cent(found: Mapping[str, Any], summed: month_sums.Found) -> None:
    for name, expected in (
        ("accounts", summed.accounts), ("users", summed.users), ("clouds", summed.clouds)
    ):  # fmt: skip
        lines = {
            f"unused: {line['key']}" if line["unused"] else line["key"]: line["micro_dollars"]
            for line in found[name]
        }
        paid = {key: dollars for key, dollars in expected.items() if dollars}
        assert {key for key, micro in lines.items() if micro} <= expected.keys()
        for key, dollars in paid.items():
            assert abs(Fraction(lines.get(key, 0), 1_000_000) - dollars) < CENT / 100, (name, key)
        assert sum(lines.values()) == found["micro_dollars"]
    assert abs(Fraction(found["micro_dollars"], 1_000_000) - summed.total) < CENT / 100
    assert (
        abs(Fraction(found["on_demand_micro_dollars"], 1_000_000) - summed.on_demand) < CENT / 100
    )
    assert abs(Fraction(found["always_on"]["micro_dollars"], 1_000_000) - summed.always_on) < CENT


def copied(source: Ledger, path: Path, shifts: list[float]) -> None:
    """The machines and runs of a ledger, once for each shift (s)."""
    machines = source.machines.live(ended_since=0.0)
    runs = source.usage.runs(0.0, time.time() + 1e6)
    with closing(Ledger(path)) as ledger_of_months:
        for number, shift in enumerate(shifts):
            for machine in machines:
                one = replace(
                    machine.instance, id=f"{machine.instance.id}-{number}",
                    generation=f"{machine.instance.generation}-{number}",
                    launched=machine.instance.launched + shift, state=InstanceState.RUNNING,
                )  # fmt: skip
                cloud, names, why = one.cloud, [one.id], Quoted(text="copied")
                ledger_of_months.machines.adopt(
                    one, machine.pool, one.launched, machine.worst_price
                )
                if machine.registered_at is not None:
                    up = machine.registered_at + shift
                    ledger_of_months.machines.record_registration(cloud, names, up)
                if machine.retired_at is not None:
                    over = machine.retired_at + shift
                    ledger_of_months.machines.record_ending(cloud, names, why, over)
                assert machine.ended_at is not None
                ledger_of_months.machines.record_end(cloud, names, why, machine.ended_at + shift)
            ledger_of_months.usage.write([
                replace(
                    run, job=run.job + 1000 * number, begin=run.begin + shift,
                    end=None if run.end is None else run.end + shift,
                )
                for run in runs
            ])  # fmt: skip


def test_the_report_of_a_real_run_equals_an_independent_sum(
    sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    site = sandbox(
        static_nodes=1,
        drop=("onprem",),
        elastic={
            "clouds": [{"name": "aws", "types": {
                name: {"cpus": 2, "memory": 4096, "price": price} for name, price in PRICES.items()
            }}],
            "pools": [{"name": "pub", "instance_types": list(PRICES), "markets": ["on-demand"]}],
        },
    )  # fmt: skip
    half = ("--cpus-per-task=1", "--mem=100", "--partition=aws")
    jobs = [site.submit("sleep 20", *half) for _ in range(3)]
    jobs.append(site.submit("sleep 10", "--nodes=2", "--partition=aws", user="root"))
    for job in jobs:
        site.wait_job(job)

    def recorded() -> bool:
        with closing(ledger(site)) as book:
            return {r.job for r in book.usage.runs(0, time.time()) if r.end is not None} >= {*jobs}

    site.wait_for(recorded, 3 * PATIENCE, "the ledger has every run")
    back_to_zero(site)
    month = month_at(time.time())

    # The run as it was, by the command, with a simulation of the jobs that slurmctld remembers.
    found = told(site, "report", "--month", str(month), "--json")
    config = load(site.layout.config)
    path = config.state / "ledger.db"
    summed = month_sums.sums(path, month.begin, month.end, found["until"], {})
    assert summed.total > 0
    same_to_the_cent(found, summed)
    cost = told(site, "cost", "--since", f"{month}-01", "--by", "user", "--json")
    assert cost["micro_dollars"] == found["micro_dollars"]
    assert found["no_replay"] == ""
    assert found["replay"]["jobs"] == len(jobs)
    assert any("still remembers" in note for note in found["replay"]["notes"])

    # Its rows in three months, several times in each.
    shifts = [-SPACING_DAYS * 86_400.0 * number for number in range(1, 13)]
    with closing(ledger(site)) as book:
        copied(book, tmp_path / "ledger.db", shifts)
    now, last = time.time(), month.previous
    for chosen in (last.previous.previous, last.previous, last):
        document = of_month(config, tmp_path / "ledger.db", chosen, now)
        summed = month_sums.sums(tmp_path / "ledger.db", chosen.begin, chosen.end, now, {})
        assert {"nobody", "root"} <= summed.users.keys(), "each month has copies of the run"
        same_to_the_cent(document, summed)


def of_month(config: Config, path: Path, month: Month, now: float) -> dict[str, Any]:
    """The report of that ledger as a document."""
    with closing(Ledger(path, read_only=True)) as book:
        costs = reports(read_books(config, book, month.begin, month.end, now), (*KEYS, By.DAY))
    made = month_report(config, month, costs, costs[By.DAY], now)
    document: dict[str, Any] = json.loads(as_json(made))
    return document
