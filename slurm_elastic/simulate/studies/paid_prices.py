"""The spot prices that a site paid, as a price trace for a simulation of the same time. Pure.

The ledger has the price of each machine at its launch. Between two launches of a type in a zone we
assume the earlier price, because the ledger knows no other price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from slurm_elastic.model.cluster import Instance, Market
from slurm_elastic.providers.base.prices.trace import PriceTrace, series_of


def paid_prices(instances: Iterable[Instance], begin: float, end: float) -> PriceTrace | None:
    """Return the prices of these machines by type and zone, over the whole time from ``begin`` to
    ``end`` (Unix s); None if no spot machine was bought.
    """
    points: defaultdict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for instance in instances:
        if instance.market is Market.SPOT and instance.price > 0 and instance.launched <= end:
            points[instance.instance_type, instance.zone][instance.launched] = instance.price
    if not points:
        return None
    return PriceTrace(
        {key: series_of(_spanning(times, begin, end)) for key, times in points.items()}
    )


def _spanning(points: dict[float, float], begin: float, end: float) -> dict[float, float]:
    """Add the first price at ``begin`` and the last one at ``end``. The simulator repeats prices
    that do not cover the history, which would move them to other days.
    """
    times = sorted(points)
    return {begin: points[times[0]], **points, end: points[times[-1]]}
