"""Several runs at once give the figures of one after the other, and equal runs are done once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.policies.growth.capacity import OnDemand, SemiElastic
from slurm_elastic.policies.growth.release import Delayed, Idle
from slurm_elastic.simulate.bills.billing import Billing, Curve, Hourly, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies import together
from slurm_elastic.simulate.studies.kept import KeptResults
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


def test_kept_results_are_not_simulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, file, runs = history(50), tmp_path / "kept", []

    def counted(*arguments: object) -> object:
        runs.append(arguments)
        return simulate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(together, "simulate", counted)
    alone = [simulate(jobs, one).figures for one in OTHERS]
    first = figures_of(jobs, OTHERS, 0, kept=KeptResults(file, jobs, 0))
    assert [next(first), next(first)] == alone[:2]
    assert len(runs) == 2
    done: list[int] = []
    kept = KeptResults(file, jobs, 0)
    assert [*figures_of(jobs, OTHERS, 0, done.append, kept=kept)] == alone
    assert len(runs) == len(OTHERS)
    assert sum(done) >= 2 * len(jobs), "kept results count as progress"
    assert [*figures_of(jobs, OTHERS, 0, kept=KeptResults(file, jobs, 0))] == alone
    assert len(runs) == len(OTHERS)


def test_results_of_other_jobs_or_other_prices_are_not_taken(tmp_path: Path) -> None:
    def spot(*prices: float) -> Scenario:
        curve = Curve(list(range(0, 100 * len(prices), 100)), list(prices))
        pool = scenario(Idle(60), PerSecond()).pools[0]
        return Scenario(pools=(replace(pool, spot=SpotMarket(curve, bid=0.4, notice=120)),))

    jobs, file = history(20), tmp_path / "kept"
    kept = KeptResults(file, jobs, 0)
    kept.put(spot(0.1, 0.2), simulate(jobs, OTHERS[0]).figures)
    assert KeptResults(file, jobs, 0).get(spot(0.1, 0.2)) is not None
    assert KeptResults(file, jobs, 0).get(spot(0.1, 0.3)) is None
    assert KeptResults(file, history(21), 0).get(spot(0.1, 0.2)) is None
    assert KeptResults(file, jobs, 60).get(spot(0.1, 0.2)) is None


def test_a_line_that_an_interruption_cut_off_is_simulated_again(tmp_path: Path) -> None:
    jobs, file = history(20), tmp_path / "kept"
    figures = simulate(jobs, OTHERS[0]).figures
    for one in OTHERS[:2]:
        KeptResults(file, jobs, 0).put(one, figures)
    file.write_bytes(file.read_bytes()[:-9])
    kept = KeptResults(file, jobs, 0)
    assert (kept.get(OTHERS[0]), kept.get(OTHERS[1])) == (figures, None)
    kept.put(OTHERS[1], figures)
    assert KeptResults(file, jobs, 0).get(OTHERS[1]) == figures


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ClusterName=tiny\nAuthType=auth/munge", "line 1 is no result of a search"),
        ("ClusterName=tiny", "the last line is no result of a search"),
    ],
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "slurm.conf"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        KeptResults(file, history(20), 0)
    assert file.read_text() == text
