"""Chooses among several policies by their costs and waits in a simulation of the last weeks.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.base.units import brief, money

MIN_SAVING = 0.05
"""The share of the cost that a change must save. Policies that differ by less change places by
chance.
"""
WAIT_SLACK = 1.05
"""The factor by which waits must differ to count as different."""
PRESENT_SLACK = 1.1
"""The factor for the present policy, because a wait near the limit would else change the policy
each day.
"""
MIN_WAIT_S = 1.0


class PolicyOutcome(Struct, frozen=True, kw_only=True):
    """A policy's dollars and mean wait (s) for the ``jobs`` of the history, and how many jobs it
    never started.
    """

    policy: str
    cost: float
    wait: float
    jobs: int
    unserved: int = 0

    @property
    def text(self) -> str:
        """The figures for people."""
        return f"{self.policy} {money(self.cost)} and {brief(self.wait)} mean wait"


class NextPolicy(Struct, frozen=True, kw_only=True):
    """The policy to use, and why."""

    policy: str
    reason: str


def next_policy(
    outcomes: Sequence[PolicyOutcome], present: str, own: str, max_wait: float | None
) -> NextPolicy:
    """Return the cheapest policy whose mean wait is at most ``max_wait`` (None: that of the
    ``own`` policy of the configuration). The ``present`` policy stays unless another saves enough,
    or its waits are too long.
    """
    by_policy = {outcome.policy: outcome for outcome in outcomes}
    compared = ", ".join(outcome.text for outcome in outcomes)
    if present not in by_policy or own not in by_policy:
        return NextPolicy(
            policy=own, reason=f"the present policy could not be simulated: {compared}"
        )
    limit = max(by_policy[own].wait if max_wait is None else max_wait, MIN_WAIT_S)
    fewest_unserved = min(outcome.unserved for outcome in outcomes)
    quick = [
        outcome
        for outcome in outcomes
        if outcome.wait <= limit * (PRESENT_SLACK if outcome.policy == present else WAIT_SLACK)
        and outcome.unserved == fewest_unserved
    ]
    if quick:
        best = min(quick, key=lambda outcome: (outcome.cost, outcome.wait))
        rule = f"the cheapest with a mean wait of at most {brief(limit)}"
    else:
        best = min(outcomes, key=lambda outcome: (outcome.unserved, outcome.wait, outcome.cost))
        rule = f"the shortest wait, because none is within {brief(limit)}"
    current = by_policy[present]
    saves = current.cost - best.cost > MIN_SAVING * current.cost
    if best.policy != present and current in quick and not saves:
        rule = f"{best.policy} would not save {MIN_SAVING:.0%}"
        best = current
    jobs = f"{current.jobs:,} jobs of the last weeks"
    return NextPolicy(policy=best.policy, reason=f"{rule}; simulated for {jobs}: {compared}")
