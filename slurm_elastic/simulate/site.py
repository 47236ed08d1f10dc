"""Makes scenarios from a site's configuration, price traces and policy texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.growth_kinds import checked_growth
from slurm_elastic.config.pool_rules import cheapest, rules_of, traffic_terms
from slurm_elastic.config.release_kinds import checked_release
from slurm_elastic.config.sections.access import Share
from slurm_elastic.model.cluster import Limits, Location, Market, NodeRequest, Pool
from slurm_elastic.policies.growth.release import Idle, IdleOrder
from slurm_elastic.policies.launch.ranking import Scope, ceiling
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate.availability import supplies_of
from slurm_elastic.simulate.bills.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.offers import SpotFacts, assumptions, offers_of
from slurm_elastic.simulate.scenario import BootCap, CoolDownTimes, PoolModel, Scenario, Sold

STATIC = "static"
"""The name of the pool of the site's own nodes, which the configuration does not have."""


class World(SpotFacts, frozen=True, kw_only=True):
    """Facts outside the configuration. ``static``: (nodes, processors per node) that the site has
    anyway. ``boot`` and ``configure``: see ``BootTimes``; ``billing``: how machines are paid (both
    None: as configured). ``reserved``: (pool, machines, $/h), always paid. ``max_price``: (pool,
    $/h), the bid instead of the configured one; ``power``: (pool, watts of a machine that is up).
    The pool None means all pools. ``whole``: jobs do not share machines. ``gpus``: the history
    shows which jobs need GPUs.
    """

    whole: bool = False
    gpus: bool = False

    static: tuple[int, int] | None = None
    boot: tuple[tuple[int, float], ...] | None = None
    configure: int = 0
    billing: Billing | None = None
    reserved: tuple[tuple[str, int, float], ...] = ()
    max_price: tuple[tuple[str | None, float], ...] = ()
    power: tuple[tuple[str | None, float], ...] = ()


def pools_of(config: Config, world: World) -> tuple[tuple[PoolModel, ...], list[str]]:
    """Return the site's pools, on-premises clouds first, and notes on omissions and assumptions."""
    notes: list[str] = []
    models, names = [], list[str]()
    if world.static is not None:
        nodes, procs = world.static
        models.append(
            PoolModel(
                name=STATIC,
                machines=nodes,
                standing=nodes,
                procs=procs,
                public=False,
                limited=False,
                shared=not world.whole,
                watts=_option_of(STATIC, world.power) or 0.0,
            )
        )
    clouds = [cloud.name for cloud in config.clouds]
    pools = sorted(domain_pools(config, expand), key=lambda pool: clouds.index(pool.cloud))
    # The sort is stable: on-premises clouds first, each group in the configuration's order.
    for pool in sorted(pools, key=lambda p: config.cloud(p.cloud).location is Location.PUBLIC):
        if pool.gres and not world.gpus:
            notes.append(f"pool {pool.name} is left out: no job of the history asked for GPUs")
            continue
        names.append(pool.name)
        models += _with_reserved(_pool(config, *_with_bid(pool, world), notes), world)
    _check_pools("--max-price", world.max_price, [pool.name for pool in pools])
    _check_pools("--power", world.power, [STATIC, *(pool.name for pool in pools)])
    for name in (name for name, _, _ in world.reserved if name not in names):
        expected = f"expected one of {', '.join(names)}"
        raise ConfigError(f"--reserved: found pool {name!r}, {expected}")
    on_spot = {model.name: model.offers for model in models if model.on_spot}
    notes += _unused_traces(world, [pool.name for pool in pools], on_spot)
    return tuple(models), notes


def _with_bid(pool: Pool, world: World) -> tuple[Pool, World]:
    """Return the pool and the world, each with the bid of an option in place of the configured
    bid.
    """
    bid = _option_of(pool.name, world.max_price)
    return (pool, world) if bid is None else (replace(pool, max_price=bid), replace(world, bid=bid))


def _option_of(pool: str, values: Sequence[tuple[str | None, float]]) -> float | None:
    """Return the value of an option for a pool, else the value for all pools, else None."""
    by_pool = dict(values)
    return by_pool.get(pool, by_pool.get(None))


def _check_pools(
    option: str, values: Sequence[tuple[str | None, float]], pools: Sequence[str]
) -> None:
    """Raise ConfigError if a value of the option is for a pool that does not exist."""
    for name, value in values:
        if name is not None and name not in pools:
            expected = f"expected one of {', '.join(pools)}"
            raise ConfigError(f"{option} {name}={value:g}: found pool {name!r}, {expected}")


def bought_as(config: Config, base: Scenario) -> Scenario:
    """Return ``base`` with the limits, the ranking and the cool-downs of the configuration."""
    timings = config.timings
    return replace(
        base,
        limits=config.limits,
        cloud_limits=limits_of(config),
        boot_caps=boot_caps_of(config, base.pools),
        ranking=config.ranking,
        cool_downs=CoolDownTimes(capacity=timings.capacity_cooldown, longest=timings.max_cooldown),
    )


