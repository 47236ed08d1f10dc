"""The bounds of launches: the limits and the usage that counts against them, and the budgets, time
windows and orders that forbid a pool to start machines now.

The ledger adds up the spending, but only if a budget is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.config.pool_rules import bounds_of, paid_reservations
from slurm_elastic.config.sections.policies import WhenSpent
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.stops import (
    BudgetSpent,
    OutsideTimes,
    RecordsNotWritten,
    StoppedByOrder,
)
from slurm_elastic.model.cluster import Limits, Location, Pool
from slurm_elastic.model.directive import Directive, limit_changes, stopped_pools
from slurm_elastic.model.exclusion import COMMITTED, Exclusion
from slurm_elastic.policies.growth.scaling import PoolRules, stops
from slurm_elastic.policies.launch.exclusions import RANKED
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.money.account_budgets import Overdrawn, Shares, charged, overdrawn
from slurm_elastic.policies.money.accounting import booting, usage
from slurm_elastic.policies.money.bounds import (
    UNBOUNDED,
    Bounds,
    Spent,
    begin_of_day_and_month,
)
from slurm_elastic.policies.money.reservations import spent_on
from slurm_elastic.state.ledger import Ledger, LedgerState

Promised = Mapping[str, BudgetSpent]
"""By cloud ("" for the cluster): its budget, which is spent if the running jobs use their limits.
"""


def find_stops(
    config: Config, ledger: Ledger, rules: Mapping[str, PoolRules], now: float
) -> dict[str, AnyCause]:
    """Return by pool why no machine may be started. A pool that may start machines has no entry.

    If the ledger cannot be written, no pool may start machines.
    """
    if ledger.end_only:
        # A machine that the ledger cannot record would count in no limit.
        trouble = RecordsNotWritten(trouble=ledger.end_only)
        return dict.fromkeys((pool.name for pool in config.pools), trouble)
    directives = ledger.directives.all()
    config = apply_known_directives(config, directives, now)
    spent = read_spending(config, ledger, now)
    promised = _promised(ledger.exclusions.all(), now) if spent else {}
    stops_by_pool: dict[str, AnyCause] = {
        pool.name: stop
        for pool in config.pools
        if (
            stop := _find_budget_or_window_stop(
                config, rules[pool.name], config.cloud(pool.cloud), spent, promised, now
            )
        )
    }
    # An operator's order replaces a budget or window as the reason: it tells whom to ask.
    return stops_by_pool | stopped_by_operators(config, directives, now)


def stopped_by_operators(
    config: Config, directives: Sequence[Directive], now: float
) -> dict[str, StoppedByOrder]:
    """Return by pool the order of an operator that lets no machine start."""
    closed = stopped_pools(directives, {pool.name: pool.cloud for pool in config.pools}, now)
    return {pool: StoppedByOrder.of(order) for pool, order in closed.items()}


def apply_directives(config: Config, ledger: Ledger, now: float) -> Config:
    """Return the configuration with the limits that operators have changed."""
    return apply_known_directives(config, ledger.directives.all(), now)


def spans_clouds(config: Config, ledger: Ledger, now: float) -> bool:
    """Whether a limit or a budget, of the configuration or of an operator, counts machines of all
    clouds.
    """
    config = apply_directives(config, ledger, now)
    budgets = (config.policies.budget, *config.policies.payer_budgets.values())
    has_budget = any(b.per_day is not None or b.per_month is not None for b in budgets)
    return has_budget or config.limits != Limits()


def apply_known_directives(config: Config, directives: Sequence[Directive], now: float) -> Config:
    """Return the configuration with the limits that these ``directives`` change."""
    return with_limits(config, limit_changes(directives, now)) if directives else config


def _find_budget_or_window_stop(
    config: Config,
    rules: PoolRules,
    cloud: CloudSettings,
    spent: Mapping[str, Spent],
    promised: Promised,
    now: float,
) -> BudgetSpent | OutsideTimes | None:
    """Return the budget or time window that forbids a pool to start machines; None if none does."""
    bounds = [("", Bounds(windows=rules.windows), Spent())] if rules.windows else []
    bounds += _budget_bounds(config, spent, budget_scopes(cloud))
    stop = stops(int(now), bounds) if bounds else None
    return stop or _promised_stop(config, cloud, promised)


def find_finishing_clouds(config: Config, ledger: Ledger, now: float) -> dict[str, BudgetSpent]:
    """Return by name the clouds whose machines must take no new jobs, because a budget with
    ``when_spent: finish`` is spent, or will be by the limits of the running jobs.
    """
    config = apply_directives(config, ledger, now)
    spent = read_spending(config, ledger, now)
    promised = _promised(ledger.exclusions.all(), now) if spent else {}
    finishing: dict[str, BudgetSpent] = {}
    for cloud in config.clouds:
        scopes = [n for n in budget_scopes(cloud) if finishes(config, n)]
        bounds = _budget_bounds(config, spent, scopes)
        stop = stops(int(now), bounds) or _promised_stop(config, cloud, promised)
        if isinstance(stop, BudgetSpent):
            finishing[cloud.name] = stop
    return finishing


def budget_scopes(cloud: CloudSettings) -> tuple[str, ...]:
    """Return whose budgets stop the cloud: its own, and the cluster's ("") if it is public."""
    return (cloud.name, "") if cloud.location is Location.PUBLIC else (cloud.name,)


