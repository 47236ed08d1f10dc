"""Budgets and windows: for which pools no machine may be started now, and why.

What was spent is asked of the ledger, and only where a budget is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from slurm_elastic.config import Config
from slurm_elastic.config.changed import with_limits
from slurm_elastic.config.policies import Budget
from slurm_elastic.config.rules import bounds_of, lease_of
from slurm_elastic.directive import limit_changes
from slurm_elastic.ledger import Ledger
from slurm_elastic.model import Location
from slurm_elastic.policies.account_budgets import Overdrawn, charged, overdrawn
from slurm_elastic.policies.capacity import Bounds, Spent
from slurm_elastic.policies.directives import stopped_pools
from slurm_elastic.policies.scaling import PoolRules, stops

NO_BUDGET = Budget()
UNKNOWN_LEASE = 1
"""Seconds that are paid as one of a cloud that the configuration has no more."""


def stop_of(
    config: Config, ledger: Ledger, rules: Mapping[str, PoolRules], now: float
) -> dict[str, str]:
    """By pool, why no machine may be started; a pool that may start some has no entry.

    The cluster's budget stops public clouds only; a cloud's own stops that cloud, wherever it is.
    A ledger that cannot be written stops all. An operator's word comes first.
    """
    if ledger.end_only:
        return dict.fromkeys((pool.name for pool in config.pools), ledger.end_only)
    return bought_out(config, ledger, rules, now) | stopped_by_operators(config, ledger, now)


def stopped_by_operators(config: Config, ledger: Ledger, now: float) -> dict[str, str]:
    """By pool, why operators let no machine start."""
    cloud_of = {pool.name: pool.cloud for pool in config.pools}
    return stopped_pools(ledger.directives(), cloud_of, now)


def limits_now(config: Config, ledger: Ledger, now: float) -> Config:
    """The configuration with the limits that operators have changed."""
    directives = ledger.directives()
    return with_limits(config, limit_changes(directives, now)) if directives else config


def bought_out(
    config: Config, ledger: Ledger, rules: Mapping[str, PoolRules], now: float
) -> dict[str, str]:
    """By pool, which budget or window is in the way."""
    config = limits_now(config, ledger, now)
    spent = spending(config, ledger, now)
    found: dict[str, str] = {}
    for pool in config.pools:
        cloud = config.cloud(pool.cloud)
        bounds = [("", Bounds(windows=rules[pool.name].windows), Spent())]
        if cloud.name in spent:
            bounds.append(
                (f"cloud {cloud.name}", bounds_of(cloud.policies.budget), spent[cloud.name])
            )
        if "" in spent and cloud.location is Location.PUBLIC:
            bounds.append(("", bounds_of(config.policies.budget), spent[""]))
        why = stops(int(now), bounds)
        if why is not None:
            found[pool.name] = why
    return found


def spending(config: Config, ledger: Ledger, now: float) -> dict[str, Spent]:
    """Dollars of this day and month: of each cloud with a budget, and of all (``""``) if the
    cluster has one; all are those, too, that have left the configuration meanwhile.
    """
    of_all = config.policies.budget != NO_BUDGET
    wanted = [c for c in config.clouds if of_all or c.policies.budget != NO_BUDGET]
    day, month = _begins(now)
    by_cloud: dict[str, Spent] = {}
    for cloud in wanted:
        lease = lease_of(config, cloud)
        by_cloud[cloud.name] = Spent(
            day=ledger.dollars(cloud.name, day, now, lease),
            month=ledger.dollars(cloud.name, month, now, lease),
        )
    found = {c.name: by_cloud[c.name] for c in wanted if c.policies.budget != NO_BUDGET}
    if of_all:
        former = _former(config, ledger, month)
        found[""] = Spent(
            day=sum(spent.day for spent in by_cloud.values())
            + sum(ledger.dollars(name, day, now, UNKNOWN_LEASE) for name in former),
            month=sum(spent.month for spent in by_cloud.values())
            + sum(ledger.dollars(name, month, now, UNKNOWN_LEASE) for name in former),
        )
    return found


def spending_of_accounts(config: Config, ledger: Ledger, now: float) -> dict[str, Spent]:
    """Dollars of this day and month, in all clouds, of each account with a budget."""
    accounts = config.policies.account_budgets
    if not accounts:
        return {}
    leases = {cloud.name: lease_of(config, cloud) for cloud in config.clouds}
    leases |= dict.fromkeys(_former(config, ledger, _begins(now)[1]), UNKNOWN_LEASE)
    day, month = (
        charged(
            paid for name, lease in leases.items() for paid in ledger.paid(name, since, now, lease)
        )
        for since in _begins(now)
    )
    return {name: Spent(day=day.get(name, 0.0), month=month.get(name, 0.0)) for name in accounts}


def barred(config: Config, ledger: Ledger, now: float) -> dict[str, Overdrawn]:
    """The accounts that get no new machine of a public cloud, and why."""
    config = limits_now(config, ledger, now)
    spent = spending_of_accounts(config, ledger, now)
    found = {
        name: overdrawn(name, bounds_of(config.policies.account_budgets[name]), own, now)
        for name, own in spent.items()
    }
    return {name: why for name, why in found.items() if why is not None}


def _former(config: Config, ledger: Ledger, since: float) -> list[str]:
    """Clouds that the configuration has no more and whose machines were paid since then."""
    names = {cloud.name for cloud in config.clouds}
    return [name for name in ledger.clouds(since) if name not in names]


def _begins(now: float) -> tuple[float, float]:
    """When this day and this month began, in UTC."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today.timestamp(), today.replace(day=1).timestamp()
