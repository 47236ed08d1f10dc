"""The bounds of launches: limits and what counts against them; budgets and windows, by which no
machine of a pool may be started now, and why.

The ledger is asked for the spending, and only where a budget is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.config.policies import Budget
from slurm_elastic.config.pool_rules import bounds_of, lease_of
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.stops import (
    BudgetSpent,
    OutsideTimes,
    RecordsNotWritten,
    StoppedByOrder,
)
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.model.directive import Directive, limit_changes, stopped_pools
from slurm_elastic.policies.growth.scaling import PoolRules, stops
from slurm_elastic.policies.launch.exclusions import RANKED
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.money.account_budgets import Overdrawn, charged, overdrawn
from slurm_elastic.policies.money.accounting import booting, usage
from slurm_elastic.policies.money.bounds import Bounds, Spent
from slurm_elastic.state.ledger import Ledger, LedgerState

NO_BUDGET = Budget()
UNKNOWN_LEASE = 1
"""Seconds that are paid as one of a cloud that the configuration has no more."""


def stop_of(
    config: Config, ledger: Ledger, rules: Mapping[str, PoolRules], now: float
) -> dict[str, AnyCause]:
    """By pool, why no machine may be started; a pool that may start some has no entry.

    A ledger that cannot be written stops all.
    """
    if ledger.end_only:
        # A machine that cannot be written down would be in no count.
        trouble = RecordsNotWritten(trouble=ledger.end_only)
        return dict.fromkeys((pool.name for pool in config.pools), trouble)
    directives = ledger.directives.all()
    config = with_directives(config, directives, now)
    spent = spending(config, ledger, now)
    found: dict[str, AnyCause] = {
        pool.name: why
        for pool in config.pools
        if (why := _bought_out(config, rules[pool.name], config.cloud(pool.cloud), spent, now))
    }
    # An operator's word comes first.
    return found | stopped_by_operators(config, directives, now)


def stopped_by_operators(
    config: Config, directives: Sequence[Directive], now: float
) -> dict[str, StoppedByOrder]:
    """By pool, why operators let no machine start."""
    closed = stopped_pools(directives, {pool.name: pool.cloud for pool in config.pools}, now)
    return {pool: StoppedByOrder.of(order) for pool, order in closed.items()}


def limits_now(config: Config, ledger: Ledger, now: float) -> Config:
    """The configuration with the limits that operators have changed."""
    return with_directives(config, ledger.directives.all(), now)


def with_directives(config: Config, directives: Sequence[Directive], now: float) -> Config:
    """The same with the ``directives`` that were read before."""
    return with_limits(config, limit_changes(directives, now)) if directives else config


def _bought_out(
    config: Config,
    rules: PoolRules,
    cloud: CloudSettings,
    spent: Mapping[str, Spent],
    now: float,
) -> BudgetSpent | OutsideTimes | None:
    """The budget or window that is in a pool's way."""
    bounds = [("", Bounds(windows=rules.windows), Spent())] if rules.windows else []
    if cloud.name in spent:
        bounds.append((f"cloud {cloud.name}", bounds_of(cloud.policies.budget), spent[cloud.name]))
    # The cluster's budget stops public clouds alone; a cloud's own stops it wherever it is.
    if "" in spent and cloud.location is Location.PUBLIC:
        bounds.append(("", bounds_of(config.policies.budget), spent[""]))
    return stops(int(now), bounds) if bounds else None


def scope_of(
    config: Config,
    state: LedgerState,
    blocked: Mapping[str, AnyCause],
    dearest: Mapping[str, float] | None = None,
) -> Scope:
    """All bounds of launches by the limits of ``config`` (``limits_now``), but for the budgets and
    windows of one pool.
    """
    return Scope(
        limits=config.limits,
        cloud_limits={cloud.name: cloud.limits for cloud in config.clouds},
        pool_nodes={pool.name: pool.max_nodes for pool in config.pools},
        usage=usage((*state.machines, *state.stopped), state.launches, dearest or {}),
        # A large site has thousands of held nodes, of which no offer knows.
        exclusions=tuple(x for x in state.exclusions if x.kind in RANKED),
        blocked=blocked,
        booting=booting(state.machines, state.launches),
    )


