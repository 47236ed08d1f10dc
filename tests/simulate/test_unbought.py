"""A result without a machine that was bought says why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.growth.capacity import Ratio
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario

RACK = PoolModel(name="rack", machines=2, standing=2, public=False, limited=False)
CLOUD = PoolModel(name="cloud", machines=4, price=1.0, boot=BootTimes(((1, 10),)))
TWO_WAIT = Jobs(Job(1, at, 100, 100, 2) for at in (0, 1, 2))
SITE = Scenario(pools=(RACK, CLOUD))


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        (
            replace(SITE, limits=Limits(nodes=1)),
            "pool cloud: 1 of 2 nodes are available now: the cluster",
        ),
        (
            replace(SITE, pools=(RACK, replace(CLOUD, machines=1))),
            "pool cloud: each of them needs more machines than it has (1)",
        ),
        (
            replace(SITE, pools=(RACK, replace(CLOUD, machines=0))),
            "pool cloud: the limits and markets of its cloud permit no machine",
        ),
        (
            replace(SITE, growth=Ratio(period=9999)),
            "pool cloud: the policy never asked for one",
        ),
        (replace(SITE, bounds=Bounds(per_day=0.0)), "pool cloud: the budgets and times of the day"),
    ],
)
def test_why_no_machine_was_bought(scenario: Scenario, why: str) -> None:
    found = simulate(TWO_WAIT, scenario).figures
    assert found.unbought.startswith("no machine was ever bought, although 2 jobs waited: " + why)


def test_nothing_is_said_where_one_was_bought_or_no_job_waited() -> None:
    assert not simulate(TWO_WAIT, SITE).figures.unbought
    alone = Jobs([Job(1, 0, 100, 100, 2)])
    assert not simulate(alone, replace(SITE, limits=Limits(nodes=0))).figures.unbought
    assert not simulate(TWO_WAIT, Scenario(pools=(RACK,))).figures.unbought


def test_a_job_that_no_pool_could_hold_waits_for_nothing() -> None:
    huge = Job(2, 200, 100, 100, 9)
    found = simulate(Jobs([Job(1, 0, 100, 100, 2), huge]), SITE).figures
    assert (found.unbought, found.too_large) == ("", 1)
    refused = replace(SITE, limits=Limits(nodes=1))
    found = simulate(Jobs([Job(1, 0, 100, 100, 2), Job(2, 1, 100, 100, 2), huge]), refused).figures
    assert "although 1 job waited" in found.unbought
