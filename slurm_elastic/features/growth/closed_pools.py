"""Why each pool starts no machines now, from the ledger and the configuration only.

The ranking of launches itself gives the reason. No cloud is asked, so stock and current spot
prices are unknown. All screens that say why a job waits show it (``wait_situation.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.limit_changes import DOLLARS
from slurm_elastic.config.pool_rules import on_demand_prices, rules_of
from slurm_elastic.controller.launching.budget import (
    apply_directives,
    block_for_pool,
    build_scope,
    find_barred_payers,
    find_stops,
    stopped_by_operators,
)
from slurm_elastic.controller.other_heads import trouble_of_head
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import RoomShort
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.limits import DollarsLimited, NodesLimited
from slurm_elastic.model.cluster import Market, NodeRequest, Offer, Pool
from slurm_elastic.model.directive import Directive, LimitChange, describe, limit_changes
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.policies.launch.exclusions import Excluded
from slurm_elastic.policies.launch.ranking import shortfall
from slurm_elastic.policies.launch.verdict import PoolBar
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.providers.base.offers import reserved_offers
from slurm_elastic.state.heartbeat import read_mark, trouble_of
from slurm_elastic.state.ledger import Ledger

ANY = "any"
"""Stands for a type or zone that only the cloud knows; cool-downs of one type do not match it."""
_STRENGTH = (CAPACITY, POLICY, OPERATOR)
"""The kinds of holds, the strongest last."""


def read_obstacles(config: Config, ledger: Ledger, now: float) -> Obstacles:
    """Return what the ledger knows of why jobs get no machine, and the service's own trouble."""
    mark = read_mark(config.state)
    trouble = trouble_of(config.state, mark, now, config.timings.daemon_timeout)
    # Another head comes first: its finding is in the ledger also while the service does not run.
    end_only = trouble_of_head(ledger) or trouble
    return Obstacles(
        bars=bars(config, ledger, now),
        held=_held_pools(ledger.exclusions.holds()),
        payers=find_barred_payers(config, ledger, now),
        retry_at=retry_times(config, ledger, now),
        unhelped=tuple(ledger.growth_guard.jobs(now)),
        job_holds=ledger.decisions.job_holds(),
        limits=limit_changes(ledger.directives.all(), now),
        end_only=str(end_only or ""),
    )


def bars(config: Config, ledger: Ledger, now: float) -> tuple[PoolBar, ...]:
    """A bar for each pool that cannot start machines for all of its nodes."""
    rules = {pool.name: rules_of(config, pool) for pool in config.pools}
    stops = find_stops(config, ledger, rules, now)
    state, blocked = ledger.state(), blocked_clouds(config)
    closed = stopped_by_operators(config, state.directives, now)
    scope = build_scope(apply_directives(config, ledger, now), state, blocked, now=now)
    closed_bars = []
    for pool in domain_pools(config, expand):
        # The offers of the configuration are ranked by their prices alone. So a request for fewer
        # nodes meets the same bounds in the same order, and the bar holds for each size of job.
        request = NodeRequest(id="explain", pool=pool, nodes=pool.nodes)
        offers = list(_configured(config.cloud(pool.cloud), pool))
        pool_scope = block_for_pool(scope, pool, stops)
        obstacle = shortfall(request, offers, pool_scope, now, config.ranking)
        if obstacle is None:
            continue
        room = obstacle.room if isinstance(obstacle, RoomShort) else 0
        cause = obstacle.cause if isinstance(obstacle, RoomShort) else obstacle
        open_to_all: tuple[AnyCause | None, ...] = (
            blocked.get(pool.cloud),
            Excluded(pool, scope.exclusions, now).pause,
            closed.get(pool.name),
        )
        reason = f"{cause}{_order_text(cause, state.directives, now)}"
        is_private = obstacle not in open_to_all
        closed_bars.append(PoolBar(pool=pool.name, reason=reason, room=room, is_private=is_private))
    return tuple(closed_bars)


def _held_pools(holds: Iterable[Exclusion]) -> dict[str, str]:
    """Return by pool why slurm-elasticd keeps nodes of it from Slurm. An operator's order goes
    before other causes.
    """
    strongest: dict[str, Exclusion] = {}
    for hold in holds:
        other = strongest.get(hold.pool)
        if other is None or _strength(hold) > _strength(other):
            strongest[hold.pool] = hold
    return {pool: str(hold.cause) for pool, hold in strongest.items()}


def _strength(hold: Exclusion) -> int:
    # A growth policy starts the nodes that it holds as soon as jobs need them.
    return -1 if hold.cause == GrowthStartsIt() else _STRENGTH.index(hold.kind)


def retry_times(config: Config, ledger: Ledger, now: float) -> dict[str, float]:
    """Return by pool when its sold-out cloud is asked again (Unix time).

    Clouds that answer with an error are left out, because asking again does not help. So are pools
    that start no machines for another reason, such as an order, a budget or a time window.
    """
    failing = {health.name for health in ledger.health.all() if health.error}
    rules = {pool.name: rules_of(config, pool) for pool in config.pools}
    stops = find_stops(config, ledger, rules, now)
    open_pools = {
        pool.name for pool in config.pools if pool.cloud not in failing and pool.name not in stops
    }
    times: dict[str, float] = {}
    for hold in ledger.exclusions.holds():
        is_sold_out = hold.kind == CAPACITY and hold.pool in open_pools
        if is_sold_out and now < hold.until < math.inf:
            times[hold.pool] = min(hold.until, times.get(hold.pool, math.inf))
    return times


def _order_text(obstacle: AnyCause, directives: Iterable[Directive], now: float) -> str:
    """Which operator's order set the limit that ``obstacle`` is; "" if the configuration did."""
    if not isinstance(obstacle, NodesLimited | DollarsLimited):
        return ""
    is_dollars = isinstance(obstacle, DollarsLimited)
    for directive in directives:
        if isinstance(directive.word, LimitChange) and directive.holds(now):
            is_of_key = (directive.word.key == DOLLARS) is is_dollars
            if is_of_key and directive.word.scope == obstacle.scope:
                return f" ({describe(directive, now)})"
    return ""


def _configured(cloud: CloudSettings, pool: Pool) -> Iterator[Offer]:
    """The configured offers. Spot offers have no price here, so the on-demand price counts."""
    prices = on_demand_prices(cloud, pool)
    places = {*(pool.zones or cloud.known_zones), *(held.zone for held in cloud.held if held.zone)}
    yield from reserved_offers(cloud, pool, sorted(places) or (ANY,))
    for name, price in (prices or {"": 0.0}).items():
        for market in pool.markets:
            # ``reserved_offers`` has yielded these.
            if market is Market.RESERVED and cloud.reservations:
                continue
            for zone in pool.zones or (ANY,):
                spot = market is Market.SPOT
                yield Offer(
                    cloud=cloud.name,
                    location=cloud.location,
                    instance_type=name or ANY,
                    zone=zone,
                    market=market,
                    price=0.0 if spot else price,
                    on_demand_price=(price or None) if spot else None,
                    cpus=pool.cpus,
                    memory=pool.real_memory,
                    gres=dict(pool.gres),
                )
