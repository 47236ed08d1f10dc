"""Checks that prices and limits let machines start at all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import describe
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.machine_prices import on_demand_price
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.requirements import Requirements
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.model.max_price import MaxPrice


def _type_prices(draft: Draft) -> None:
    """Report types without a price in a public cloud, because they would pass any spending cap."""
    for i, cloud in draft.clouds.items():
        if cloud.location is not Location.PUBLIC:
            continue
        for name, kind in cloud.shapes.items():
            if kind.price <= 0:
                path = ("clouds", i, "types", name, "price")
                expected = "a price above 0: the spending cap of a public cloud counts with it"
                draft.problems.add(path, describe(kind.price), expected)


def _pool_price(draft: Draft) -> None:
    for i, pool, cloud in draft.pools_with_clouds:
        cheapest = _cheapest(pool, cloud)
        if isinstance(pool.max_price, MaxPrice):
            _spot_price(draft, i, pool, cloud, pool.max_price)
            continue
        if pool.max_price is None or cheapest is None or Market.SPOT in pool.markets:
            continue
        if pool.max_price < cheapest[0]:
            expected = f"at least {cheapest[0]:g}, the price of {cheapest[1]}"
            expected += ": without spot nothing is cheaper"
            draft.problems.add(("pools", i, "max_price"), describe(pool.max_price), expected)


def _spot_price(
    draft: Draft, i: int, pool: PoolSettings, cloud: CloudSettings, max_price: MaxPrice
) -> None:
    path: KeyPath = ("pools", i, "max_price")
    if Market.SPOT not in pool.markets:
        expected = "a number: a mapping is about spot machines, and spot is not among markets"
        draft.problems.add(path, "a mapping", expected)
    if max_price == MaxPrice():
        draft.problems.add(path, "an empty mapping", "one of spot, of_on_demand, types")
    if max_price.spot is not None and max_price.of_on_demand is not None:
        expected = "spot or of_on_demand: each is for all types"
        draft.problems.add(path, "both spot and of_on_demand", expected)
    names = pool.type_names or tuple(cloud.shapes)
    # The types of a catalogue, or that meet requirements, are not in the file.
    if cloud.catalogued or isinstance(pool.instance_types, Requirements):
        return
    for name in (name for name in max_price.types if name not in names):
        expected = f"one of the pool's types: {', '.join(names)}"
        draft.problems.add((*path, "types", name), shown(name), expected)


def _limits(draft: Draft) -> None:
    pools = [(pool, cloud) for _, pool, cloud in draft.pools_with_clouds]
    everywhere = draft.section("limits", Limits, Limits())
    scopes: list[tuple[KeyPath, Limits, list[tuple[PoolSettings, CloudSettings]]]] = []
    if everywhere is not None:
        scopes.append((("limits",), everywhere, pools))
    for i, cloud in draft.clouds.items():
        cloud_pools = [(p, c) for p, c in pools if c is cloud]
        scopes.append((("clouds", i, "limits"), cloud.limits, cloud_pools))
    for path, limits, bound in scopes:
        if limits.dollars_per_hour == 0:
            expected = "more than 0: without the key, public clouds stay shut"
            draft.problems.add((*path, "dollars_per_hour"), "0", expected)
        if draft.all_whole and bound:
            _market_limits(draft, path, limits, bound)
            _spending_limit(draft, path, limits, bound)


def _market_limits(
    draft: Draft, path: KeyPath, limits: Limits, pools: list[tuple[PoolSettings, CloudSettings]]
) -> None:
    bounds: Mapping[Market, tuple[str, int | None]] = {
        Market.SPOT: ("spot", limits.spot),
        Market.ON_DEMAND: ("on_demand", limits.on_demand),
    }
    shut = {market for market, (_, limit) in bounds.items() if limit == 0}
    for market, (key, limit) in bounds.items():
        used = [pool for pool, cloud in pools if market in markets_used(pool, cloud)]
        if limit and not used:
            expected = f"no such limit: none of these pools uses the {market} market"
            draft.problems.add((*path, key), describe(limit), expected)
    for pool, cloud in pools:
        used_markets = markets_used(pool, cloud)
        if used_markets <= shut:
            key = bounds[min(used_markets)][0]
            market_names = " and ".join(sorted(used_markets))
            expected = f"at least 1: pool {pool.name} uses nothing but {market_names}"
            draft.problems.add((*path, key), "0", expected)


def _spending_limit(
    draft: Draft, path: KeyPath, limits: Limits, pools: list[tuple[PoolSettings, CloudSettings]]
) -> None:
    for pool, cloud in pools:
        cheapest = _cheapest(pool, cloud)
        if limits.dollars_per_hour and cheapest and limits.dollars_per_hour < cheapest[0]:
            expected = (
                f"at least {cheapest[0]:g}, the price of one {cheapest[1]} in pool {pool.name}"
            )
            actual = describe(limits.dollars_per_hour)
            draft.problems.add((*path, "dollars_per_hour"), actual, expected)


def _cheapest(pool: PoolSettings, cloud: CloudSettings) -> tuple[float, str] | None:
    """The full price ($/h) and name of the pool's cheapest machine. None if unknown."""
    if cloud.flat_price is not None:
        return cloud.flat_price, "machine"
    names = pool.type_names or tuple(cloud.shapes)
    prices = ((on_demand_price(cloud, pool.machine, name), name) for name in names)
    return min(((price, name) for price, name in prices if price is not None), default=None)


def markets_used(pool: PoolSettings, cloud: CloudSettings) -> frozenset[Market]:
    """The markets on which the pool buys. Machines on-premises count as reserved."""
    if cloud.location is Location.ON_PREMISES:
        return frozenset({Market.RESERVED})
    return frozenset(pool.markets)


LIMIT_FITS: tuple[Callable[[Draft], None], ...] = (_type_prices, _pool_price, _limits)