def finishes(config: Config, scope: str) -> bool:
    """Whether machines take no new jobs when the budget of the cloud, or of the cluster (""), is
    spent.
    """
    return config.budget_of(scope).when_spent is WhenSpent.FINISH


def _budget_bounds(
    config: Config, spent: Mapping[str, Spent], scopes: Sequence[str]
) -> list[tuple[str, Bounds, Spent]]:
    return [
        (f"cloud {name}" if name else "", bounds_of(config.budget_of(name)), spent[name])
        for name in scopes
        if name in spent
    ]


def _promised(exclusions: Sequence[Exclusion], now: float) -> Promised:
    return {
        row.scope: row.cause
        for row in exclusions
        if row.kind == COMMITTED and now < row.until and isinstance(row.cause, BudgetSpent)
    }


def _promised_stop(config: Config, cloud: CloudSettings, promised: Promised) -> BudgetSpent | None:
    # The configuration may have changed since the record was made.
    scopes = (n for n in budget_scopes(cloud) if n in promised and finishes(config, n))
    return next((promised[name] for name in scopes), None)


def build_scope(
    config: Config,
    state: LedgerState,
    blocked: Mapping[str, AnyCause],
    worst_prices: Mapping[str, float] | None = None,
    *,
    now: float,
) -> Scope:
    """Return all bounds of launches except the budgets and windows of a single pool.

    ``config``: with the limits that operators have changed (``apply_directives``).
    """
    paid = paid_reservations(config, now)
    return Scope(
        limits=config.limits,
        cloud_limits={cloud.name: cloud.limits for cloud in config.clouds},
        pool_nodes={pool.name: pool.max_nodes for pool in config.pools},
        usage=usage(
            (*state.machines, *state.stopped),
            state.launches,
            worst_prices,
            paid,
        ),
        # The ranking needs no held nodes, and a large site has thousands of them.
        exclusions=tuple(x for x in state.exclusions if x.kind in RANKED),
        blocked=blocked,
        booting=booting(state.machines, state.launches),
        packed_clouds=frozenset(cloud.name for cloud in config.clouds if cloud.switches_hosts),
    )


def build_launch_scope(
    config: Config,
    ledger: Ledger,
    rules: Mapping[str, PoolRules],
    pool: Pool,
    now: float,
    blocked: Mapping[str, AnyCause],
    worst_prices: Mapping[str, float],
    state: LedgerState | None = None,
) -> Scope:
    """Return all bounds of a launch for the pool, from one reading of the ledger (``state``)."""
    state = state or ledger.state()
    stop: AnyCause | None = None
    # The first cause wins: without a writable ledger no order or budget matters.
    if not state.writable:
        stop = RecordsNotWritten(trouble=ledger.end_only)
    if orders := state.directives:
        config = apply_known_directives(config, orders, now)
        order = stopped_pools(orders, {pool.name: pool.cloud}, now).get(pool.name)
        if stop is None and order is not None:
            stop = StoppedByOrder.of(order)
    scope = build_scope(config, state, blocked, worst_prices, now=now)
    scope = replace(scope, boot_s=config.resume_timeout(config.cloud(pool.cloud)))
    pool_rules, spent = rules[pool.name], {} if stop else read_spending(config, ledger, now)
    if spent or pool_rules.windows:
        stop = stop or _find_budget_or_window_stop(
            config, pool_rules, config.cloud(pool.cloud), spent,
            _promised(state.exclusions, now), now,
        )  # fmt: skip
    return block_for_pool(scope, pool, {pool.name: stop}) if stop else scope