def scenario_of(text: str, pools: Sequence[PoolModel], base: Scenario) -> Scenario:
    """Return the scenario for ``GROWTH[+RELEASE][+ORDER]`` on these pools. Raises ConfigError, with
    a sentence for each part that is no policy or does not fit the others.
    """
    policy_parts = split(text, "+")
    if not policy_parts:
        raise ConfigError("a policy is missing, expected GROWTH[+RELEASE][+ORDER]")
    try:
        scenario = replace(base, pools=tuple(pools), growth=checked_growth(policy_parts[0]))
        for policy_part in policy_parts[1:]:
            if policy_part in tuple(IdleOrder):
                scenario = replace(scenario, order=IdleOrder(policy_part))
                continue
            release = checked_release(policy_part)
            models = tuple(replace(pool, release=release) for pool in scenario.pools)
            scenario = replace(scenario, pools=models)
    except ValueError as error:
        raise ConfigError(f"policy {text!r}: {error}") from None
    problems = scenario.problems()
    if problems:
        raise ConfigError(*(f"policy {text!r}: {problem}" for problem in problems))
    return scenario


def _with_reserved(model: PoolModel, world: World) -> list[PoolModel]:
    """Return the pool, preceded by pools of its reserved machines, which always stand and are
    paid.
    """
    reserved_models = []
    for name, machines, price in world.reserved:
        if name != model.name:
            continue
        count = min(machines, model.machines)
        if count < machines:
            raise ConfigError(
                f"--reserved {name}={machines}@{price:g}: found more machines than the"
                f" {model.machines} that the pool may have"
            )
        reserved_models.append(
            replace(
                model, name=f"{name} reserved at ${price:g}", machines=count, standing=count,
                price=price, offers=(), wanted=None, cloud=model.sold[0].offer.cloud,
            )
        )  # fmt: skip
        model = replace(model, machines=model.machines - count)
    # A pool whose machines are all reserved has no other machine that could be bought.
    return [*reserved_models, model] if model.machines or not reserved_models else reserved_models


def _unused_traces(
    world: World, pools: Sequence[str], on_spot: Mapping[str, Sequence[Sold]]
) -> list[str]:
    """Return a sentence for each trace that no pool uses. Raises ConfigError if its pool does not
    exist.
    """
    sentences: list[str] = []
    used = [
        supply
        for pool, sold in on_spot.items()
        for sold_offer in sold
        if sold_offer.market is not None
        for supply in supplies_of(pool, sold_offer.offer.zone, world.availability)
    ]
    for supply in world.availability:
        if supply.pool is not None and supply.pool not in pools:
            raise ConfigError(
                f"--availability {supply.pool}={supply.name}: found pool {supply.pool!r}, expected"
                f" one of {', '.join(pools)}"
            )
        if supply not in used:
            sentences.append(
                f"availability {supply.name} is ignored: no pool that runs on spot machines"
                " (markets, --prices) uses it"
            )
    return sentences


def _pool(config: Config, pool: Pool, world: World, notes: list[str]) -> PoolModel:
    cloud = config.cloud(pool.cloud)
    sold = offers_of(cloud, pool, world)
    if Market.SPOT in pool.markets:
        notes += assumptions(pool.name, sold, world)
    settings = next(item for item in config.pools if item.name == pool.name)
    rules = rules_of(config, settings)
    leased = PerSecond() if rules.lease <= 1 else Hourly(seconds=rules.lease)
    idle = config.suspend_time(cloud)
    markets = tuple({item.offer.market: None for item in sold})
    ranked_pool = replace(pool, nodes=(), markets=markets, instance_types=())
    return PoolModel(
        name=pool.name,
        machines=_max_machines(config, pool, sold),
        procs=pool.cpus,
        memory=pool.real_memory,
        gpus=pool.gres.get("gpu", 0),
        shared=not world.whole and settings.share is not Share.EXCLUSIVE,
        by_user=settings.share is Share.USER,
        public=cloud.location is Location.PUBLIC,
        price=cheapest(cloud, pool),
        billing=world.billing or leased,
        release=Idle(round(idle)),
        boot=BootTimes(world.boot or ((1, float(rules.boot)),), world.configure),
        max_booting=pool.max_booting,
        offers=sold,
        wanted=ranked_pool,
        traffic=traffic_terms(cloud),
        watts=_option_of(pool.name, world.power) or 0.0,
        resume_timeout=config.resume_timeout(cloud),
        refuses_parts=cloud.refuses_parts,
    )


def _max_machines(config: Config, pool: Pool, sold: Sequence[Sold]) -> int:
    """Return the maximum of machines under all limits if no other pool has any."""
    bounds = Scope(limits=config.limits, cloud_limits=limits_of(config))
    request = NodeRequest(id="", pool=pool, nodes=pool.nodes)
    allowed = replace(request, pool=replace(pool, markets=tuple(Market), instance_types=()))
    return ceiling(allowed, [sold_offer.offer for sold_offer in sold], bounds)[0]


def limits_of(config: Config) -> dict[str, Limits]:
    """Return the limits of each cloud, and the maximum of machines by the cloud's own settings."""
    return {cloud.name: _with_room(cloud.limits, cloud.room) for cloud in config.clouds}


def _with_room(limits: Limits, room: int | None) -> Limits:
    if room is None:
        return limits
    return replace(limits, nodes=room if limits.nodes is None else min(limits.nodes, room))


def boot_caps_of(config: Config, models: Sequence[PoolModel]) -> tuple[BootCap, ...]:
    """Return the limits of clouds on machines that boot at a time."""
    pools = {c.name: [p.name for p in config.pools if p.cloud == c.name] for c in config.clouds}
    pools_by_cloud = {
        c.name: tuple(m.name for m in models if m.name in pools[c.name]) for c in config.clouds
    }
    return tuple(
        BootCap(pools=pools_by_cloud[cloud.name], machines=cloud.max_booting)
        for cloud in config.clouds
        if cloud.max_booting is not None and pools_by_cloud[cloud.name]
    )
