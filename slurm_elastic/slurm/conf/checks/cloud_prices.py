"""Finds where the file's order of public clouds disagrees with the prices typed in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import counted, money
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import cheapest
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.policies.launch.pool_order import COSTS

SIMILAR = 0.9
"""The share of the larger memory from which the smaller one counts as the same: clouds keep a
little for themselves.
"""


def notices(config: Config) -> Iterator[str]:
    """A sentence for each public cloud that stands before a cheaper one for nodes of the same size.
    It says whether the prices or the order in the file decides.
    """
    pools = domain_pools(config, expand)
    clouds = [cloud for cloud in config.clouds if cloud.location is Location.PUBLIC]
    for place, cloud in enumerate(clouds):
        cheaper = [
            pair
            for later in clouds[place + 1 :]
            for pair in _dearer_pairs(cloud, later, pools)
            if cloud.partition_name != later.partition_name
        ]
        # One sentence for each cloud: the largest difference says enough.
        if cheaper:
            _, sentence = min(cheaper)
            yield f"{sentence}; {_advice(config)}"


def _dearer_pairs(
    cloud: CloudSettings, later: CloudSettings, pools: Sequence[Pool]
) -> Iterator[tuple[float, str]]:
    """The pools of ``later`` with a lower price than the same pool of ``cloud``: the share of the
    price, and the sentence.
    """
    pairs = [
        (pool, other)
        for pool in pools
        for other in pools
        if (pool.cloud, other.cloud) == (cloud.name, later.name) and _is_same(pool, other)
    ]
    for pool, other in pairs:
        # The nodes have the same number of CPUs, so this is also the order of prices per CPU-hour.
        price, lower = cheapest(cloud, pool), cheapest(later, other)
        if 0 < lower < price:
            sentence = (
                f"clouds: {cloud.name} stands before {later.name}, but a node of "
                f"{counted(pool.cpus, 'CPU')} costs {money(price)}/h in pool {pool.name} and "
                f"{money(lower)}/h in pool {other.name}"
            )
            yield lower / price, sentence


def _is_same(pool: Pool, other: Pool) -> bool:
    smaller, larger = sorted((pool.real_memory, other.real_memory))
    return (
        pool.cpus == other.cpus
        and dict(pool.gres) == dict(other.gres)
        and set(pool.markets) == set(other.markets)
        and smaller >= SIMILAR * larger
    )


def _advice(config: Config) -> str:
    if any(key in COSTS for key in config.ranking):
        return (
            "you need to do nothing: jobs use the cheaper cloud first, and the order of the file "
            "decides only between equal clouds"
        )
    return (
        "the order of the file decides, because `ranking` has no price: add price to ranking, or "
        "move the cheaper cloud up"
    )
