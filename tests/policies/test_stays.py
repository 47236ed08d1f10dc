"""For how long the machines of a growth policy must stay."""

from __future__ import annotations

from slurm_elastic.policies.growth.capacity import Demand, OnDemand, Ratio, Waiting
from slurm_elastic.policies.growth.stays import stays

QUEUE = (Waiting(2, 600, 0), Waiting(1, 7200, 0), Waiting(1, 60, 0))


def demand(**fields: object) -> Demand:
    return Demand(now=0, queue=QUEUE, **fields)  # type: ignore[arg-type]


def test_the_first_machines_are_for_the_first_jobs_and_the_others_for_none() -> None:
    assert stays(6, OnDemand(), demand(fresh=QUEUE)) == (600, 600, 7200, 60, 0, 0)
    assert stays(2, OnDemand(), demand(fresh=QUEUE)) == (600, 600)


def test_jobs_for_which_growth_was_decided_before_have_their_machines() -> None:
    assert stays(2, OnDemand(), demand(fresh=QUEUE[2:])) == (60, 0)


def test_where_all_jobs_were_counted_the_machines_are_for_the_first() -> None:
    assert stays(3, OnDemand(), demand()) == (600, 600, 7200)


def test_an_idle_machine_may_take_the_first_job() -> None:
    assert stays(3, OnDemand(), demand(fresh=QUEUE, idle=1)) == (600, 7200, 7200)


def test_a_booting_machine_may_take_a_job_that_is_counted_again() -> None:
    assert stays(3, OnDemand(), demand(fresh=QUEUE, booting=1)) == (600, 600, 7200)
    assert stays(3, Ratio(), demand(fresh=QUEUE, booting=1)) == (600, 7200, 7200)