def launch_scope(
    config: Config,
    ledger: Ledger,
    rules: Mapping[str, PoolRules],
    pool: Pool,
    now: float,
    blocked: Mapping[str, AnyCause],
    dearest: Mapping[str, float],
    state: LedgerState | None = None,
) -> Scope:
    """All bounds of a launch for that pool, from one reading of the ledger, ``state``."""
    state = state or ledger.state()
    stop: AnyCause | None = None
    if not state.writable:
        stop = RecordsNotWritten(trouble=ledger.end_only)
    if orders := state.directives:
        config = with_directives(config, orders, now)
        order = stopped_pools(orders, {pool.name: pool.cloud}, now).get(pool.name)
        if stop is None and order is not None:
            stop = StoppedByOrder.of(order)
    found = scope_of(config, state, blocked, dearest)
    own, spent = rules[pool.name], {} if stop else spending(config, ledger, now)
    if spent or own.windows:
        stop = stop or _bought_out(config, own, config.cloud(pool.cloud), spent, now)
    return of_pool(found, pool, {pool.name: stop}) if stop else found


def of_pool(scope: Scope, pool: Pool, stops: Mapping[str, AnyCause]) -> Scope:
    """The same for one pool, of which ``stops`` say by name why nothing may be started."""
    stop = stops.get(pool.name)
    return replace(scope, blocked={**scope.blocked, pool.cloud: stop}) if stop else scope


def spending(config: Config, ledger: Ledger, now: float) -> dict[str, Spent]:
    """Dollars of this day and month: of each cloud with a budget, and of all (``""``) if the
    cluster has one; all are those, too, that have left the configuration meanwhile.
    """
    of_all = config.policies.budget != NO_BUDGET
    wanted = [c for c in config.clouds if of_all or c.policies.budget != NO_BUDGET]
    if not wanted:
        return {}
    day, month = begins(now)
    by_cloud: dict[str, Spent] = {}
    for cloud in wanted:
        lease = lease_of(config, cloud)
        by_cloud[cloud.name] = Spent(
            day=ledger.books.dollars(cloud.name, day, now, lease),
            month=ledger.books.dollars(cloud.name, month, now, lease),
        )
    found = {c.name: by_cloud[c.name] for c in wanted if c.policies.budget != NO_BUDGET}
    if of_all:
        former = _former(config, ledger, month)
        found[""] = Spent(
            day=sum(spent.day for spent in by_cloud.values())
            + sum(ledger.books.dollars(name, day, now, UNKNOWN_LEASE) for name in former),
            month=sum(spent.month for spent in by_cloud.values())
            + sum(ledger.books.dollars(name, month, now, UNKNOWN_LEASE) for name in former),
        )
    return found


def spending_of_payers(config: Config, ledger: Ledger, now: float) -> dict[str, Spent]:
    """Dollars of this day and month, in all clouds, of each account and user with a budget, by
    scope (``account:physics``).
    """
    payers = config.policies.payer_budgets
    if not payers:
        return {}
    leases = {cloud.name: lease_of(config, cloud) for cloud in config.clouds}
    leases |= dict.fromkeys(_former(config, ledger, begins(now)[1]), UNKNOWN_LEASE)
    day, month = (
        charged(
            paid
            for name, lease in leases.items()
            for paid in ledger.books.paid(name, since, now, lease)
        )
        for since in begins(now)
    )
    return {name: Spent(day=day.get(name, 0.0), month=month.get(name, 0.0)) for name in payers}


def barred(config: Config, ledger: Ledger, now: float) -> dict[str, Overdrawn]:
    """The accounts and users that get no new machine of a public cloud, by scope, and why."""
    config = limits_now(config, ledger, now)
    spent, budgets = spending_of_payers(config, ledger, now), config.policies.payer_budgets
    found = {
        name: overdrawn(name, bounds_of(budgets[name]), own, now) for name, own in spent.items()
    }
    return {name: why for name, why in found.items() if why is not None}


def _former(config: Config, ledger: Ledger, since: float) -> list[str]:
    """Clouds that the configuration has no more and whose machines were paid since then."""
    names = {cloud.name for cloud in config.clouds}
    return [name for name in ledger.machines.clouds(since) if name not in names]


def begins(now: float) -> tuple[float, float]:
    """When this day and this month began, in UTC."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today.timestamp(), today.replace(day=1).timestamp()