def block_for_pool(scope: Scope, pool: Pool, stops: Mapping[str, AnyCause]) -> Scope:
    """Return the scope with the pool's cloud blocked, if ``stops`` (by pool) has the pool."""
    stop = stops.get(pool.name)
    return replace(scope, blocked={**scope.blocked, pool.cloud: stop}) if stop else scope


def read_spending(config: Config, ledger: Ledger, now: float) -> dict[str, Spent]:
    """Return the dollars of this day and month: by cloud with a budget, and under ``""`` of all
    clouds if the cluster has a budget. The sum of all includes clouds that have left the
    configuration.
    """
    of_all = bounds_of(config.policies.budget) != UNBOUNDED
    with_own = {c.name for c in config.clouds if bounds_of(c.policies.budget) != UNBOUNDED}
    clouds = [c for c in config.clouds if of_all or c.name in with_own]
    if not clouds:
        return {}
    day, month = begin_of_day_and_month(now)
    reader = _PaidReader(config, ledger, now)
    by_cloud = {
        cloud.name: Spent(
            day=reader.dollars(cloud.name, day), month=reader.dollars(cloud.name, month)
        )
        for cloud in clouds
    }
    spent_by_scope = {c.name: by_cloud[c.name] for c in clouds if c.name in with_own}
    if of_all:
        former = _list_former_clouds(config, ledger, month, now)
        spent_by_scope[""] = Spent(
            day=sum(spent.day for spent in by_cloud.values())
            + sum(reader.dollars(name, day) for name in former),
            month=sum(spent.month for spent in by_cloud.values())
            + sum(reader.dollars(name, month) for name in former),
        )
    return spent_by_scope


class _PaidReader:
    """Reads the spending until ``now``. All sums share one stamp of the ended machines."""

    def __init__(self, config: Config, ledger: Ledger, now: float) -> None:
        self._ledger, self._now = ledger, now
        self._held = ledger.books.counted_reservations(config.held, now)
        month = begin_of_day_and_month(now)[1]
        self._stamp = ledger.books.ended_stamp(month - ledger.books.longest_increment())

    def dollars(self, cloud: str, since: float) -> float:
        """Return the dollars of a cloud's machines and reservations from ``since`` on."""
        return sum(dollars for _, dollars in self.by_payers(cloud, since))

    def by_payers(self, cloud: str, since: float) -> list[tuple[Shares, float]]:
        """Return the dollars of a cloud's machines and reservations from ``since`` on, by
        payers.
        """
        books, now = self._ledger.books, self._now
        reserved = books.reserved(cloud, since, now, self._stamp)
        return [
            *books.cost_by_payers(cloud, since, now, self._stamp),
            *spent_on(reserved, self._held.get(cloud, ()), since, now),
        ]


def read_payer_spending(config: Config, ledger: Ledger, now: float) -> dict[str, Spent]:
    """Return the dollars of this day and month in all clouds, by account or user with a budget
    (scope ``account:physics``).
    """
    payers = config.policies.payer_budgets
    if not payers:
        return {}
    spans = begin_of_day_and_month(now)
    clouds = [cloud.name for cloud in config.clouds]
    clouds += _list_former_clouds(config, ledger, spans[1], now)
    reader = _PaidReader(config, ledger, now)
    day, month = (
        charged(paid for name in clouds for paid in reader.by_payers(name, since))
        for since in spans
    )
    return {name: Spent(day=day.get(name, 0.0), month=month.get(name, 0.0)) for name in payers}


def find_barred_payers(config: Config, ledger: Ledger, now: float) -> dict[str, Overdrawn]:
    """Return by scope the accounts and users that get no new machine of a public cloud, and why."""
    config = apply_directives(config, ledger, now)
    spent, budgets = read_payer_spending(config, ledger, now), config.policies.payer_budgets
    overdrawn_by_scope = {
        name: overdrawn(name, bounds_of(budgets[name]), payer_spent, now)
        for name, payer_spent in spent.items()
    }
    return {
        name: overdraft for name, overdraft in overdrawn_by_scope.items() if overdraft is not None
    }


def _list_former_clouds(config: Config, ledger: Ledger, since: float, now: float) -> list[str]:
    """Former clouds of the configuration with machines that were paid after ``since``, or with
    reservations.
    """
    names = {cloud.name for cloud in config.clouds}
    reserved = ledger.books.counted_reservations(config.held, now)
    return sorted({*ledger.machines.clouds(since), *reserved} - names)
