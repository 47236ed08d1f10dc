"""A capacity block on real Slurm and emulated EC2: filled first, no job is killed by its end, and
``cost`` equals the bill.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from patience import patience

from slurm_elastic.config.configfile import load
from slurm_elastic.controller.launching.budget import read_spending
from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.money.bounds import begin_of_day_and_month
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.reservations import BLOCK_LEAD_S, EmulatedReservation
from slurm_elastic.state.ledger import Machine
from tests.e2e.ckpt import UNTIL_ENOUGH, counter, early, enough, node_of, wait_steps
from tests.e2e.world import PATIENCE, Until, back_to_zero, ledger, machines, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
LEFT = 330.0
"""Seconds from the start of the sandbox until EC2 ends the machines of the block."""
PRICES = {"c5.large": Decimal("0.085"), "m5.large": Decimal("0.096")}
WHOLE = ("--cpus-per-task=2", "--partition=aws")


def date(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine_of(site: Sandbox, job: int) -> Machine:
    node = node_of(site, job)
    (found,) = (m for m in machines(site) if m.instance.node == node and m.is_wanted)
    return found


def bill(site: Sandbox, block: EmulatedReservation, until: float) -> int:
    """The block's whole price until then, and each machine on demand by the second."""
    known = {m.instance.id: m for m in machines(site, ended=True)}
    total = block.bill(until)
    for one in site.ec2.state().machines:
        ended, launched = known[one.id].ended_at, known[one.id].instance.launched
        assert ended is not None
        # EC2 bills from the LaunchTime of its answers. The emulator's own note is some ms later.
        assert abs(launched - one.launched) < patience(1)
        if not one.reservation:
            assert ended < until
            ms = round(ended * 1000) - round(launched * 1000)
            seconds = max(Decimal(ms) / 1000, Decimal(60))
            total += int((PRICES[one.type] * seconds / 3600 * 1_000_000 * 2 + 1) // 2)
    return total


def test_a_block_is_filled_first_kills_no_job_and_costs_what_ec2_bills(
    sandbox: Callable[..., Sandbox],
) -> None:
    began = float(round(time.time()))
    left = max(LEFT, patience(LEFT / 4))
    machines_end_at = began + left
    block = EmulatedReservation(
        id="cr-0123456789abcdef0", kind="capacity-block", type="c5.large", zone="us-east-1a",
        count=3, begins_at=began - 3600, ends_at=machines_end_at + BLOCK_LEAD_S, upfront=1.0,
    )  # fmt: skip
    reservation = {
        "name": "block", "kind": block.kind, "id": block.id, "type": block.type,
        "zone": block.zone, "count": block.count, "upfront": block.upfront,
        "from": block.begins_at, "to": block.ends_at,
    }  # fmt: skip
    description: dict[str, Any] = early("10s")
    elastic = description["elastic"] | {
        "clouds": [{"name": "aws", "reservations": [reservation]}],
        "pools": [{"name": "pub", "markets": ["reserved", "on-demand"]}],
        "policies": {"budget": {"per_day": 50}},
    }
    site = sandbox(**description | {
        "drop": ("onprem",), "elastic": elastic, "resume_timeout": 90.0,
    })  # fmt: skip
    site.ec2.reserve(block)
    until = Until(site)
    saved = counter(site, "--time=50", steps=UNTIL_ENOUGH)
    short = site.submit("sleep 1", "--time=1", *WHOLE)
    long = site.submit(until.script, "--time=50", *WHOLE)
    wait_steps(site, saved, 2)
    assert machine_of(site, saved).instance.reservation == "block", "it can be saved"
    site.wait_job(short)
    assert "COMPLETED" in site.job(short)["JobState"]
    node = node_of(site, short)
    of_short = [m for m in machines(site, ended=True) if m.instance.node == node]
    assert [m.instance.reservation for m in of_short] == ["block"], "it ends in time"
    running_nodes(site, [long])
    of_long = machine_of(site, long).instance
    assert (of_long.market, of_long.reservation) == (Market.ON_DEMAND, ""), "one was left"
    shown = site.run(["scontrol", "--oneliner", "show", "reservations"]).stdout
    assert "ReservationName=slurm-elastic-aws-block" in shown
    later = site.submit(until.script, "--time=50", *WHOLE)
    running_nodes(site, [later])
    assert machine_of(site, later).instance.reservation == ""

    site.wait_for(
        lambda: not [m for m in machines(site) if m.instance.reservation],
        left + PATIENCE, "no machine of the block is left",
    )  # fmt: skip
    for job in (long, later):
        assert site.job(job)["JobState"] == "RUNNING"
    until.go()
    for job in (long, later):
        site.wait_job(job)
        assert site.job(job)["JobState"] == "COMPLETED"
        assert site.job(job)["Restarts"] == "0"
    enough(site, saved, runs=2)
    site.wait_for(
        lambda: "slurm-elastic-" not in
        site.run(["scontrol", "--oneliner", "show", "reservations"]).stdout,
        PATIENCE, "Slurm's reservation is gone",
    )  # fmt: skip
    back_to_zero(site)
    # A machine is paid for a minute at least, and --until would cut that.
    newest = max(m.launched for m in site.ec2.state().machines)
    site.wait_for(lambda: time.time() > newest + 62, 90, "the minute of the newest is over")

    now = float(int(time.time()))
    command = [
        sys.executable, "-P", "-m", "slurm_elastic.cli.main", "cost", "--since", "1d",
        "--until", date(now).removesuffix("Z"), "--format", "json",
    ]  # fmt: skip
    expected = bill(site, block, now)
    for by in ("job", "market", "day"):
        document = json.loads(site.run([*command, "--by", by], check=True).stdout)
        assert document["problems"] == []
        assert abs(document["micro_dollars"] - expected) <= 1
        assert sum(line["micro_dollars"] for line in document["lines"]) == document["micro_dollars"]
    book = ledger(site)
    try:
        spent = read_spending(load(site.layout.config), book, now)
    finally:
        book.close()
    midnight, _ = begin_of_day_and_month(now)
    if midnight <= block.begins_at:
        assert spent[""].day == pytest.approx(expected / 1e6, abs=0.001)
