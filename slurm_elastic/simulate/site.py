"""From a site's configuration, prices and policy texts to scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.clouds import (
    CloudSettings,
)
from slurm_elastic.config.rules import cheapest, rules_of
from slurm_elastic.errors import ConfigError
from slurm_elastic.hostlist import expand
from slurm_elastic.model import Limits, Location, Market, Pool
from slurm_elastic.policies.capacity import parse_growth
from slurm_elastic.policies.policy_text import split
from slurm_elastic.policies.release import Idle, Order, parse_release
from slurm_elastic.prices.trace import PriceTrace, Series
from slurm_elastic.simulate.availability import Span, Supply, available, bearable, supplies_of
from slurm_elastic.simulate.billing import Billing, Curve, Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.scenario import BootCap, Cap, PoolModel, Scenario

BIDS_UNTIL = datetime(2017, 11, 28, tzinfo=UTC).timestamp()
"""Until then EC2 took spot machines by price; since then by capacity, whatever the bid."""


class World(Struct, frozen=True, kw_only=True):
    """The facts that the configuration does not have. ``static``: (nodes, processors) that the site
    has anyway; ``boot`` and ``configure`` as in ``BootTimes``; ``billing``: how machines are paid
    (both None: as configured); ``reserved``: (pool, machines, $/h) that are paid always; ``notice``
    and ``rebalance`` as in ``SpotMarket``.
    """

    span: Span
    static: tuple[int, int] | None = None
    boot: tuple[tuple[int, float], ...] | None = None
    configure: int = 0
    billing: Billing | None = None
    reserved: tuple[tuple[str, int, float], ...] = ()
    prices: PriceTrace | None = None
    availability: tuple[Supply, ...] = ()
    notice: int = 120
    rebalance: int = 0


def pools_of(config: Config, world: World) -> tuple[tuple[PoolModel, ...], list[str]]:
    """The site's pools in the order in which they are used, and what was left out or assumed."""
    notes: list[str] = []
    found = []
    if world.static is not None:
        nodes, procs = world.static
        found.append(
            PoolModel(name="static", machines=nodes, standing=nodes, procs=procs, public=False)
        )
    clouds = [cloud.name for cloud in config.clouds]
    pools = sorted(domain_pools(config, expand), key=lambda pool: clouds.index(pool.cloud))
    for pool in sorted(pools, key=lambda p: config.cloud(p.cloud).location is Location.PUBLIC):
        if pool.gres:
            notes.append(f"pool {pool.name} is left out: a history does not say who needs gres")
            continue
        found += _with_reserved(_pool(config, pool, world, notes), world)
    _only_known("--reserved", [name for name, _, _ in world.reserved], [m.name for m in found])
    on_spot = [pool for pool in pools if any(m.name == pool.name and m.spot for m in found)]
    notes += _unused(world, [pool.name for pool in pools], on_spot)
    return tuple(found), notes


def scenario_of(text: str, pools: Sequence[PoolModel], base: Scenario) -> Scenario:
    """``GROWTH[+RELEASE][+ORDER]`` on these pools, such as ``semi_elastic+delayed+max_margin``.

    ConfigError with one sentence for what is no policy, or makes no sense together.
    """
    parts = split(text, "+")
    if not parts:
        raise ConfigError("a policy is missing, expected GROWTH[+RELEASE][+ORDER]")
    try:
        scenario = replace(base, pools=tuple(pools), growth=parse_growth(parts[0]))
        for part in parts[1:]:
            if part in tuple(Order):
                scenario = replace(scenario, order=Order(part))
                continue
            release = parse_release(part)
            models = tuple(replace(pool, release=release) for pool in scenario.pools)
            scenario = replace(scenario, pools=models)
    except ValueError as error:
        raise ConfigError(f"policy {text!r}: {error}") from None
    problems = scenario.problems()
    if problems:
        raise ConfigError(*(f"policy {text!r}: {problem}" for problem in problems))
    return scenario


def _with_reserved(model: PoolModel, world: World) -> list[PoolModel]:
    """The pool, behind those of its machines that are reserved: always there, and paid always."""
    found = []
    for name, machines, price in world.reserved:
        if name != model.name:
            continue
        count = min(machines, model.machines)
        if count < machines:
            raise ConfigError(
                f"--reserved {name}={machines}@{price:g}: found more machines than the"
                f" {model.machines} that the pool may have"
            )
        found.append(
            replace(
                model, name=f"{name} reserved at ${price:g}", machines=count, standing=count,
                price=price, spot=None,
            )
        )  # fmt: skip
        model = replace(model, machines=model.machines - count)
    return [*found, model]


