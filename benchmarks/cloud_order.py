"""What jobs cost with two or three public clouds, in each order of the clouds in the file.

`simulate` must cost the same in all orders, and hardly more than the ideal: one pool with the
offers of all clouds, bought by the same keys. A second program (`cheapest_cloud`) must come to the
same costs. The set-ups have published prices, on slices of public histories: on-demand prices of
three regions, spot prices of three zones (2021), a cheap cloud on demand beside one with spot, spot
prices of 2015 that take machines away, calm ones of 2016 that often cross each other, and those of
June 2015, when one zone's price crossed the on-demand price every few hours.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import permutations
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks import cheapest_cloud
from benchmarks.report import Report, Row, bounded, noted, report, within
from benchmarks.traces import data, history
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import swf
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.setting import Options, setting_of

SAME, NEAR = 1.02, 1.05
"""The dearest order beside the cheapest, and beside the ideal."""
OWN = {
    "KTH-SP2-1996-2.1-cln": (6, 8),
    "SDSC-SP2-1998-4.2-cln": (8, 8),
    "lublin_256": (16, 8),
    "SDSC-DS-2004-2.1-cln": (104, 8),
}
"""The nodes that the site has anyway, and their processors: half of the history's machine."""
LIMITS = Limits(dollars_per_hour=1_000_000.0)
"""A limit that no run reaches. Every site with a public cloud has one."""

CENT = 0.01
NODES = 20_000
"""Nodes of a pool: so many that no pool is ever full, because a full pool sends jobs elsewhere."""


class CloudOf(Struct, frozen=True):
    """A region: its ``price`` on demand ($/h) and the ``zone`` of its spot prices ("": none)."""

    name: str
    price: float
    zone: str = ""


class SetUp(Struct, frozen=True, kw_only=True):
    """Clouds that sell the same machines, and the files with their spot prices."""

    number: int
    kind: str
    cpus: int
    clouds: tuple[CloudOf, ...]
    prices: tuple[str, ...] = ()
    start: int | None = None
    """When the history begins (Unix time; None: as it did)."""
    ties: bool = False
    """Two clouds often ask the same price, so that the file's order decides between them."""


JUNE_2015 = 1_433_721_600
ZONES_2015 = [f"m3.medium_us-east-1{zone}_2015.csv.gz" for zone in "abe"]
SET_UPS = (
    SetUp(
        number=1, kind="c5.2xlarge", cpus=8,
        clouds=(CloudOf("eu", 0.404), CloudOf("us", 0.340), CloudOf("sa", 0.560)),
    ),
    SetUp(
        number=2, kind="c5.9xlarge", cpus=36, prices=("modern_us-east-1_2021.csv.gz",),
        clouds=tuple(CloudOf(zone, 1.53, f"us-east-1{zone}") for zone in "abc"),
    ),
    SetUp(
        number=3, kind="c5.9xlarge", cpus=36, prices=("modern_us-east-1_2021.csv.gz",),
        clouds=(CloudOf("plain", 1.377), CloudOf("spot", 1.53, "us-east-1b")),
    ),
    SetUp(
        number=4, kind="m3.medium", cpus=1, prices=(ZONES_2015[0], ZONES_2015[2]),
        clouds=tuple(CloudOf(zone, 0.067, f"us-east-1{zone}") for zone in "ae"),
    ),
    SetUp(
        number=5, kind="m3.medium", cpus=1, prices=tuple(ZONES_2015),
        clouds=tuple(CloudOf(zone, 0.067, f"us-east-1{zone}") for zone in "abe"),
    ),
    SetUp(
        number=6, kind="m3.medium", cpus=1,
        prices=tuple(f"m3.medium_us-east-1{zone}_2016.csv.gz" for zone in "abc"),
        clouds=tuple(CloudOf(zone, 0.067, f"us-east-1{zone}") for zone in "abc"),
    ),
    SetUp(
        number=7, kind="m3.medium", cpus=1, prices=(ZONES_2015[0], ZONES_2015[1]),
        start=JUNE_2015, ties=True,
        clouds=(CloudOf("plain", 0.060), *(CloudOf(z, 0.067, f"us-east-1{z}") for z in "ab")),
    ),
)  # fmt: skip


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench cloud_order")
    parser.add_argument("--jobs", type=int, default=2000, help="of each history (default 2000)")
    parser.add_argument("--policy", default="slurm", help="GROWTH[+RELEASE] (default slurm)")
    parser.add_argument("--packed", action="store_true", help="jobs share machines")
    parser.add_argument("--history", action="append", help="only this one (repeatable)")
    parser.add_argument("--set-up", type=int, action="append", help="only this one (repeatable)")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.history or OWN:
        path = history(name)
        if path is None:
            continue
        read = swf.load(path, options.jobs)
        for set_up in SET_UPS:
            if not options.set_up or set_up.number in options.set_up:
                rows += list(_rows(name, read, set_up, options.policy, packed=options.packed))
    return report("cloud_order", rows)


