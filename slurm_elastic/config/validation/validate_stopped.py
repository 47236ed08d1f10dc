"""Checks that pools with ``max_stopped`` can keep stopped machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import describe
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.validation.validate_prices import markets_used
from slurm_elastic.model.cluster import Market


def check_stopped(draft: Draft) -> None:
    """Check ``max_stopped`` of all pools."""
    for i, pool, cloud in draft.pools_with_clouds:
        if pool.max_stopped and (expected := _expected(pool, cloud, draft.nodes.get(i, ()))):
            draft.problems.add(("pools", i, "max_stopped"), describe(pool.max_stopped), expected)


def _expected(pool: PoolSettings, cloud: CloudSettings, nodes: Sequence[str]) -> str:
    """The ``max_stopped`` that the pool could have instead. Empty if its own is possible."""
    if not cloud.can_stop:
        return f"0: machines of provider {cloud.provider} cannot be stopped and started"
    if not markets_used(pool, cloud) - {Market.SPOT}:
        return "0: spot machines are not stopped; or a market beside spot in markets"
    if nodes and pool.max_stopped > len(nodes):
        return f"at most {len(nodes)}, the number of nodes of the pool"
    return ""
