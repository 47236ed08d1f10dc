"""Values of a simulation over time, as steps: (second, value from then on). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    FirstOf,
    Threshold,
    ThresholdStatic,
)
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.outcome import RunResult

Steps = list[tuple[int, float]]
POINTS = 2000  # more points than a picture can show


def machines(pool: PoolMachines) -> Steps:
    """Return the number of paid and standing machines."""
    return _running_sums((second, float(change)) for second, change in pool.leases.steps().items())


def queue(outcome: RunResult) -> Steps:
    """Return the number of jobs that wait for their first start, without jobs that never start."""
    changes = []
    for submitted, started in zip(outcome.jobs.submit, outcome.starts, strict=True):
        if started >= 0:
            changes += [(submitted, 1.0), (started, -1.0)]
    return _running_sums(changes)


def cost(outcome: RunResult) -> Steps:
    """Return the dollars paid until each second. The cost of a lease, and of a job's traffic, is
    spread over its time.
    """
    rates = []
    for pool in outcome.pools:
        for batch, end, dollars in pool.leases.costs():
            # At least one second, even if the cloud took the machine before paying began.
            begin = min(pool.batch_start[batch], end - 1)
            rates += [(begin, dollars / (end - begin)), (end, -dollars / (end - begin))]
    traffic = ((begin, max(end, begin + 1), cost) for begin, end, cost in outcome.traffic())
    for begin, end, dollars in (*outcome.unused_reservations, *traffic):
        rates += [(begin, dollars / (end - begin)), (end, -dollars / (end - begin))]
    steps: Steps = []
    total = rate = 0.0
    for when, now in _running_sums(rates):
        total += rate * (when - steps[-1][0]) if steps else 0.0
        steps.append((when, total))
        rate = now
    return steps


def thresholds(policy: AnyPolicy, market: SpotMarket) -> list[tuple[str, Steps]]:
    """Return the prices above which a checkpoint policy saves jobs, as (policy's text, steps).

    EC3's threshold depends on the machine; here it was launched at the first price, and its job was
    never saved. Empty if the policy watches no prices, or machines are not lost by price.
    """
    if isinstance(policy, FirstOf):
        return [
            entry for part_policy in policy.policies for entry in thresholds(part_policy, market)
        ]
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
    steps = [
        (when, _threshold_at(policy, market, begin, when)) for when in range(begin, end + 1, step)
    ]
    return [(text_of(policy), [(when, limit) for when, limit in steps if limit is not None])]


def _threshold_at(policy: Threshold, market: SpotMarket, begin: int, now: int) -> float | None:
    prices = market.prices(max(int(now - policy.period), begin), now)
    situation = Situation(
        job="", now=now, launched=begin, started=begin, prices=prices, bid=market.bid
    )
    return policy.threshold(situation)


def thinned(steps: Steps, max_steps: int = POINTS) -> Steps:
    """Return at most ``max_steps`` steps. Each has the highest value of its time slot, to keep
    peaks.
    """
    if len(steps) <= max_steps:
        return steps
    begin, end = steps[0][0], steps[-1][0]
    width = max((end - begin) / max_steps, 1.0)
    kept: Steps = []
    for when, value in steps:
        slot = int(begin + int((when - begin) / width) * width)
        if kept and kept[-1][0] == slot:
            kept[-1] = (slot, max(kept[-1][1], value))
        else:
            kept.append((slot, value))
    if kept[-1] != steps[-1]:
        kept.append(steps[-1])
    return kept


def _running_sums(changes: Iterable[tuple[int, float]]) -> Steps:
    steps: Steps = []
    total = 0.0
    for when, change in sorted(changes):
        total += change
        if steps and steps[-1][0] == when:
            steps[-1] = (when, total)
        else:
            steps.append((when, total))
    return steps
