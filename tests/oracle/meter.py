"""The terms of each purchase by the file at that time, and the budgets that it must keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.model.memory import PART
from tests.controller.world import T0
from tests.oracle.prices import dearest_price

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

UNDER_WAY = 300.0
"""Seconds within which a purchase is in the ledger, or a list of its cloud has brought it there."""
DECIDED = 60.0
"""Seconds, at most, between the look at what was spent and the purchase."""


class Terms(NamedTuple):
    """How many seconds the cloud bills at a time, and the price on demand ($/h)."""

    increment: int
    on_demand: float


def terms_of(config: Config, node: str, instance_type: str) -> Terms:
    """By docs/configuration.md: a pool's section before its cloud's, and that before the site's."""
    pool = next(pool for pool in config.pools if node in expand(pool.nodes))
    cloud = config.cloud(pool.cloud)
    sections = (pool.policies, cloud.policies, config.policies)
    units = [of.billing_increment for of in sections if of.billing_increment is not None]
    on_demand = dearest_price(cloud, instance_type, Market.ON_DEMAND)
    return Terms(round(units[0]) if units else 1, on_demand)


class Meter:
    """Notes the terms of each machine: those of the file by which its purchase was decided, also if
    the cloud is asked again after another file is in force.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._terms: dict[str, Terms] = {}
        self._bought: dict[str, float] = {}

    def buys(self, id_: str, generation: str, node: str, instance_type: str) -> None:
        config = self._stage.books.decided_by.get(generation, self._stage.config)
        self._terms[id_] = terms_of(config, node, instance_type)
        self._bought[id_] = self._stage.sched.now

    def wrongs(self, machines: Sequence[Any], healed: float) -> Iterator[str]:
        """The machines on record whose terms are not those of their purchase. ``healed``: when the
        configuration changed (s of the run).
        """
        for machine in machines:
            one = machine.instance
            id_ = one.id.partition(PART)[0]
            if id_ not in self._terms or machine.is_off:
                continue
            fitting = [self._terms[id_]]
            turns = self._stage.accounts[one.cloud].turns.get(id_, ())  # a start has its own terms
            last_begin = max((turn.at for turn in turns), default=self._bought[id_])
            if last_begin > healed - UNDER_WAY:
                fitting.append(terms_of(self._stage.config, one.node, one.instance_type))
            found = Terms(machine.terms.billing_increment_s, machine.terms.on_demand_price)
            if not any(_are_equal(found, terms) for terms in fitting):
                yield f"{id_} of {one.node} is billed by {found}, bought at {fitting[0]}"


def _are_equal(some: Terms, others: Terms) -> bool:
    """But for how a float is rounded."""
    return some.increment == others.increment and isclose(some.on_demand, others.on_demand)


def overspent(stage: Stage, cloud: str) -> str:
    """The budget that was spent a while before a purchase in that cloud; "" if none was. By the
    machines on record: the least that the cloud and all public clouds cost this day.
    """
    found = stage.books.rows()
    if found is None or stage.books.lost_at >= 0 or len({*stage.skews}) > 1:
        return ""
    config, until = stage.config, stage.true_time() - DECIDED
    spent = dict.fromkeys((of.name for of in config.clouds), 0.0)
    for row in found[0].values():
        if row.cloud in spent:
            hours = (min(row.ended or until, until) - max(row.launched, T0)) / 3600
            spent[row.cloud] += max(hours, 0.0) * row.price
    public = [of.name for of in config.clouds if of.location is Location.PUBLIC]
    bounds = [(f"cloud:{cloud}", config.cloud(cloud).policies.budget, spent[cloud])]
    if cloud in public:
        bounds.append(("", config.policies.budget, sum(spent[name] for name in public)))
    for scope, budget, dollars in bounds:
        for key in ("per_day", "per_month"):
            bound = stage.books._most(scope, key, getattr(budget, key))
            if bound is not None and dollars > bound:
                return f"${dollars:.2f} of {scope or 'all clouds'} are spent, {key} is ${bound}"
    return ""
