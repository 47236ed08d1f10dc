"""Rows about offers that cool down, pools whose machines fail and held nodes. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.pool_failures import BootsFailed, ended_by_others
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.watch import causes
from slurm_elastic.watch.view.next_action import (
    BOOTING,
    HELD,
    IDLE,
    IN_USE,
    POWERED_DOWN,
)
from slurm_elastic.watch.view.rows import BreakerView, CoolDownView, Facts, HoldView

# A later row replaces an earlier one of the same node, so the strongest kind comes last.
_WEAKEST_FIRST = (CAPACITY, POLICY, OPERATOR)
_USED = frozenset({IN_USE, IDLE, BOOTING})


def strongest_holds(holds: Iterable[Exclusion]) -> dict[str, Exclusion]:
    """Return one hold for each node; an operator's hold goes before the others."""
    return {h.scope: h for h in sorted(holds, key=lambda h: _WEAKEST_FIRST.index(h.kind))}


def holds(
    facts: Facts,
    held: Iterable[Exclusion],
    state_of: Mapping[str, str],
) -> tuple[HoldView, ...]:
    """Group the holds by cause and end, without nodes that jobs still use or may get."""
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
            cause=causes.cause_of_hold(cause),
        )
        for (pool, cause, until, kind), names in groups.items()
    )


def shut_reason(pool: Pool, state_of: Mapping[str, str], holds: Iterable[Exclusion]) -> str:
    """Return why no powered-down node of the pool may start; "" if any node may start, or if no
    node is held.
    """
    states = {state_of.get(node) for node in pool.nodes}
    if POWERED_DOWN in states or HELD not in states:
        return ""
    # A growth policy starts the nodes that it holds as soon as jobs need them.
    barred = [hold for hold in holds if hold.pool == pool.name and hold.cause != GrowthStartsIt()]
    barred_nodes = {hold.scope for hold in barred}
    if any(state_of.get(node) == HELD and node not in barred_nodes for node in pool.nodes):
        return ""
    strongest = max(barred, key=lambda hold: _WEAKEST_FIRST.index(hold.kind), default=None)
    return "" if strongest is None else str(strongest.cause)


def cool_down(exclusion: Exclusion, now: float) -> CoolDownView:
    """Return the row of an offer, market or cloud that cools down."""
    return CoolDownView(
        key=exclusion.scope,
        code=exclusion.code,
        reason=str(exclusion.cause),
        strikes=exclusion.count,
        until=exclusion.until,
        left=exclusion.until - now,
        cause=causes.cause_of_cool_down(exclusion),
    )


def breaker(exclusion: Exclusion, config: Config, facts: Facts) -> BreakerView:
    """Return the row of a pool whose machines fail."""
    now = facts.now
    failure = exclusion.cause if isinstance(exclusion.cause, BootsFailed) else BootsFailed()
    taken_out = failure.is_after_registration
    return BreakerView(
        pool=exclusion.scope,
        failures=exclusion.count,
        limit=config.timings.max_boot_failures,
        until=exclusion.until or None,
        left=max(0.0, exclusion.until - now) if exclusion.until else None,
        how=_how(failure, exclusion.count) if taken_out else "booted but never registered",
        node_reason=failure.node_reason,
        remedy=failure.remedy,
        paid=0.0 if taken_out else _paid(exclusion, facts),
        console="" if taken_out else facts.consoles.get(exclusion.scope, ""),
    )


def _how(failure: BootsFailed, count: int) -> str:
    """Return the end of a sentence about ``count`` machines. The remedy has a field of its own."""
    if failure.ended_by_others:
        return ended_by_others(count)
    return f"{'was' if count == 1 else 'were'} taken out of service by Slurm: {failure.node_reason}"


def _paid(exclusion: Exclusion, facts: Facts) -> float:
    """Return the dollars for the pool's last failed machines, which ended without registering."""
    failed = [
        machine
        for machine in facts.machines
        if machine.pool == exclusion.scope and machine.registered_at is None and machine.has_ended
    ]
    failed.sort(key=lambda machine: machine.instance.launched, reverse=True)
    return sum(machine.lease.cost(facts.now) for machine in failed[: exclusion.count])
