"""Why each pool starts no machines now, by the ledger and the configuration alone. The ranking
itself says so. No cloud is asked, so stock and today's spot prices are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.limit_changes import DOLLARS
from slurm_elastic.config.pool_rules import rules_of, types_of
from slurm_elastic.controller.budget import (
    limits_now,
    of_pool,
    scope_of,
    stop_of,
    stopped_by_operators,
)
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import RoomShort
from slurm_elastic.model.causes.limits import DollarsLimited, NodesLimited
from slurm_elastic.model.cluster import Market, NodeRequest, Offer, Pool
from slurm_elastic.model.directive import Directive, LimitChange, told
from slurm_elastic.policies.launch.exclusions import Excluded
from slurm_elastic.policies.launch.ranking import shortfall
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.questions import Bar

ANY = "any"
"""A type or zone that only the cloud knows; cool-downs of a single one do not apply to it."""


def bars(config: Config, ledger: Ledger, wants: int, now: float) -> tuple[Bar, ...]:
    """One for each pool that could not start machines for ``wants`` nodes (or all that it has)."""
    rules = {pool.name: rules_of(config, pool) for pool in config.pools}
    stops = stop_of(config, ledger, rules, now)
    state, blocked = ledger.state(), blocked_clouds(config)
    closed = stopped_by_operators(config, state.directives, now)
    scope = scope_of(limits_now(config, ledger, now), state, blocked)
    found = []
    for pool in domain_pools(config, expand):
        request = NodeRequest(id="explain", pool=pool, nodes=pool.nodes[:wants])
        offers = list(_configured(config.cloud(pool.cloud), pool))
        why = shortfall(request, offers, of_pool(scope, pool, stops), now, config.ranking)
        if why:
            open_to_all: tuple[AnyCause | None, ...] = (
                blocked.get(pool.cloud),
                Excluded(pool, scope.exclusions, now).pause,
                closed.get(pool.name),
            )
            reason = f"{why}{_by_whom(why, state.directives, now)}"
            found.append(Bar(pool=pool.name, reason=reason, private=why not in open_to_all))
    return tuple(found)


def _by_whom(cause: AnyCause, directives: Iterable[Directive], now: float) -> str:
    """Which operator's order set the limit that ``cause`` is; "" if the configuration did."""
    if isinstance(cause, RoomShort):
        cause = cause.cause
    if not isinstance(cause, NodesLimited | DollarsLimited):
        return ""
    is_dollars = isinstance(cause, DollarsLimited)
    for one in directives:
        if isinstance(one.word, LimitChange) and one.holds(now):
            is_of_key = (one.word.key == DOLLARS) is is_dollars
            if is_of_key and one.word.scope == cause.scope:
                return f" ({told(one, now)})"
    return ""


def _configured(cloud: CloudSettings, pool: Pool) -> Iterator[Offer]:
    """Spot offers have no price here; they count at the on-demand price, as for launches."""
    prices = {name: kind.price for name, kind in types_of(cloud, pool).items()}
    for name, price in (prices or {ANY: cloud.flat_price or 0.0}).items():
        for market in pool.markets:
            for zone in pool.zones or (ANY,):
                spot = market is Market.SPOT
                yield Offer(
                    cloud=cloud.name,
                    location=cloud.location,
                    instance_type=name,
                    zone=zone,
                    market=market,
                    price=0.0 if spot else price,
                    on_demand_price=(price or None) if spot else None,
                    cpus=pool.cpus,
                    memory=pool.real_memory,
                    gres=dict(pool.gres),
                )
