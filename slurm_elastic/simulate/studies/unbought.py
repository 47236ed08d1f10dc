"""Explains why a simulated site never bought a machine although jobs waited. Without any purchase
the result compares no policies, so this is reported first.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.policies.money.bounds import UNBOUNDED
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.queues.queueing import too_large
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.shared_machines import machines_needed


def unbought(scenario: Scenario, outcome: RunResult) -> str:
    """Return a sentence; "" if a machine was bought, no job waited, or all machines stand."""
    pairs = zip(scenario.pools, outcome.figures.pools, strict=True)
    if any(figures.launched > pool.standing for pool, figures in pairs):
        return ""
    if all(0 < pool.machines == pool.standing for pool in scenario.pools):
        return ""  # nothing to buy
    never = _too_large(scenario, outcome)
    waited = [
        job
        for job, (start, submit) in enumerate(zip(outcome.starts, outcome.jobs.submit, strict=True))
        if not 0 <= start <= submit and job not in never
    ]
    if not waited:
        return ""
    reasons = "; ".join(_reasons(scenario, outcome, waited))
    jobs = "1 job" if len(waited) == 1 else f"{len(waited):,} jobs"
    return reasons and f"no machine was ever bought, although {jobs} waited: {reasons}"


def _too_large(scenario: Scenario, outcome: RunResult) -> frozenset[int]:
    """Return the jobs too large for all pools; another sentence reports them. Empty if a
    pool may have no machines at all, because that may be why they are too large.
    """
    if not outcome.figures.too_large or not all(pool.machines for pool in scenario.pools):
        return frozenset()
    needs = [machines_needed(outcome.jobs, pool) for pool in scenario.pools]
    return too_large(needs, outcome.pools)


def _reasons(scenario: Scenario, outcome: RunResult, waited: list[int]) -> Iterator[str]:
    for index, pool in enumerate(scenario.pools):
        if pool.machines and pool.machines == pool.standing:
            continue
        yield f"pool {pool.name}: {_reason(index, pool, scenario, outcome, waited)}"


def _reason(
    index: int, pool: PoolModel, scenario: Scenario, outcome: RunResult, waited: list[int]
) -> str:
    if not pool.machines:
        return "the limits and markets of its cloud permit no machine"
    needs = machines_needed(outcome.jobs, pool)
    least = min(needs[job] for job in waited)
    if least > pool.machines:
        return f"each of them needs more machines than it has ({pool.machines:,})"
    refused = outcome.refusals.get(index)
    if refused:
        return refused
    if scenario.bounds != UNBOUNDED or scenario.payers:
        return "the budgets and times of the day left no room, or the policy never asked for one"
    return "the policy never asked for one"
