"""Recognises scenarios that the compiled engine does not model. Python's engine replays them."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.policies.checkpoint.checkpoint import Never
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.ending import ends_of
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.scenario import Scenario

ORDERS = (IdleOrder.MAX_MARGIN, IdleOrder.MIN_MARGIN, IdleOrder.MAX_IDLE, IdleOrder.MIN_IDLE)
_MAX_POOLS = 100
_MAX_CORES = 1 << 16


def unmodelled(jobs: Jobs, scenario: Scenario) -> str:
    """Return why the compiled engine cannot replay these jobs; empty if it can."""
    return next(_reasons(jobs, scenario), "")


def _reasons(jobs: Jobs, scenario: Scenario) -> Iterator[str]:
    saves = not isinstance(scenario.checkpoints.policy, Never)
    rules = {
        "several jobs have reservations": scenario.reservations > 1,
        "accounts or users have budgets": bool(scenario.payers),
        "a spent budget closes machines": scenario.finishes and _has_budget(scenario.bounds),
        "idle machines are used in another order": scenario.order not in ORDERS,
    }
    yield from (text for text, is_so in rules.items() if is_so)
    for pool in scenario.pools:
        of_pool = {
            "idle machines are kept": bool(pool.min_idle),
            "its cloud ends machines of a capacity block": bool(ends_of(pool.sold)),
            "jobs are saved on its spot machines": saves and pool.on_spot,
            "its machines have too many processors": pool.procs > _MAX_CORES,
        }
        yield from (f"pool {pool.name}: {text}" for text, is_so in of_pool.items() if is_so)
    if len(scenario.pools) > _MAX_POOLS:
        yield "there are too many pools"
    if min(jobs.procs, default=1) < 1 or min(jobs.memory, default=0) < 0:
        yield "a job needs less than nothing"


def _has_budget(bounds: Bounds) -> bool:
    return bounds.per_day is not None or bounds.per_month is not None
