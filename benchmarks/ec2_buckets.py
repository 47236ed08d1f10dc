"""Thousands of machines under EC2's published API limits, in virtual time: against the floor.

The sandbox's EC2 enforces the limits; its clock for them stands still and is set ahead by what our
pacing would have waited. The floor is arithmetic: what does not fit into the full bucket, by its
refill. The launches go as the daemon's do: what EC2 lets us start now, and more in each repair
round (``timings.reconcile_interval``).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.report import Report, Row, compared, noted, report
from benchmarks.resume_runs import child_env, process, ready_url
from slurm_elastic.base.errors import TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.timings import Timings
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Pool
from slurm_elastic.providers.aws.provider import AwsProvider
from slurm_elastic.providers.aws.rate_limit import LAUNCHES, TERMINATIONS, RateLimits
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.token_bucket import Rate
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.loopback_only import isolated_env

ROUND = Timings().reconcile_interval


class Outcome(Struct, frozen=True, kw_only=True):
    """``seconds`` of virtual time from the first call to the last that was accepted."""

    seconds: float
    calls: int
    rejected: int


class VirtualTime:
    """A clock that only waiting moves, and the emulated EC2's with it."""

    def __init__(self, control: Ec2Control) -> None:
        self._control = control
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._control.advance(seconds)


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench ec2_buckets")
    parser.add_argument("--nodes", type=int, default=5000, metavar="N")
    count = parser.parse_args(arguments).nodes
    os.environ.update(isolated_env(os.environ))
    with tempfile.TemporaryDirectory(prefix="ec2-buckets-") as name:
        place = Path(name)
        command = ("-P", "-m", "slurm_elastic.sandbox.ec2.serve", "--dir", name)
        with process(place / "log", *command, env=child_env()) as cloud:
            launched, ended = run(Ec2Control(ready_url(cloud, place), timeout=120), count)
    return report(
        "ec2_buckets",
        [
            *rows(f"{count} machines started", launched, floor(count, LAUNCHES)),
            *rows(f"{count} machines ended", ended, floor(count, TERMINATIONS)),
        ],
    )


def floor(count: int, rate: Rate) -> float:
    """Seconds that no client can beat: the bucket is full at first."""
    return max(count - rate.burst, 0) / rate.refill


def rows(case: str, outcome: Outcome, least: float) -> list[Row]:
    """Time against the floor, and the share of calls that EC2 rejected."""
    share = 100 * outcome.rejected / outcome.calls
    # A few machines are all there after a round or two, whatever the floor.
    goal = 1.05 if least >= 6 * ROUND else None
    return [
        compared(f"{case} / floor", outcome.seconds, least, "s", at_most=goal),
        noted(f"{case}: calls", outcome.calls, "calls"),
        compared(f"{case}: rejected / 1 % of calls", share, 1.0, "%", at_most=1.0),
    ]


def run(control: Ec2Control, count: int) -> tuple[Outcome, Outcome]:
    """Start ``count`` machines, each node's once, and end them."""
    control.reset()
    control.throttle(frozen=True)
    time = VirtualTime(control)
    provider = open_cloud(control, time)
    nodes = tuple(f"pub{n}" for n in range(1, count + 1))
    pool = Pool(
        name="pub", cloud="aws", nodes=nodes, cpus=2, real_memory=3000,
        instance_types=("c5.large",), markets=(Market.ON_DEMAND,),
    )  # fmt: skip
    launched = start_all(provider, pool, time, control)
    machines = [m for m in control.state().machines if m.state != "terminated"]
    if sorted(m.node for m in machines) != sorted(nodes):
        raise RuntimeError(f"{len(machines)} machines for {count} nodes")
    ended = end_all(provider, [m.id for m in machines], time, control)
    return launched, ended


def open_cloud(control: Ec2Control, time: VirtualTime) -> AwsProvider:
    """Our provider, its limits by the virtual clock."""
    settings = AwsCloud(
        name="aws", location=Location.PUBLIC, region="us-east-1", image="ami-12345678",
        endpoint=control.url, zones=("us-east-1a",), api_timeout=120.0,
        types={"c5.large": InstanceType(cpus=2, memory=4096, price=0.085)},
    )  # fmt: skip
    cluster = Cluster(name="bench", uuid="00000000-0000-4000-8000-000000000000")
    pace = RateLimits(clock=lambda: time.now, sleep=time.sleep)
    return AwsProvider(settings, cluster, pace=pace)


def start_all(provider: AwsProvider, pool: Pool, time: VirtualTime, control: Ec2Control) -> Outcome:
    """Rounds of launches, until each node has its machine."""
    began, left, last, number = time.now, list(pool.nodes), 0.0, 0
    before = control.state()
    while left:
        room = provider.startable() or 0
        if room:
            offer = provider.offers(pool)[0]
            spec = LaunchSpec(
                generation=f"g{number}", pool=pool, nodes=tuple(left[:room]), offer=offer
            )
            started = {machine.node for machine in provider.launch(spec)}
            left = [node for node in left if node not in started]
            last, number = time.now, number + 1
        if left:
            time.sleep(ROUND)
    return outcome(before.calls, before.throttled, control, "RunInstances", last - began)


def end_all(
    provider: AwsProvider, ids: Sequence[str], time: VirtualTime, control: Ec2Control
) -> Outcome:
    """One order to end all, repeated in each round while EC2 only lets some go."""
    began = time.now
    before = control.state()
    while True:
        try:
            provider.terminate(ids)
            break
        except TransientError:
            alive = {m.id for m in control.state().machines if m.state != "terminated"}
            ids = [i for i in ids if i in alive]
            time.sleep(ROUND)
    return outcome(before.calls, before.throttled, control, "TerminateInstances", time.now - began)


def outcome(
    calls: dict[str, int], throttled: int, control: Ec2Control, action: str, seconds: float
) -> Outcome:
    """The calls since then, and how many EC2 rejected."""
    state = control.state()
    made = state.calls.get(action, 0) - calls.get(action, 0)
    return Outcome(seconds=seconds, calls=made, rejected=state.throttled - throttled)
