"""The course of a simulation over time, as steps: (second, value from then on). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    FirstOf,
    Situation,
    Threshold,
    ThresholdStatic,
)
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.market import SpotMarket
from slurm_elastic.simulate.outcome import RunResult

Steps = list[tuple[int, float]]
POINTS = 2000  # more points than a picture can show


def machines(pool: PoolMachines) -> Steps:
    """Machines that were paid for, or stood there."""
    changes = []
    for batch, end, count, _ in pool.leases.rows():
        start = pool.batch_start[batch]
        if start <= end:
            changes += [(start, float(count)), (end, float(-count))]
    return _summed(changes)


def queue(outcome: RunResult) -> Steps:
    """Jobs that waited for their first start; those that never started are left out."""
    changes = []
    for submitted, started in zip(outcome.jobs.submit, outcome.starts, strict=True):
        if started >= 0:
            changes += [(submitted, 1.0), (started, -1.0)]
    return _summed(changes)


def cost(outcome: RunResult) -> Steps:
    """Dollars paid until then; the cost of a lease is spread over its time."""
    rates = []
    for pool in outcome.pools:
        for batch, end, count, reclaimed in pool.leases.rows():
            dollars = count * pool.leases.bill(batch, end, reclaimed=bool(reclaimed))[1]
            # A second at least, also of a lease that was cut off before its bill began.
            begin = min(pool.batch_start[batch], end - 1)
            rates += [(begin, dollars / (end - begin)), (end, -dollars / (end - begin))]
    found: Steps = []
    total = rate = 0.0
    for when, now in _summed(rates):
        total += rate * (when - found[-1][0]) if found else 0.0
        found.append((when, total))
        rate = now
    return found


def thresholds(policy: AnyPolicy, market: SpotMarket) -> list[tuple[str, Steps]]:
    """The prices above which a checkpoint policy saves jobs, by the policy's text. EC3's threshold
    is that of a machine that was launched at the first price and has not been saved since. Nothing
    for policies that watch no price, or if no price takes a machine.
    """
    if isinstance(policy, FirstOf):
        return [found for one in policy.policies for found in thresholds(one, market)]
    begin, end = market.curve.times[0], market.curve.times[-1]
    if market.bid is None:
        return []
    if isinstance(policy, ThresholdStatic):
        edge = (1 - policy.band) * market.bid
        return [(text_of(policy), [(begin, edge), (end, edge)])]
    if not isinstance(policy, Threshold):
        return []
    period = max(round(policy.period), 1)
    step = period * max((end - begin) // period // POINTS, 1)
    steps = [(when, _limit(policy, market, begin, when)) for when in range(begin, end + 1, step)]
    return [(text_of(policy), [(when, limit) for when, limit in steps if limit is not None])]


def _limit(policy: Threshold, market: SpotMarket, begin: int, now: int) -> float | None:
    prices = market.prices(max(int(now - policy.period), begin), now)
    situation = Situation(
        job="", now=now, launched=begin, started=begin, prices=prices, bid=market.bid
    )
    return policy.threshold(situation)


def thinned(steps: Steps, most: int = POINTS) -> Steps:
    """At most ``most`` steps: the highest value of each stretch of time, so that peaks stay."""
    if len(steps) <= most:
        return steps
    first, last = steps[0][0], steps[-1][0]
    width = max((last - first) / most, 1.0)
    found: Steps = []
    for when, value in steps:
        slot = int(first + int((when - first) / width) * width)
        if found and found[-1][0] == slot:
            found[-1] = (slot, max(found[-1][1], value))
        else:
            found.append((slot, value))
    if found[-1] != steps[-1]:
        found.append(steps[-1])
    return found


def _summed(changes: Iterable[tuple[int, float]]) -> Steps:
    steps: Steps = []
    total = 0.0
    for when, change in sorted(changes):
        total += change
        if steps and steps[-1][0] == when:
            steps[-1] = (when, total)
        else:
            steps.append((when, total))
    return steps
