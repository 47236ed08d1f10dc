"""The sections ``policies`` combined for each pool: how its machines come and go.

``validate_policies`` checks the texts when the file is read. After that nothing here raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from msgspec.structs import replace

from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.growth_kinds import growth_of
from slurm_elastic.config.machine_prices import (
    extra_price,
    list_price,
    on_demand_price,
    paid_share,
)
from slurm_elastic.config.policy_choice import candidates, with_policy
from slurm_elastic.config.release_kinds import release_of
from slurm_elastic.config.sections.policies import (
    CloudPolicies,
    PayerBudget,
    Policies,
    PoolPolicies,
    SitePolicies,
)
from slurm_elastic.model.cluster import Location, Market, Offer, Pool
from slurm_elastic.model.machine_options import NO_OPTIONS
from slurm_elastic.model.memory import UNKNOWN_TERMS, PurchaseTerms
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.growth.capacity import Slurm, SteadyStream
from slurm_elastic.policies.growth.release import Delayed, Idle, IdleOrder, OwnRelease
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.launch.pool_order import TrafficTerms
from slurm_elastic.policies.money.bounds import Bounds, Window

BOOT = 120  # seconds that a machine takes to be ready, if no section says how long
MARGIN = 300.0  # Slurm's SuspendTime is only the fail-safe, so it comes this much after the daemon
WARM = 86400.0  # when Slurm suspends (s) a machine that the daemon keeps without work
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
WINDOW_FORM = "HH:MM-HH:MM in UTC, such as 20:00-06:00, of two different times"


def parse_window(text: str) -> Window:
    """Read ``20:00-06:00``. ValueError if it is no such window, or an empty one."""
    match = _WINDOW.fullmatch(text)
    if match is None or match[0][:5] == match[0][6:]:
        raise ValueError(f"{text!r} is not {WINDOW_FORM}")
    begin, end = (3600 * int(match[i]) + 60 * int(match[i + 1]) for i in (1, 3))
    return Window(begin, end)


def rules_of(config: Config, pool: PoolSettings) -> PoolRules:
    """How that pool's machines come and go.

    Slurm has one SuspendTime for all pools of a cloud. Where another pool makes it later, such as
    by ``min_idle_machines``, the daemon releases the machines of a pool without a release policy
    after the cloud's own ``suspend_time``.
    """
    cloud = config.cloud(pool.cloud)
    found = rules(config.policies, cloud, pool)
    if found.release is not None or fail_safe(config, cloud) <= config.suspend_time(cloud):
        return found
    return replace(found, release=Idle(round(config.suspend_time(cloud))))


def rules(site: SitePolicies, cloud: CloudSettings, pool: PoolSettings) -> PoolRules:
    """The rules of a pool from its own section, its cloud's and the site's. ValueError if a text is
    no policy.
    """
    sections: tuple[Policies, ...] = (pool.policies, cloud.policies, site)
    growth = next((s.growth for s in sections if s.growth is not None), None)
    release = next((s.release for s in sections if s.release is not None), None)
    windows = next((s.start_windows for s in sections if s.start_windows), ())
    order: IdleOrder | None = next(
        (s.machine_order for s in sections if s.machine_order is not None), None
    )
    return PoolRules(
        growth=Slurm() if growth is None else growth_of(growth),
        release=None if release is None else release_of(release),
        order=order,
        lease=round(_first((s.billing_increment for s in sections), 1)),
        boot=round(_first((s.expected_boot_time for s in sections), BOOT)),
        windows=tuple(parse_window(text) for text in windows),
        min_idle=pool.policies.min_idle_machines,
        public=cloud.location is Location.PUBLIC,
    )


def inert(config: Config) -> bool:
    """Whether all sections are empty: then Slurm decides alone, and the daemon need not look. The
    nodes of pools with stopped machines get weights, so the daemon looks there.
    """
    if any(pool.max_stopped for pool in config.pools):
        return False
    empty = (
        Policies(),
        PoolPolicies(),
        CloudPolicies(),
        SitePolicies(
            poll_interval=config.policies.poll_interval,
            max_poll_interval=config.policies.max_poll_interval,
        ),
    )
    return all(any(s == p and type(s) is type(p) for p in empty) for s in _sections(config))


def may_grow(config: Config) -> bool:
    """Whether a growth policy may start machines, now or when another policy is chosen."""
    return bool(config.policies.choose.among) or any(
        section.growth is not None for section in _sections(config)
    )


def _sections(config: Config) -> tuple[Policies, ...]:
    return (
        config.policies,
        *(cloud.policies for cloud in config.clouds),
        *(pool.policies for pool in config.pools),
    )


def bounds_of(budget: PayerBudget) -> Bounds:
    """A budget in the form of the policies."""
    return Bounds(per_day=budget.per_day, per_month=budget.per_month)


def lease_of(config: Config, cloud: CloudSettings) -> int:
    """The unit (s) in which the cloud bills."""
    return round(_first((cloud.policies.billing_increment, config.policies.billing_increment), 1))


def longest_increment(config: Config) -> int:
    """The longest unit (s) in which a cloud or pool of the configuration bills."""
    pools = (pool.policies.billing_increment for pool in config.pools)
    of_pools = (round(unit) for unit in pools if unit is not None)
    return max((1, *(lease_of(config, cloud) for cloud in config.clouds), *of_pools))


def purchase_terms(
    config: Config, cloud: str, pool: str, instance_type: str, market: Market
) -> PurchaseTerms:
    """The terms on which the pool buys a machine of that type in the cloud now."""
    settings = next((c for c in config.clouds if c.name == cloud), None)
    of_pool = next((p for p in config.pools if p.name == pool), None)
    if settings is None:
        return UNKNOWN_TERMS
    unit = None if of_pool is None else of_pool.policies.billing_increment
    machine = NO_OPTIONS if of_pool is None else of_pool.machine
    return PurchaseTerms(
        billing_increment_s=lease_of(config, settings) if unit is None else round(unit),
        disk_price=extra_price(settings, machine, instance_type, market),
        on_demand_price=on_demand_price(settings, machine, instance_type),
        list_price=list_price(settings, machine, instance_type),
    )


def paid_reservations(config: Config, now: float) -> tuple[Held, ...]:
    """The reservations of all clouds whose price is due now."""
    return tuple(held for held in config.held if held.is_paid(now))


def traffic_terms(cloud: CloudSettings) -> TrafficTerms:
    """The prices and the bandwidth of the cloud's traffic, as policies count them."""
    traffic = cloud.traffic
    bandwidth = math.inf if traffic.bandwidth is None else traffic.bandwidth
    return TrafficTerms(price_in=traffic.into, price_out=traffic.out, bandwidth=bandwidth)


