"""Applies limits that operators have changed at run time to the configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.config.sections.policies import CloudPolicies
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import LimitChange, scope_in_words, scope_of_cloud, scope_of_pool
from slurm_elastic.policies.money.account_budgets import ACCOUNT, USER

COUNTS = ("nodes", "spot", "on_demand")
DOLLARS = "dollars_per_hour"
BUDGETS = ("per_day", "per_month")
MAX_NODES = "max_nodes"
_PAYERS = (ACCOUNT, USER)
MAX_LIMIT = 1e12
"""An amount above every meaningful limit. Amounts up to it can still be added and counted in
millionths.
"""
KEYS = (*COUNTS, DOLLARS, *BUDGETS, MAX_NODES)

P = TypeVar("P", bound=CloudPolicies)


def with_limits(config: Config, changes: Iterable[LimitChange]) -> Config:
    """The configuration with these changes, the latest last. Unknown scopes are ignored."""
    for change in changes:
        config = _with_limit(config, change)
    return config


def _with_limit(config: Config, change: LimitChange) -> Config:
    kind, _, name = change.scope.partition(":")
    if not change.scope:
        limits, policies = _limits(config.limits, change), _policies(config.policies, change)
        return replace(config, limits=limits, policies=policies)
    if kind == "cloud":
        clouds = tuple(
            replace(c, limits=_limits(c.limits, change), policies=_policies(c.policies, change))
            if c.name == name
            else c
            for c in config.clouds
        )
        return replace(config, clouds=clouds)
    if kind == "pool":
        max_nodes = int(change.value)
        pools = tuple(
            replace(p, max_nodes=max_nodes) if p.name == name else p for p in config.pools
        )
        return replace(config, pools=pools)
    field = f"{kind}_budgets"
    budgets = getattr(config.policies, field)
    if name not in budgets:
        return config
    budget = replace(budgets[name], **{change.key: change.value})
    policies = replace(config.policies, **{field: {**budgets, name: budget}})
    return replace(config, policies=policies)


def _limits(limits: Limits, change: LimitChange) -> Limits:
    if change.key in COUNTS:
        return replace(limits, **{change.key: int(change.value)})
    return replace(limits, dollars_per_hour=change.value) if change.key == DOLLARS else limits


def _policies(policies: P, change: LimitChange) -> P:
    if change.key not in BUDGETS:
        return policies
    return replace(policies, budget=replace(policies.budget, **{change.key: change.value}))


def scope_named(config: Config, text: str, *, payers: bool = False, nodes: bool = False) -> str:
    """The scope that a person means by ``text``: ``cluster``, a cloud, a pool, or any of these with
    its kind in front. With ``payers`` also an account or a user with a budget. If a cloud and its
    only pool share a name, the cloud is meant. ConfigError if nothing (``nodes``: the caller has
    looked for a node) or more than one thing has that name.
    """
    budgets = config.policies.payer_budgets if payers else ()
    by_name = {"cluster": [""], **{payer: [payer] for payer in budgets}}
    for cloud in config.clouds:
        by_name.setdefault(cloud.name, []).append(scope_of_cloud(cloud.name))
        by_name[scope_of_cloud(cloud.name)] = [scope_of_cloud(cloud.name)]
    for pool in config.pools:
        by_name.setdefault(pool.name, []).append(scope_of_pool(pool.name))
        by_name[scope_of_pool(pool.name)] = [scope_of_pool(pool.name)]
    scopes = by_name.get(text, [])
    if len(scopes) == 1:
        return scopes[0]
    # A cloud and its only pool may share a name: either way the machines are the same.
    if [pool.name for pool in config.pools if pool.cloud == text] == [text]:
        return scope_of_cloud(text)
    if scopes:
        raise ConfigError(f"{text!r} is a cloud and a pool: say {' or '.join(scopes)}")
    further_kinds = ["account", "user with a budget"] * payers + ["node of a pool"] * nodes
    *kinds, last_kind = "pool", "cloud", *further_kinds
    existing = "; ".join((places(config), *budgets))
    raise ConfigError(f"{text!r} is no {', '.join(kinds)} or {last_kind}; there are {existing}")


def unambiguous_names(config: Config) -> tuple[str, ...]:
    """The clouds and pools, each as ``scope_named`` accepts it: with its kind in front if a cloud
    and a pool share the name.
    """
    clouds = [cloud.name for cloud in config.clouds]
    pools = [pool.name for pool in config.pools]
    shared = set(clouds) & set(pools)
    return (
        *(scope_of_cloud(name) if name in shared else name for name in clouds),
        *(scope_of_pool(name) if name in shared else name for name in pools),
    )


def places(config: Config) -> str:
    """The pools with their nodes, and the clouds, for an error about a wrong name."""
    pools = ", ".join(f"{pool.name} ({pool.nodes})" for pool in config.pools)
    return f"pools: {pools}; clouds: {', '.join(cloud.name for cloud in config.clouds)}"


def pools_in(config: Config, scope: str) -> tuple[str, ...]:
    """The names of the pools in a scope."""
    return tuple(
        pool.name
        for pool in config.pools
        if not scope or scope in (scope_of_pool(pool.name), scope_of_cloud(pool.cloud))
    )


def clouds_of(config: Config, nodes: Iterable[str]) -> frozenset[str]:
    """The clouds of these nodes. Nodes of no pool have none."""
    wanted = frozenset(nodes)
    return frozenset(
        pool.cloud for pool in config.pools if not wanted.isdisjoint(expand(pool.nodes))
    )


def keys_of(scope: str) -> tuple[str, ...]:
    """The limits that can be set for a scope."""
    if scope.startswith("pool:"):
        return (MAX_NODES,)
    return BUDGETS if scope.startswith(_PAYERS) else (*COUNTS, DOLLARS, *BUDGETS)


def configured(config: Config, scope: str, key: str) -> float | None:
    """The file's limit, None if it has none. ConfigError if the scope has no such limit."""
    if key not in keys_of(scope):
        possible_keys = ", ".join(keys_of(scope))
        raise ConfigError(f"{scope_in_words(scope)} has no limit {key!r}; it has {possible_keys}")
    kind, _, name = scope.partition(":")
    if kind == "pool":
        return next(p.max_nodes for p in config.pools if p.name == name)
    if scope.startswith(_PAYERS):
        budget = config.policies.payer_budgets[scope]
        return budget.per_day if key == BUDGETS[0] else budget.per_month
    place = config.cloud(name) if scope else config
    value: float | None = getattr(place.policies.budget if key in BUDGETS else place.limits, key)
    return value


def checked(scope: str, key: str, value: float) -> LimitChange:
    """The change. ConfigError if the limit cannot have that value."""
    if not abs(value) < MAX_LIMIT:  # false for NaN, too
        raise ConfigError(f"{key} is a number below {MAX_LIMIT:g}, not {value:g}")
    if key in (*COUNTS, MAX_NODES) and (value != int(value) or value < 0):
        raise ConfigError(f"{key} is a number of machines from 0 on, not {value:g}")
    if key in BUDGETS and value <= 0:
        raise ConfigError(f"{key} is an amount of dollars above 0, not {value:g}; pause stops all")
    if value < 0:
        raise ConfigError(f"{key} is an amount of dollars from 0 on, not {value:g}")
    return LimitChange(scope=scope, key=key, value=value)
