"""Several runs at once give the figures of one after the other, and equal runs are done once."""

from __future__ import annotations

import random

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.policies.growth.capacity import OnDemand, SemiElastic
from slurm_elastic.policies.growth.release import Delayed, Idle
from slurm_elastic.simulate.bills.billing import Billing, Hourly, PerSecond
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies import together
from slurm_elastic.simulate.studies.together import MIN_JOBS, figures_of, plain


def history(count: int) -> Jobs:
    draw = random.Random(7)
    submit, jobs = 0, []
    for number in range(1, count + 1):
        submit += draw.randrange(0, 400)
        run = draw.randrange(1, 5000)
        jobs.append(Job(number, submit, run, run + draw.randrange(0, 900), draw.choice((1, 2, 4))))
    return Jobs(jobs)


def scenario(release: Idle | Delayed, billing: Billing, growth: object = None) -> Scenario:
    pool = PoolModel(
        name="p", machines=40, procs=2, price=0.5, billing=billing, release=release, check=30
    )
    return Scenario(pools=(pool,), growth=growth or OnDemand())  # type: ignore[arg-type]


TWINS = [
    scenario(Idle(600), PerSecond()), scenario(Delayed(before_end=60), PerSecond()),
    scenario(Delayed(before_end=180), PerSecond()),
]  # fmt: skip
OTHERS = [
    scenario(Idle(60), PerSecond()), scenario(Idle(600), Hourly()),
    scenario(Delayed(before_end=60), Hourly()),
    scenario(Idle(600), PerSecond(), SemiElastic(wait_limit=300)),
]  # fmt: skip


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_the_figures_are_those_of_one_run_after_the_other(cores: int) -> None:
    jobs = history(MIN_JOBS)
    alone = [simulate(jobs, one).figures for one in (*TWINS, *OTHERS)]
    done: list[int] = []
    assert [*figures_of(jobs, [*TWINS, *OTHERS], 0, done.append, cores)] == alone
    assert sum(done) == (1 + len(OTHERS)) * len(jobs)
    assert alone[0] == alone[1] == alone[2]


def test_equal_runs_are_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, runs = history(50), []

    def counted(jobs: Jobs, one: Scenario, *rest: object) -> object:
        runs.append(one)
        return simulate(jobs, one, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(together, "simulate", counted)
    list(figures_of(jobs, [*OTHERS, *TWINS, *OTHERS], 0))
    assert runs == [*map(plain, OTHERS), plain(TWINS[0])]


def test_an_error_of_a_run_comes_from_its_process() -> None:
    wrong = Scenario(pools=(PoolModel(name="p", machines=-1),))
    with pytest.raises(SlurmElasticError):
        list(figures_of(history(MIN_JOBS), [TWINS[0], wrong], 0, None, 2))
