"""The same jobs on the sandbox and in ``simulate`` with its configuration: the same offers bought in
the same order, for the same money. Three mixes, one after the other: jobs of whole nodes, jobs of
one core, jobs that memory alone keeps apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import mean

import pytest
from msgspec import Struct
from patience import undisturbed

from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.planning import simulate
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.state.ledger import Machine
from tests.e2e.world import PATIENCE, back_to_zero, machines

pytestmark = [pytest.mark.e2e, pytest.mark.release]
PRICES = {"c5.large": 0.085, "m5.large": 0.096}
STILL = 3.0
FIELDS = "JobIDRaw|Submit|ElapsedRaw|TimelimitRaw|AllocCPUS|ReqTRES|State"


class Mix(Struct, frozen=True):
    """Jobs as (seconds after the first, seconds that they sleep, nodes), the options that they have
    in common, and the zone that is cheapest then.
    """

    jobs: tuple[tuple[int, int, int], ...]
    options: tuple[str, ...]
    zone: str


MIXES = (
    Mix(
        (*((0, 40, 1),) * 2, (6, 45, 2), (8, 40, 1), (8, 40, 1), *((9, 15, 1),) * 4),
        ("--cpus-per-task=2",),
        "us-east-1a",
    ),
    Mix((*((0, 50, 1),) * 5, *((6, 45, 1),) * 4, *((8, 40, 1),) * 2), ("--mem=100",), "us-east-1b"),
    Mix((*((0, 50, 1),) * 3, *((6, 40, 1),) * 2, *((8, 30, 1),) * 5), ("--mem=700",), "us-east-1c"),
)


def set_prices(site: Sandbox, best: str) -> dict[tuple[str, str], float]:
    """One zone is the cheapest for every type."""
    prices = {
        (kind, zone): 0.02 if zone == best else 0.05
        for kind in PRICES
        for zone in (mix.zone for mix in MIXES)
    }
    for (kind, zone), price in prices.items():
        site.ec2.price(kind, zone, price)
    return prices


def run_mix(site: Sandbox, mix: Mix) -> list[int]:
    """Submit each job when its time has come; their ids, when all machines are gone."""
    begin, jobs = time.time(), []
    for at, sleep, nodes in mix.jobs:
        time.sleep(max(begin + at - time.time(), 0))
        options = (f"--nodes={nodes}", f"--ntasks={nodes}", "--partition=aws", "--time=5")
        jobs.append(site.submit(f"sleep {sleep}", *options, *mix.options))
    for job in jobs:
        site.wait_job(job, timeout=3 * PATIENCE)
    return jobs


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def accounting(fields: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """As sacct would have it."""
    yield FIELDS
    for job in fields:
        submit, start, end = (seconds(job[f"{name}Time"]) for name in ("Submit", "Start", "End"))
        row = (job["JobId"], f"{submit:.0f}", f"{end - start:.0f}", "5", job["NumCPUs"])
        yield "|".join((*row, job["TRES"], "COMPLETED"))


def simulated(site: Sandbox, tmp_path: Path, rows: str, prices: str, boot: int) -> RunResult:
    """By the command, with the sandbox's own configuration."""
    (tmp_path / "sacct.txt").write_text(rows)
    (tmp_path / "prices.csv").write_text(prices)
    parser = argparse.ArgumentParser()
    simulate.add(parser.add_subparsers())
    words = ["--sacct", str(tmp_path / "sacct.txt"), "--prices", str(tmp_path / "prices.csv")]
    args = parser.parse_args(["simulate", *words, "--boot", str(boot)])
    args.config = str(site.layout.config)
    ((_, outcome),) = simulate.simulated(args).runs
    return outcome


def bought(pool: PoolMachines) -> list[str]:
    """The simulator's machines by their offers, in the order of their launch."""
    return [
        pool.sold[pool.batch_offer[batch]].offer.key
        for batch in range(len(pool.batch_start))
        for _ in range(launched(pool, batch))
    ]


def launched(pool: PoolMachines, batch: int) -> int:
    rows = zip(pool.leases.batch, pool.leases.count, strict=True)
    return sum(count for of, count in rows if of == batch)


def boot_of(found: Sequence[Machine], fields: Sequence[Mapping[str, str]]) -> int:
    """Seconds from the submission of the job for which a machine was started to its start."""
    waits = []
    for machine in found:
        end = machine.ended_at or 0.0
        mine = [
            (seconds(job["StartTime"]), seconds(job["SubmitTime"]))
            for job in fields
            if machine.instance.node in expand(job["NodeList"])
            and machine.instance.launched <= seconds(job["StartTime"]) <= end
        ]
        start, submit = min(mine)
        waits.append(start - submit)
    return round(mean(waits))


def waits_of(fields: Sequence[Mapping[str, str]]) -> list[float]:
    return [seconds(job["StartTime"]) - seconds(job["SubmitTime"]) for job in fields]


def test_the_simulator_buys_what_the_daemon_buys(
    sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """No simulator knows of a standstill of all that it is compared with."""
    undisturbed(partial(the_same_is_bought, sandbox, tmp_path), STILL)


def the_same_is_bought(sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    site = sandbox(static_nodes=1, drop=("onprem",), suspend_time=20.0, price_speed=0.0)
    fields: list[Mapping[str, str]] = []
    lines = ["timestamp,instance_type,az,price"]

    def price_lines(at: float, zone: str) -> list[str]:
        prices = set_prices(site, zone)
        return [f"{at:.0f},{kind},{where},{price}" for (kind, where), price in prices.items()]

    for mix in MIXES:
        lines += price_lines(time.time() - 5, mix.zone)
        site.daemon_kill()  # it knows the prices of before for a minute
        site.daemon_start()
        fields += [site.job(job) for job in run_mix(site, mix)]
        back_to_zero(site)
    lines += [*price_lines(time.time() + 3600, MIXES[-1].zone), ""]
    found = sorted(machines(site, ended=True), key=lambda m: m.instance.launched)

    rows = "\n".join(accounting(fields))
    outcome = simulated(site, tmp_path, rows, "\n".join(lines), boot_of(found, fields))
    (pool,) = (one for one in outcome.pools if one.pool.name == "pub")
    assert bought(pool) == [m.instance.offer_key for m in found]
    assert {m.instance.market for m in found} == {"spot"}

    paid = sum((m.ended_at or 0.0) - m.instance.launched for m in found)
    dollars = (
        sum(m.instance.price * ((m.ended_at or 0.0) - m.instance.launched) for m in found) / 3600
    )
    assert outcome.figures.pools[0].hours * 3600 == pytest.approx(paid, rel=0.03)
    assert outcome.figures.cost == pytest.approx(dollars, rel=0.03)
    real = mean(waits_of(fields))
    assert outcome.figures.mean_wait == pytest.approx(real, rel=0.1, abs=0.5), "whole seconds"
