"""The effects and the cost of a migration in the cloud that takes the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import brief, counted, does, money
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.config.pool_rules import cheapest, paid_reservations
from slurm_elastic.model.cluster import Usage
from slurm_elastic.model.directive import (
    Departure,
    Directive,
    limit_changes,
    scope_of_cloud,
    stop_reason,
    stopped_nodes,
    stopped_pools,
)
from slurm_elastic.model.exclusion import POLICY
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.policies.repair.redirects import count_redirected, routes
from slurm_elastic.policies.repair.replacements import (
    REPLACEMENT_KEPT_S,
    StandIn,
    allowance,
    can_start_ahead,
    choose,
)
from slurm_elastic.state.ledger import Machine
from slurm_elastic.watch.view import Facts


def require_open(config: Config, facts: Facts, cloud: str, starts: float) -> None:
    """ConfigError if operators let nothing start in the cloud: stopped jobs would only wait."""
    closed = _closed(config, facts, cloud, starts)
    if closed and all(pool.name in closed for pool in config.pools if pool.cloud == cloud):
        order, *_ = closed.values()
        raise ConfigError(
            f"{stop_reason(order)}: the jobs would WAIT there; end that first:"
            f" {order.word.ending_command}"
        )


def in_other_cloud(
    config: Config,
    facts: Facts,
    word: Departure,
    machines: Sequence[Machine],
    jobs: Sequence[SlurmJob],
    starts: float,
) -> Iterator[str]:
    """Yield lines about the cloud ``word.to``. ``machines`` leave, with ``jobs`` on them."""
    yield from _partitions(config, facts, word, machines)
    if word.start_replacements:
        yield from _replacements(config, facts, word, machines, starts)
    # Jobs that end on their machines need no room there.
    yield from _room(config, facts, word.to, jobs if word.aggressive else (), starts)


def _partitions(
    config: Config, facts: Facts, word: Departure, machines: Sequence[Machine]
) -> Iterator[str]:
    """Yield which partition the jobs go to, and the configured price of as many machines there.
    Warn if the other cloud's cap is too low for that price.
    """
    cloud = config.cloud(word.to)
    pools = domain_pools(config, expand)
    price = min((cheapest(cloud, pool) for pool in pools if pool.cloud == word.to), default=0.0)
    partitions = {each.name: each.partition_name for each in config.clouds}
    accounts = config.who_of(cloud).no_requeue_on_spot
    ways = list(routes(frozenset(word.nodes), word.to, pools, partitions, accounts))
    waiting = sum(count_redirected(facts.jobs, way) for way in ways)
    verb = "go to" if all(way.is_whole for way in ways) else "may also start in"
    yield (
        f"Jobs {verb} partition {cloud.partition_name}, {counted(waiting, 'waiting job')} at once; "
        f"{counted(len(machines), 'machine')} there: {money(price * len(machines))}/h on demand."
    )
    cap = with_limits(config, limit_changes(facts.directives, facts.now)).cloud(word.to).limits
    paid = _usage(config, facts).dollars_per_hour.get(scope_of_cloud(word.to), 0.0)
    dollars = cap.dollars_per_hour
    if dollars is not None and paid + price * len(machines) > dollars:
        yield (
            f"Its cap is {money(dollars)}/h, of which {money(paid)}/h are used: not all jobs "
            f"continue at once. `slurm-elastic limit {word.to} dollars_per_hour` changes that."
        )


def _usage(config: Config, facts: Facts) -> Usage:
    live = [m for m in facts.machines if not m.has_ended]
    held = paid_reservations(config, facts.now)
    # Stopped machines still cost something, and slurm-elasticd counts them too.
    return usage((*live, *facts.stopped), facts.open_launches, paid=held)


def _replacements(
    config: Config, facts: Facts, word: Departure, machines: Sequence[Machine], starts: float
) -> Iterator[str]:
    """How many machines start ahead, by the same rules as in slurm-elasticd."""
    limited = with_limits(config, limit_changes(facts.directives, starts))
    cloud, used = limited.cloud(word.to), _usage(config, facts)
    pools = {pool.name: pool for pool in domain_pools(limited, expand)}
    pool_of = {node: pool for pool in pools.values() for node in pool.nodes}
    closed = _closed(config, facts, word.to, starts)
    stand_ins = [
        StandIn(
            pool=pool,
            free=_free(facts, pool.nodes, starts),
            price_per_hour=cheapest(cloud, pool),
            room=None
            if pool.max_nodes is None
            else max(pool.max_nodes - used.nodes.get(f"pool:{pool.name}", 0), 0),
        )
        for pool in pools.values()
        if pool.cloud == word.to and pool.name not in closed
    ]
    limits = [("", limited.limits), (scope_of_cloud(word.to), cloud.limits)]
    places = [(m.instance.node, pool_of[m.instance.node]) for m in machines]
    chosen, obstacle = choose(places, stand_ins, allowance(limits, used))
    price = {node: each.price_per_hour for each in stand_ins for node in each.free}
    count, dollars = len(chosen), sum(price[node] for node in chosen)
    yield (
        f"{counted(count, 'replacement')} {does(count, 'start')} at once at {money(dollars)}/h, "
        f"kept without a job for {brief(REPLACEMENT_KEPT_S)} at most."
    )
    if count < len(places):
        yield f"{len(places) - count} of {len(places)} get none: {obstacle}."


def _free(facts: Facts, nodes: Sequence[str], starts: float) -> tuple[str, ...]:
    served = {m.instance.node for m in facts.machines if m.is_wanted}
    served |= {node for launch in facts.open_launches for node in launch.nodes}
    kept = stopped_nodes(facts.directives, starts)
    kinds: dict[str, set[str]] = {}
    for row in facts.holds:
        kinds.setdefault(row.scope, set()).add(row.kind)
    view = facts.nodes or {}
    return tuple(
        name
        for name in nodes
        if name not in served
        and name not in kept
        and (
            name not in view
            or can_start_ahead(view[name], is_held_by_policy=kinds.get(name) == {POLICY})
        )
    )


def _closed(config: Config, facts: Facts, cloud: str, starts: float) -> dict[str, Directive]:
    cloud_by_pool = {pool.name: cloud for pool in config.pools if pool.cloud == cloud}
    return stopped_pools(facts.directives, cloud_by_pool, starts)


def _room(
    config: Config, facts: Facts, cloud: str, jobs: Sequence[SlurmJob], starts: float
) -> Iterator[str]:
    """Report closed pools of the other cloud, and too little room for the jobs' nodes."""
    closed = _closed(config, facts, cloud, starts)
    for order in {order.number: order for order in closed.values()}.values():
        yield f"{stop_reason(order)}: no job starts there."
    config = with_limits(config, limit_changes(facts.directives, starts))
    kept = stopped_nodes(facts.directives, starts)
    busy = {node for job in facts.jobs for node in job.nodes}
    free_count = used_count = 0
    for pool in domain_pools(config, expand):
        if pool.cloud != cloud:
            continue
        pool_used_count = len(busy.intersection(pool.nodes))
        used_count += pool_used_count
        if pool.name not in closed:
            open_count = sum(node not in busy and node not in kept for node in pool.nodes)
            if pool.max_nodes is not None:
                open_count = min(open_count, max(pool.max_nodes - pool_used_count, 0))
            free_count += open_count
    max_nodes = config.cloud(cloud).limits.nodes
    room = free_count if max_nodes is None else min(free_count, max(max_nodes - used_count, 0))
    wanted_count = len({node for job in jobs for node in job.nodes})
    if room < wanted_count:
        which = "the other" if room else "all"
        count = f"{room} of {wanted_count} machines"
        yield f"Cloud {cloud} has room for {count}: {which} jobs WAIT there."