def _rows(
    name: str, read: swf.History, set_up: SetUp, policy: str, *, packed: bool
) -> Iterator[Row]:
    title = f"{name.removesuffix('-cln')} {set_up.number}"
    if set_up.start is not None:
        read = copy(read)
        read.header = {**read.header, "UnixStartTime": str(set_up.start - read.jobs.submit[0])}
    costs = {}
    for order in permutations(set_up.clouds):
        site = replace(set_up, clouds=order)
        scenario = scenario_of(read, site, OWN[name], policy, packed=packed)
        costs[",".join(cloud.name for cloud in order)] = _cost(read, scenario)
    ideal = _cost(read, merged(scenario))
    print(title, f"ideal ${ideal:,.2f}", {k: f"${v:,.2f}" for k, v in costs.items()}, flush=True)
    dearest, cheapest = max(costs.values()), min(costs.values())
    if set_up.ties:
        yield noted(f"{title}: dearest order, with equal prices", dearest, "$")
        yield noted(f"{title}: cheapest order, with equal prices", cheapest, "$")
    else:
        yield bounded(f"{title}: dearest order beside cheapest", dearest, cheapest * SAME, "$")
    yield bounded(f"{title}: dearest order beside the ideal", dearest, ideal * NEAR, "$")
    if policy == "slurm" and not packed:
        second = cheapest_cloud.cost(read.jobs, scenario)
        yield within(
            f"{title}: last order by a second program", _cost(read, scenario), second, "$", CENT
        )
        second = cheapest_cloud.cost(read.jobs, merged(scenario))
        yield within(f"{title}: the ideal by a second program", ideal, second, "$", CENT)


def _cost(read: swf.History, scenario: Scenario) -> float:
    return simulate(read.jobs, scenario, read.start).figures.cost


def scenario_of(
    read: swf.History,
    set_up: SetUp,
    own: tuple[int, int],
    policy: str,
    limits: Limits = LIMITS,
    *,
    packed: bool = False,
) -> Scenario:
    """Return the scenario that `simulate` makes of the site's configuration."""
    directory = data()
    assert directory is not None
    paths: list[Path] = [directory / "spot_prices" / name for name in set_up.prices]
    options = Options(static=own, prices=paths, whole_nodes=not packed)
    return setting_of(read, config_of(set_up, limits), options).scenario(policy)


def config_of(set_up: SetUp, limits: Limits = LIMITS) -> Config:
    """Return the configuration of a site with these clouds, in their order."""
    clouds = tuple(
        FakeCloud(
            name=cloud.name,
            location=Location.PUBLIC,
            allow=Who(groups=("staff",)),
            types={set_up.kind: InstanceType(cpus=set_up.cpus, memory=70000, price=cloud.price)},
            zones=(cloud.zone or f"{cloud.name}-1",),
        )
        for cloud in set_up.clouds
    )
    pools = tuple(
        PoolSettings(
            name=f"{cloud.name}-pool",
            cloud=cloud.name,
            nodes=f"{cloud.name}[1-{NODES}]",
            cpus=set_up.cpus,
            memory=64000,
            real_memory=60000,
            markets=(Market.SPOT, Market.ON_DEMAND) if cloud.zone else (Market.ON_DEMAND,),
        )
        for cloud in set_up.clouds
    )
    return Config(cluster=Cluster(name="test"), clouds=clouds, pools=pools, limits=limits)


def merged(scenario: Scenario) -> Scenario:
    """Return the ideal: one pool with the offers of all clouds."""
    own = [pool for pool in scenario.pools if not pool.offers]
    pools = [pool for pool in scenario.pools if pool.offers]
    first = pools[0]
    assert first.wanted is not None
    cloud = first.wanted.cloud
    sold = tuple(
        replace(one, offer=replace(one.offer, cloud=cloud, zone=f"{pool.name}-{one.offer.zone}"))
        for pool in pools
        for one in pool.offers
    )
    wanted = replace(first.wanted, markets=tuple(Market), zones=())
    return replace(scenario, pools=(*own, replace(first, offers=sold, wanted=wanted)))
