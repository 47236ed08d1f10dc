"""The sites that runs are drawn from: small ones, each with another bound that clouds race for."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, PoolSettings, Timings
from slurm_elastic.config.sections.checkpoint import CheckpointSettings
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.chaos.drawn_site import drawn_config
from tests.controller.world import SHAPE, make_config

DISK = 0.02
"""$/h of a stopped machine."""
KINDS = ("two clouds", "in turns", "policies", "one cap")
TIMINGS = {
    "suspend_time": 120.0, "suspend_timeout": 30.0, "resume_timeout": 300.0,
    "quota_cooldown": 240.0, "max_cooldown": 480.0, "boot_cooldown": 480.0,
}  # fmt: skip

DAEMON, CKPTMAN = "elasticd", "ckptman"
"""The services of a site."""
DRAWN = "drawn"
"""The kind of a site whose configuration is drawn from the schema (``drawn_site``)."""


def site_of(
    rng: random.Random, state: Path, kind: str | None = None
) -> tuple[str, Config, Mapping[str, str]]:
    """Its kind, its configuration, and the cloud of each node. Half of those of a kind that chance
    decides have pools that keep stopped machines.
    """
    keeps = kind is None and rng.random() < 0.5
    kind = kind or rng.choice(KINDS)
    checkpoint = CheckpointSettings(
        method="fake", policy="on_notice", expected_duration=10.0, poll_interval=10.0
    )
    config = make_config(state, timings=Timings(**TIMINGS), checkpoint=checkpoint)  # type: ignore[arg-type]
    onp, pub = config.clouds
    if kind == "in turns":
        config = replace(config, clouds=(replace(onp, max_booting=1), pub))
    elif kind == "policies":
        config = replace(
            config, policies=SitePolicies(growth="on_demand", release="idle(seconds=120)", poll_interval=10.0),
            timings=Timings(**TIMINGS | {"suspend_time": 900.0}),  # type: ignore[arg-type]
        )  # fmt: skip
    elif kind == "one cap":
        config = _one_cap(config)
    if keeps:
        config = _keeping(rng, config)
    return kind, config, cloud_of_nodes(config)


def drawn_site(
    seed: int, state: Path, kept: Collection[int] | None
) -> tuple[str, Config, Mapping[str, str]]:
    """As ``site_of``, by the steps of that seed's drawing, or only those that are ``kept``."""
    config = replace(drawn_config(seed, kept), state_dir=str(state))
    return DRAWN, config, cloud_of_nodes(config)


def cloud_of_nodes(config: Config) -> Mapping[str, str]:
    return {n: p.cloud for p in config.pools for n in expand(p.nodes)}


def two_heads(seed: int) -> bool:
    """Whether that seed's site has two: one in four has."""
    return random.Random(f"{seed} two heads").random() < 0.25


def _keeping(rng: random.Random, config: Config) -> Config:
    """Nodes are idle for a short time only, so that machines come and go often."""
    pools = []
    for pool in config.pools:
        spot = pool.markets if rng.random() < 0.2 else (Market.ON_DEMAND,)
        pools.append(
            replace(
                pool, markets=spot, max_stopped=rng.choice((1, 1, 2, 3)), stopped_price=DISK,
                max_age=rng.choice((None, None, 5000.0, 8000.0)),
            )
        )  # fmt: skip
    timings = config.timings
    if timings.suspend_time < 900.0:
        timings = replace(timings, suspend_time=40.0)
    return replace(config, pools=tuple(pools), timings=timings)


def keeping(config: Config, most: Sequence[int]) -> Config:
    """The same where each pool keeps so many stopped machines, and no more than it has nodes."""
    pools = tuple(
        replace(p, max_stopped=min(n, len(expand(p.nodes))))
        for p, n in zip(config.pools, most, strict=True)
    )
    return replace(config, pools=pools)


def _one_cap(config: Config) -> Config:
    """Two public clouds race for the cluster's dollars and machines."""
    own = Limits(dollars_per_hour=10.0)
    clouds = tuple(
        FakeCloud(name=name, location=Location.PUBLIC, types=SHAPE, limits=own)
        for name in ("east", "west")
    )
    pools = tuple(
        PoolSettings(
            name=f"{name}-pool", cloud=name, nodes=f"{name}[1-3]", cpus=2, memory=4096,
            markets=(Market.ON_DEMAND,),
        )
        for name in ("east", "west")
    )  # fmt: skip
    limits = Limits(nodes=4, dollars_per_hour=0.35)
    return replace(config, clouds=clouds, pools=pools, limits=limits)
