"""From a site's configuration, prices and policy texts to scenarios."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.clouds import (
    AnyCloud,
    AwsCloud,
    DockerCloud,
    FakeCloud,
    InstanceType,
    LocalCloud,
    OpenNebulaCloud,
    OpenStackCloud,
)
from slurm_elastic.errors import ConfigError
from slurm_elastic.model import Limits, Location, Market, Pool
from slurm_elastic.policies.capacity import parse_growth
from slurm_elastic.policies.release import Idle, Order, parse_release
from slurm_elastic.policies.spelled import split
from slurm_elastic.prices.trace import PriceTrace, Series
from slurm_elastic.simulate.billing import Billing, Curve, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.slurm.hostlist import expand

BIDS_UNTIL = datetime(2017, 11, 28, tzinfo=UTC).timestamp()
"""Until then EC2 took spot machines by price; since then by capacity, whatever the bid."""


MOST_POINTS = 10_000_000
"""Of a trace that is repeated over the history."""


class Availability(Struct, frozen=True):
    """How many spot machines there were, tick by tick."""

    gap: int
    counts: tuple[int, ...]


class Span(Struct, frozen=True):
    """The history's time: Unix time of its second 0, its first and last second."""

    origin: int
    begin: int
    end: int


class World(Struct, frozen=True, kw_only=True):
    """What the configuration does not say. ``static``: (nodes, processors) that the site has
    anyway; ``boot``: seconds until a machine can work; ``notice`` and ``rebalance`` as in
    ``SpotMarket``.
    """

    span: Span
    static: tuple[int, int] | None = None
    boot: int = 120
    billing: Billing = field(default_factory=PerSecond)
    prices: PriceTrace | None = None
    availability: Availability | None = None
    notice: int = 120
    rebalance: int = 0


def load_availability(path: Path) -> Availability:
    """A trace of the "Can't Be Late" paper's form: ``metadata.gap_seconds`` and ``data``."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        document = msgspec.json.decode(raw, type=_Trace)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"availability trace {path} cannot be read: {error}") from error
    gap = round(document.metadata.gap_seconds)
    if gap < 1 or not document.data:
        raise ConfigError(f"availability trace {path} holds no tick")
    return Availability(gap, tuple(max(int(count), 0) for count in document.data))


class _Metadata(Struct):
    gap_seconds: float


class _Trace(Struct):
    metadata: _Metadata
    data: list[float]


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
        found.append(_pool(config, pool, world, notes))
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


def _pool(config: Config, pool: Pool, world: World, notes: list[str]) -> PoolModel:
    cloud = config.cloud(pool.cloud)
    public = cloud.location is Location.PUBLIC
    price = _price(cloud, pool)
    machines = _most(config, cloud, pool, price)
    idle = cloud.suspend_time or config.timings.suspend_time
    model = PoolModel(
        name=pool.name,
        machines=machines,
        procs=pool.cpus,
        public=public,
        price=price,
        billing=world.billing,
        release=Idle(round(idle)),
        boot=BootTimes(((1, float(world.boot)),)),
    )
    if Market.SPOT not in pool.markets:
        return model
    market = _market(pool, price, world, notes)
    return replace(model, spot=market) if market else model


def _most(config: Config, cloud: AnyCloud, pool: Pool, price: float) -> int:
    """The most machines that every limit leaves."""
    most = [len(pool.nodes)]
    if pool.max_nodes is not None:
        most.append(pool.max_nodes)
    for limits in (config.limits, cloud.limits):
        most += _limited(limits, price)
    return min(most)


def _limited(limits: Limits, price: float) -> list[int]:
    found = [] if limits.nodes is None else [limits.nodes]
    if limits.dollars_per_hour is not None and price > 0:
        found.append(int(limits.dollars_per_hour / price + 1e-9))
    return found


def _price(cloud: AnyCloud, pool: Pool) -> float:
    """On demand, the cheapest type that can be the pool's."""
    if isinstance(cloud, LocalCloud):
        return cloud.price
    prices = [kind.price for kind in _types(cloud, pool).values()]
    return min(prices, default=0.0)


def _types(
    cloud: AwsCloud | OpenNebulaCloud | OpenStackCloud | DockerCloud | FakeCloud, pool: Pool
) -> Mapping[str, InstanceType]:
    return {
        name: kind
        for name, kind in cloud.types.items()
        if (not pool.instance_types or name in pool.instance_types)
        and kind.cpus >= pool.cpus
        and kind.memory >= pool.real_memory
    }


def _market(pool: Pool, price: float, world: World, notes: list[str]) -> SpotMarket | None:
    """The spot market by the traces at hand; None without a price."""
    series = _series(pool, world.prices)
    if series is None:
        notes.append(f"pool {pool.name} runs on demand only: no spot price of its types was given")
        return None
    by_price = series.times[-1] < BIDS_UNTIL
    if by_price:
        notes.append(f"pool {pool.name}: spot machines are lost when the price exceeds ${price:g}")
    elif world.availability is None:
        notes.append(
            f"pool {pool.name}: no spot machine is ever lost: since 2017-11 prices say nothing"
            " about that (threshold policies do what hour does), and no availability was given"
        )
    available = () if world.availability is None else _available(world.availability, world.span)
    return SpotMarket(
        _repeated(series, world.span),
        bid=price if by_price else None,
        available=available,
        notice=world.notice,
        rebalance=world.rebalance,
    )


def _series(pool: Pool, trace: PriceTrace | None) -> Series | None:
    """The cheapest of the pool's types and zones, by the mean of its points."""
    if trace is None:
        return None
    fitting = [
        (sum(series.prices) / len(series.prices), key, series)
        for key, series in trace.series.items()
        if (not pool.instance_types or key[0] in pool.instance_types)
        and (not pool.zones or key[1] in pool.zones)
    ]
    return min(fitting)[2] if fitting else None


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
    _bearable(rounds * len(series.times), "prices", length, span)
    for round_ in range(rounds):
        for when, price in zip(series.times, series.prices, strict=True):
            points[int(when) + shift + round_ * length] = price
    times = sorted(points)
    return Curve(times, [points[when] for when in times])


def _bearable(points: int, what: str, length: int, span: Span) -> None:
    """ConfigError where a short trace would be repeated all too often."""
    if points > MOST_POINTS:
        days = (span.end - span.begin) / 86400
        raise ConfigError(
            f"{what}: a trace of {length} s, repeated over the {days:,.0f} days of the history, has"
            f" {points:,} points, expected at most {MOST_POINTS:,}"
        )


def _available(trace: Availability, span: Span) -> list[tuple[int, int]]:
    """On the history's clock, again and again; a trace of 0 and 1 says whether there are any."""
    plenty = 2**30 if max(trace.counts) <= 1 else 1
    ticks = -(-(span.end - span.begin) // trace.gap) + 1
    _bearable(ticks, "availability", trace.gap * len(trace.counts), span)
    points: list[tuple[int, int]] = []
    for tick in range(ticks):
        count = trace.counts[tick % len(trace.counts)] * plenty
        if not points or points[-1][1] != count:
            points.append((span.begin + tick * trace.gap, count))
    return points