def _only_known(option: str, names: Sequence[str], pools: Sequence[str]) -> None:
    for name in names:
        if name not in pools:
            raise ConfigError(f"{option}: found pool {name!r}, expected one of {', '.join(pools)}")


def _unused(world: World, pools: Sequence[str], on_spot: Sequence[Pool]) -> list[str]:
    """A sentence for each availability that no pool goes by. ConfigError for one of no pool."""
    found: list[str] = []
    used: list[Supply] = []
    for pool in on_spot:
        chosen = _series(pool, world.prices)
        used += supplies_of(pool.name, chosen[0], world.availability) if chosen else []
    for supply in world.availability:
        if supply.pool is not None and supply.pool not in pools:
            raise ConfigError(
                f"--availability {supply.pool}={supply.name}: found pool {supply.pool!r}, expected"
                f" one of {', '.join(pools)}"
            )
        if supply not in used:
            found.append(
                f"availability {supply.name} is not looked at: no pool that runs on spot machines"
                " (markets, --prices) goes by it"
            )
    return found


def _pool(config: Config, pool: Pool, world: World, notes: list[str]) -> PoolModel:
    cloud = config.cloud(pool.cloud)
    public = cloud.location is Location.PUBLIC
    price = cheapest(cloud, pool)
    market = _market(pool, price, world, notes) if Market.SPOT in pool.markets else None
    machines = _most(config, cloud, pool, price, on_spot=market is not None)
    own = rules_of(config, next(one for one in config.pools if one.name == pool.name))
    leased = PerSecond() if own.lease <= 1 else Hourly(seconds=own.lease)
    idle = cloud.suspend_time or config.timings.suspend_time
    return PoolModel(
        name=pool.name,
        machines=machines,
        procs=pool.cpus,
        public=public,
        price=price,
        billing=world.billing or leased,
        release=Idle(round(idle)),
        boot=BootTimes(world.boot or ((1, float(own.boot)),), world.configure),
        spot=market,
        max_booting=pool.max_booting,
    )


def _most(config: Config, cloud: CloudSettings, pool: Pool, price: float, *, on_spot: bool) -> int:
    """The most machines that every limit leaves the pool alone."""
    most = [len(pool.nodes)]
    if pool.max_nodes is not None:
        most.append(pool.max_nodes)
    for limits in (config.limits, cloud.limits):
        most += _limited(limits, price)
        if cloud.location is Location.PUBLIC:
            most += _by_market(limits, pool, on_spot=on_spot)
    return min(most)


def _by_market(limits: Limits, pool: Pool, *, on_spot: bool) -> list[int]:
    """The bound that the limits of its markets come to."""
    if not on_spot:
        used = [limits.on_demand]
    elif Market.ON_DEMAND in pool.markets:
        used = [limits.spot, limits.on_demand]
    else:
        used = [limits.spot]
    counts = [count for count in used if count is not None]
    return [sum(counts)] if len(counts) == len(used) else []


def caps_of(config: Config, models: Sequence[PoolModel]) -> tuple[Cap, ...]:
    """The limits that are not one pool's alone, or one market's, where they may be reached."""
    clouds = {pool.name: pool.cloud for pool in config.pools}
    ours = [model for model in models if model.name in clouds]
    scopes = [(config.limits, ours)]
    scopes += [
        (cloud.limits, [model for model in ours if clouds[model.name] == cloud.name])
        for cloud in config.clouds
    ]
    for pool in config.pools:
        if Market.ON_DEMAND not in pool.markets and Market.RESERVED not in pool.markets:
            spot_only = [model for model in ours if model.name == pool.name and model.spot]
            scopes.append((Limits(on_demand=0), spot_only))
    caps = (_cap(limits, members) for limits, members in scopes)
    return tuple(cap for cap in caps if cap is not None)


def boot_caps_of(config: Config, models: Sequence[PoolModel]) -> tuple[BootCap, ...]:
    """The caps of the clouds that let only so many machines boot at a time."""
    pools = {c.name: [p.name for p in config.pools if p.cloud == c.name] for c in config.clouds}
    own = {c.name: tuple(m.name for m in models if m.name in pools[c.name]) for c in config.clouds}
    return tuple(
        BootCap(pools=own[cloud.name], machines=cloud.max_booting)
        for cloud in config.clouds
        if cloud.max_booting is not None and own[cloud.name]
    )


