"""Whether a cloud of this host makes sense: where it is, its socket, its ports. Pure."""

from __future__ import annotations

from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.local.settings import LocalCloud


def check(draft: Draft, i: int, cloud: LocalCloud) -> None:
    """All complaints about a cloud of provider local, whose machines are all on this host."""
    if cloud.location is not Location.ON_PREMISES:
        expected = f"{Location.ON_PREMISES}: provider local is this very host"
        draft.problems.add(("clouds", i, "location"), shown(cloud.location), expected)
    mates = {n: c for n, c in draft.clouds.items() if isinstance(c, LocalCloud)}
    first = next(n for n, c in mates.items() if c.socket == cloud.socket)
    if first != i:
        found = f"{shown(cloud.socket)}, which clouds[{first}] has already"
        draft.problems.add(("clouds", i, "socket"), found, "a socket of its own")
    _ports(draft, cloud)


def _ports(draft: Draft, cloud: LocalCloud) -> None:
    """The nodes of all such clouds share a host."""
    local = [(i, p, c) for i, p, c in draft.pools_with_clouds if isinstance(c, LocalCloud)]
    if sum(len(draft.nodes.get(i, ())) for i, _, _ in local) <= 1:
        return
    for i, pool, whose in local:
        if pool.slurmd_port is None and whose is cloud:
            expected = "the first of consecutive ports: the nodes of provider local share a host"
            draft.problems.add(("pools", i), "no 'slurmd_port'", expected)
