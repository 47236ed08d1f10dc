"""Checks that the settings of a cloud on this host make sense: location, socket, ports. Pure."""

from __future__ import annotations

from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.local.settings import LocalCloud


def check(draft: Draft, i: int, cloud: LocalCloud) -> None:
    """Report all problems of a cloud of provider local, whose machines are all on this host."""
    if cloud.location is not Location.ON_PREMISES:
        expected = f"{Location.ON_PREMISES}: provider local is this very host"
        draft.problems.add(("clouds", i, "location"), shown(cloud.location), expected)
    local_clouds = {n: c for n, c in draft.clouds.items() if isinstance(c, LocalCloud)}
    first_index = next(n for n, c in local_clouds.items() if c.socket == cloud.socket)
    if first_index != i:
        problem = f"{shown(cloud.socket)}, which clouds[{first_index}] has already"
        draft.problems.add(("clouds", i, "socket"), problem, "a socket of its own")
    _ports(draft, cloud)


def _ports(draft: Draft, cloud: LocalCloud) -> None:
    """Report pools without ports of their own: the nodes of all such clouds share a host."""
    local_pools = [(i, p, c) for i, p, c in draft.pools_with_clouds if isinstance(c, LocalCloud)]
    if sum(len(draft.nodes.get(i, ())) for i, _, _ in local_pools) <= 1:
        return
    for i, pool, pool_cloud in local_pools:
        if pool.slurmd_port is None and pool_cloud is cloud:
            expected = "the first of consecutive ports: the nodes of provider local share a host"
            draft.problems.add(("pools", i), "no 'slurmd_port'", expected)