def _cap(limits: Limits, members: Sequence[PoolModel]) -> Cap | None:
    """Without what can never be reached; None where nothing is left."""
    several = len(members) > 1
    public = [model for model in members if model.public]
    cap = Cap(
        pools=tuple(model.name for model in members),
        machines=_reached(limits.nodes, members) if several else None,
        spot=_reached(limits.spot, [model for model in public if model.spot]),
        on_demand=_reached(limits.on_demand, public),
        dollars=_dollars(limits.dollars_per_hour, members) if several else None,
    )
    return None if replace(cap, pools=()) == Cap(pools=()) else cap


def _reached(limit: int | None, members: Sequence[PoolModel]) -> int | None:
    total = sum(model.machines for model in members)
    return limit if limit is not None and total > limit else None


def _dollars(limit: float | None, members: Sequence[PoolModel]) -> float | None:
    total = sum(model.machines * model.price for model in members)
    return limit if limit is not None and total > limit else None


def _limited(limits: Limits, price: float) -> list[int]:
    found = [] if limits.nodes is None else [limits.nodes]
    if limits.dollars_per_hour is not None and price > 0:
        found.append(int(limits.dollars_per_hour / price + 1e-9))
    return found


def _market(pool: Pool, price: float, world: World, notes: list[str]) -> SpotMarket | None:
    """The spot market by the traces at hand; None without a price."""
    chosen = _series(pool, world.prices)
    if chosen is None:
        notes.append(f"pool {pool.name} runs on demand only: no spot price of its types was given")
        return None
    zone, series = chosen
    notes.append(
        f"pool {pool.name}: all its spot machines follow the prices of {zone}, the cheapest over"
        " the whole time: no buyer knows that when he buys, and no other zone is used"
    )
    supplies = supplies_of(pool.name, zone, world.availability)
    by_price = series.times[-1] < BIDS_UNTIL
    if by_price:
        notes.append(f"pool {pool.name}: spot machines are lost when the price exceeds ${price:g}")
    elif not supplies:
        notes.append(
            f"pool {pool.name}: no spot machine is ever lost: since 2017-11 prices say nothing"
            " about that (threshold policies do what hour does), and no availability was given"
        )
    if supplies:
        names = " and ".join(one.name for one in supplies)
        notes.append(f"pool {pool.name}: spot machines are to be had as in {names}")
    return SpotMarket(
        _repeated(series, world.span),
        bid=price if by_price else None,
        available=available(supplies, world.span),
        notice=world.notice,
        rebalance=world.rebalance,
    )


def _series(pool: Pool, trace: PriceTrace | None) -> tuple[str, Series] | None:
    """The cheapest of the pool's types and zones, by its mean over time, and its zone."""
    if trace is None:
        return None
    fitting = {
        key: series
        for key, series in trace.series.items()
        if (not pool.instance_types or key[0] in pool.instance_types)
        and (not pool.zones or key[1] in pool.zones)
    }
    if not fitting:
        return None
    until = max(series.times[-1] for series in fitting.values())
    best = min(sorted(fitting), key=lambda key: _mean(fitting[key], until))
    return best[1], fitting[best]


def _mean(series: Series, until: float) -> float:
    """Each price counts for as long as it held: histories have a point for each change only."""
    whole = until - series.times[0]
    if whole <= 0:
        return series.prices[-1]
    held = zip(pairwise((*series.times, until)), series.prices, strict=True)
    return sum((end - begin) * price for (begin, end), price in held) / whole


def _repeated(series: Series, span: Span) -> Curve:
    """The series on the history's clock: as it was, if it covers the history, else from the
    history's first second on and again and again.
    """
    if len(series.times) == 1:
        return Curve([span.begin], series.prices)
    first, length = series.times[0], int(series.times[-1] - series.times[0]) + 1
    covers = first <= span.origin + span.begin and series.times[-1] >= span.origin + span.end
    shift = -span.origin if covers else span.begin - int(first)
    points: dict[int, float] = {}
    rounds = 1 if covers else -(-(span.end - span.begin + 1) // length) + 1
    bearable(rounds * len(series.times), "prices", length, span)
    for round_ in range(rounds):
        for when, price in zip(series.times, series.prices, strict=True):
            points[int(when) + shift + round_ * length] = price
    times = sorted(points)
    return Curve(times, [points[when] for when in times])
