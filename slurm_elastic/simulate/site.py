"""Makes scenarios of a site's configuration, prices and policy texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.growth_kinds import checked_growth
from slurm_elastic.config.pool_rules import cheapest, rules_of
from slurm_elastic.model.cluster import Limits, Location, Market, NodeRequest, Pool
from slurm_elastic.policies.growth.release import Idle, IdleOrder, parse_release
from slurm_elastic.policies.launch.ranking import Scope, ceiling
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate.availability import supplies_of
from slurm_elastic.simulate.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.offers import SpotFacts, offers_of, told
from slurm_elastic.simulate.scenario import BootCap, CoolDownTimes, PoolModel, Scenario, Sold


class World(SpotFacts, frozen=True, kw_only=True):
    """Facts that the configuration does not have. ``static``: (nodes, processors) that the site has
    anyway. ``boot`` and ``configure`` are as in ``BootTimes``; ``billing``: how machines are paid
    (both None: as configured). ``reserved``: (pool, machines, $/h) that are always paid. ``whole``:
    jobs do not share machines. ``gpus``: the history says who asked for GPUs.
    """

    whole: bool = False
    gpus: bool = False

    static: tuple[int, int] | None = None
    boot: tuple[tuple[int, float], ...] | None = None
    configure: int = 0
    billing: Billing | None = None
    reserved: tuple[tuple[str, int, float], ...] = ()


def pools_of(config: Config, world: World) -> tuple[tuple[PoolModel, ...], list[str]]:
    """The site's pools in the order of use, and notes on what was left out or assumed."""
    notes: list[str] = []
    found = []
    if world.static is not None:
        nodes, procs = world.static
        found.append(
            PoolModel(
                name="static",
                machines=nodes,
                standing=nodes,
                procs=procs,
                public=False,
                limited=False,
                shared=not world.whole,
            )
        )
    clouds = [cloud.name for cloud in config.clouds]
    pools = sorted(domain_pools(config, expand), key=lambda pool: clouds.index(pool.cloud))
    for pool in sorted(pools, key=lambda p: config.cloud(p.cloud).location is Location.PUBLIC):
        if pool.gres and not world.gpus:
            notes.append(f"pool {pool.name} is left out: no job of the history asked for GPUs")
            continue
        found += _with_reserved(_pool(config, pool, world, notes), world)
    known = [model.name for model in found]
    for name in (name for name, _, _ in world.reserved if name not in known):
        expected = f"expected one of {', '.join(known)}"
        raise ConfigError(f"--reserved: found pool {name!r}, {expected}")
    on_spot = {model.name: model.offers for model in found if model.on_spot}
    notes += _unused(world, [pool.name for pool in pools], on_spot)
    return tuple(found), notes


def bought_as(config: Config, base: Scenario) -> Scenario:
    """``base`` with the limits, the ranking and the cool-downs of the configuration."""
    timings = config.timings
    return replace(
        base,
        limits=config.limits,
        cloud_limits=limits_of(config),
        boot_caps=boot_caps_of(config, base.pools),
        ranking=config.ranking,
        cool_downs=CoolDownTimes(capacity=timings.capacity_cooldown, longest=timings.cooldown_max),
    )


def scenario_of(text: str, pools: Sequence[PoolModel], base: Scenario) -> Scenario:
    """The scenario for ``GROWTH[+RELEASE][+ORDER]`` on these pools. ConfigError, with one sentence
    each, for what is no policy or makes no sense together.
    """
    parts = split(text, "+")
    if not parts:
        raise ConfigError("a policy is missing, expected GROWTH[+RELEASE][+ORDER]")
    try:
        scenario = replace(base, pools=tuple(pools), growth=checked_growth(parts[0]))
        for part in parts[1:]:
            if part in tuple(IdleOrder):
                scenario = replace(scenario, order=IdleOrder(part))
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
    """The pool, after those of its machines that are reserved: always there and paid."""
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
                price=price, offers=(), wanted=None, cloud=model.sold[0].offer.cloud,
            )
        )  # fmt: skip
        model = replace(model, machines=model.machines - count)
    return [*found, model]


def _unused(world: World, pools: Sequence[str], on_spot: Mapping[str, Sequence[Sold]]) -> list[str]:
    """A sentence for each trace that no pool goes by; ConfigError if its pool does not exist."""
    found: list[str] = []
    used = [
        supply
        for pool, sold in on_spot.items()
        for one in sold
        if one.market is not None
        for supply in supplies_of(pool, one.offer.zone, world.availability)
    ]
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
    sold = offers_of(cloud, pool, world)
    if Market.SPOT in pool.markets:
        notes += told(pool.name, sold, world)
    own = rules_of(config, next(one for one in config.pools if one.name == pool.name))
    leased = PerSecond() if own.lease <= 1 else Hourly(seconds=own.lease)
    idle = cloud.suspend_time or config.timings.suspend_time
    markets = tuple({one.offer.market: None for one in sold})
    wanted = replace(pool, nodes=(), markets=markets, instance_types=())
    return PoolModel(
        name=pool.name,
        machines=_most(config, pool, sold),
        procs=pool.cpus,
        memory=pool.real_memory,
        gpus=pool.gres.get("gpu", 0),
        shared=not world.whole,
        public=cloud.location is Location.PUBLIC,
        price=cheapest(cloud, pool),
        billing=world.billing or leased,
        release=Idle(round(idle)),
        boot=BootTimes(world.boot or ((1, float(own.boot)),), world.configure),
        max_booting=pool.max_booting,
        offers=sold,
        wanted=wanted,
    )


def _most(config: Config, pool: Pool, sold: Sequence[Sold]) -> int:
    """The most machines that all limits leave if only this pool has any."""
    bounds = Scope(limits=config.limits, cloud_limits=limits_of(config))
    request = NodeRequest(id="", pool=pool, nodes=pool.nodes)
    allowed = replace(request, pool=replace(pool, markets=tuple(Market), instance_types=()))
    return ceiling(allowed, [one.offer for one in sold], bounds)[0]


def limits_of(config: Config) -> dict[str, Limits]:
    """The limits of each cloud, together with how many machines it can have by its own settings."""
    return {cloud.name: _with_room(cloud.limits, cloud.room) for cloud in config.clouds}


def _with_room(limits: Limits, room: int | None) -> Limits:
    if room is None:
        return limits
    return replace(limits, nodes=room if limits.nodes is None else min(limits.nodes, room))


def boot_caps_of(config: Config, models: Sequence[PoolModel]) -> tuple[BootCap, ...]:
    """The limits of clouds that let only so many machines boot at a time."""
    pools = {c.name: [p.name for p in config.pools if p.cloud == c.name] for c in config.clouds}
    own = {c.name: tuple(m.name for m in models if m.name in pools[c.name]) for c in config.clouds}
    return tuple(
        BootCap(pools=own[cloud.name], machines=cloud.max_booting)
        for cloud in config.clouds
        if cloud.max_booting is not None and own[cloud.name]
    )
