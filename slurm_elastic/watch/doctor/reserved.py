"""Findings about reserved capacity that ends soon, is not used, or fits no pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.local_time import minute
from slurm_elastic.base.units import brief, money
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import types_of
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.reserved import TARGETED, Held, family_of
from slurm_elastic.policies.money.reserved_use import may_cover

SOON_S = 7 * 86400.0
UNUSED_S = 86400.0
"""A reservation without a machine for this long is reported as unused."""


def reserved(config: Config, machines: Sequence[Machine], now: float) -> Iterator[Finding]:
    """Yield the findings about reservations. ``machines``: live machines, and machines that ended
    in the last UNUSED_S seconds.
    """
    pools = domain_pools(config, expand)
    for cloud in config.clouds:
        cloud_pools = [pool for pool in pools if pool.cloud == cloud.name]
        for held in cloud.held:
            if held.ends_at > now and not _may_use(cloud, held, cloud_pools):
                yield _of_no_pool(held)
            elif held.is_paid(now):
                yield from _paid(held, machines, now)


def _may_use(cloud: CloudSettings, held: Held, pools: Iterable[Pool]) -> bool:
    """Whether a pool can start a machine that the reservation covers."""
    if not cloud.shapes or (cloud.catalogued and held.instance_type not in cloud.shapes):
        return True  # only the cloud's catalogue knows the type, and we do not have it
    markets = {Market.RESERVED} if held.kind in TARGETED else {Market.RESERVED, Market.ON_DEMAND}
    return any(
        not markets.isdisjoint(pool.markets)
        and any(_is_of(held, name) for name in types_of(cloud, pool))
        for pool in pools
    )


def _is_of(held: Held, instance_type: str) -> bool:
    if held.is_savings_plan:
        return family_of(instance_type) in held.families
    return instance_type == held.instance_type


def _of_no_pool(held: Held) -> Finding:
    kind = ", ".join(held.families) if held.is_savings_plan else held.instance_type
    return Finding.wrong(
        _subject(held),
        f"no pool of cloud {held.cloud} can use it: it is for {kind}",
        expected="a pool with such a type and the market reserved",
        advice=f"add the type to instance_types of a pool, with markets: [{Market.RESERVED}, ...]",
    )


def _paid(held: Held, machines: Sequence[Machine], now: float) -> Iterator[Finding]:
    left = held.ends_at - now
    if left < SOON_S:
        then = "its machines then cost the price on demand"
        if held.machines_end_at is not None:
            then = f"the cloud ends its machines from {minute(held.machines_end_at)} on"
        yield Finding.note(
            _subject(held),
            f"ends in {brief(left)} ({minute(held.ends_at)}); {then}",
            advice="renew it and add it to reservations, or do nothing: it is no longer used then",
        )
    since = now - UNUSED_S
    if held.begins_at < since and not any(may_cover(held, machine) for machine in machines):
        yield Finding.note(
            _subject(held),
            f"no machine used it in the last {brief(UNUSED_S)}; it costs"
            f" {money(held.fixed_per_hour)}/h",
            advice="does a pool with its type and the market reserved get jobs?",
        )


def _subject(held: Held) -> str:
    return f"reservation {held.name} of {held.cloud}"
