"""What is not used now and why: offers that cool down, pools whose machines fail, held nodes. Pure
functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.watch import causes
from slurm_elastic.watch.view.next_action import BOOTING, HELD, IDLE, IN_USE, POWERED_DOWN
from slurm_elastic.watch.view.rows import BreakerView, CoolDownView, Facts, HoldView

_WEAKEST_FIRST = (CAPACITY, POLICY, OPERATOR)
_USED = frozenset({IN_USE, IDLE, BOOTING})


def foremost(holds: Iterable[Exclusion]) -> dict[str, Exclusion]:
    """One hold a node: an operator's goes before others."""
    return {h.scope: h for h in sorted(holds, key=lambda h: _WEAKEST_FIRST.index(h.kind))}


def holds(
    facts: Facts,
    held: Iterable[Exclusion],
    state_of: Mapping[str, str],
) -> tuple[HoldView, ...]:
    """Those of one cause and end together, without nodes that jobs still have or may get."""
    groups: defaultdict[tuple[str, AnyCause, float, str], list[str]] = defaultdict(list)
    for hold in held:
        if state_of.get(hold.scope) not in _USED:
            until = hold.until if hold.kind == CAPACITY else 0.0
            groups[hold.pool, hold.cause, until, hold.kind].append(hold.scope)
    return tuple(
        HoldView(
            pool=pool,
            nodes=compress(names),
            count=len(names),
            reason=str(cause),
            until=until,
            left=max(0.0, until - facts.now),
            kind=kind,
            cause=causes.of(cause),
        )
        for (pool, cause, until, kind), names in groups.items()
    )


def shut(states: Mapping[str, int], pool: str, held: Iterable[Exclusion]) -> str:
    """Why none of its nodes that are off may start; "" where one may, or nothing is held."""
    if states.get(POWERED_DOWN) or not states.get(HELD):
        return ""
    return next((str(hold.cause) for hold in held if hold.pool == pool), "")


def cool_down(one: Exclusion, now: float) -> CoolDownView:
    """An offer, a market, a cloud."""
    return CoolDownView(
        key=one.scope,
        code=one.code,
        reason=str(one.cause),
        strikes=one.count,
        until=one.until,
        left=one.until - now,
        cause=causes.of_cool_down(one),
    )


def breaker(one: Exclusion, config: Config, facts: Facts) -> BreakerView:
    """A pool whose machines fail."""
    now = facts.now
    how = one.cause if isinstance(one.cause, BootsFailed) else BootsFailed()
    taken_out = bool(how.node_reason)
    return BreakerView(
        pool=one.scope,
        failures=one.count,
        limit=config.timings.boot_failures,
        until=one.until or None,
        left=max(0.0, one.until - now) if one.until else None,
        how=str(replace(how, in_a_row=0)) if taken_out else "booted but never registered",
        node_reason=how.node_reason,
        remedy=how.remedy,
        paid=0.0 if taken_out else _paid(one, facts),
    )


def _paid(one: Exclusion, facts: Facts) -> float:
    """Dollars for the last machines of the pool that ended and had never registered."""
    failed = [
        machine
        for machine in facts.machines
        if machine.pool == one.scope and machine.registered_at is None and machine.has_ended
    ]
    failed.sort(key=lambda machine: machine.instance.launched, reverse=True)
    return sum(machine.lease.cost(facts.now) for machine in failed[: one.count])