def fail_safe(config: Config, cloud: CloudSettings) -> float:
    """Slurm's SuspendTime (s) for the cloud's partition. It comes after the daemon's decision."""
    times = [config.suspend_time(cloud)]
    # slurm-elasticd may choose another policy at any time.
    sections = [with_policy(config.policies, text) for text in candidates(config.policies)]
    for section in sections or [config.policies]:
        pools = [pool for pool in config.pools if pool.cloud == cloud.name]
        times += [_latest(rules(section, cloud, pool)) for pool in pools]
    return max(times)


def _latest(pool_rules: PoolRules) -> float:
    """The idle time (s) after which the daemon has released every machine of the pool."""
    if pool_rules.min_idle or isinstance(pool_rules.growth, SteadyStream):
        return WARM
    release = pool_rules.release
    if isinstance(release, Idle):
        return release.seconds + MARGIN
    if isinstance(release, Delayed):
        by_lease = pool_rules.public and pool_rules.lease > 1
        return (pool_rules.lease if by_lease else release.on_premises) + MARGIN
    if isinstance(release, OwnRelease):
        return release.longest + MARGIN
    return 0.0


def _first(values: Iterable[float | None], default: float) -> float:
    return next((value for value in values if value is not None), default)


def types_of(cloud: CloudSettings, pool: Pool) -> dict[str, InstanceType]:
    """The cloud's instance types that the pool can use."""
    return {
        name: kind
        for name, kind in cloud.shapes.items()
        if (not pool.instance_types or name in pool.instance_types)
        and kind.cpus >= pool.cpus
        and kind.memory >= pool.real_memory
    }


def bid_of(cloud: CloudSettings, pool: Pool, instance_type: str) -> float | None:
    """The bid ($/h) for a spot machine of that type (``Pool.bid``)."""
    return pool.bid(
        Offer(
            cloud=cloud.name,
            location=cloud.location,
            instance_type=instance_type,
            zone="",
            market=Market.SPOT,
            price=0.0,
            cpus=pool.cpus,
            memory=pool.real_memory,
            on_demand_price=on_demand_price(cloud, pool.machine, instance_type),
            disk_price=extra_price(cloud, pool.machine, instance_type, Market.SPOT),
            paid_share=paid_share(cloud, instance_type, Market.SPOT),
        )
    )


def on_demand_prices(cloud: CloudSettings, pool: Pool) -> dict[str, float]:
    """The price on demand ($/h) of a machine of the pool with its disks, by type. A cloud with
    one price for all machines has it under ``""``.
    """
    if cloud.flat_price is not None:
        return {"": cloud.flat_price}
    types = types_of(cloud, pool)
    prices = ((name, on_demand_price(cloud, pool.machine, name)) for name in types)
    return {name: price for name, price in prices if price is not None}


def cheapest(cloud: CloudSettings, pool: Pool) -> float:
    """The lowest price on demand ($/h) of the pool's types; 0 if it has none."""
    return min(on_demand_prices(cloud, pool).values(), default=0.0)
