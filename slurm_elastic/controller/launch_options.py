"""Launches of more than one offer, and how many machines a cloud starts at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_elastic.controller.context import Site
from slurm_elastic.model import Instance, LaunchSpec, Offer, Placement
from slurm_elastic.protocols import Chooser, Limited

WORTH_A_CALL = 20
"""Machines for which a launch waits, where the cloud lets few start at a time and more are wanted.
"""
_NO_LIMIT = (10**9, "")


def alternatives(site: Site, placement: Placement, count: int) -> tuple[Offer, ...]:
    """The offers that a launch of ``count`` machines on the best one may use instead of it: those
    of its market that could each serve all within every bound, as the cloud may choose any.
    """
    best, *others = placement.ranked
    provider = site.providers[best.offer.cloud]
    most = provider.alternatives if isinstance(provider, Chooser) else 0
    fitting = [r.offer for r in others if r.offer.market is best.offer.market and r.room >= count]
    return tuple(fitting[:most])


def startable(site: Site, cloud: str, count: int) -> tuple[int, str]:
    """How many of ``count`` machines the cloud's API would start now, and that bound in words."""
    provider = site.providers[cloud]
    limit = provider.startable() if isinstance(provider, Limited) else None
    if limit is None or limit >= count:
        return _NO_LIMIT
    words = f"the API of cloud {cloud} starts only so many machines a second"
    return (limit if limit >= WORTH_A_CALL else 0), words


def bought(spec: LaunchSpec, instances: Sequence[Instance]) -> str:
    """What the machines of a launch are, for people."""
    counts = Counter((i.instance_type, i.zone, i.market, i.price) for i in instances)
    parts = [
        f"{kind} in {zone}, {market}, ${price:.4f}/h" + (f" ({n})" if len(counts) > 1 else "")
        for (kind, zone, market, price), n in counts.most_common()
    ]
    chosen = f", chosen by the cloud among {len(spec.offers)} offers" if spec.alternatives else ""
    return "; ".join(parts) + chosen
