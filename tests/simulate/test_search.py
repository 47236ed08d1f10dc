"""Which policies are tried, and which are worth a look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.studies.search import Tried, apart, front, grid, neighbours, within

FIGURES: Figures = simulate(
    Jobs([Job(1, 0, 10, 10, 1)]), Scenario(pools=(PoolModel(name="p", machines=1, procs=1),))
).figures


def tried(*points: tuple[float, float]) -> list[Tried]:
    return [
        Tried(policy=f"p{i}", figures=replace(FIGURES, cost=cost, mean_wait=wait))
        for i, (cost, wait) in enumerate(points)
    ]


def names(found: list[Tried]) -> list[str]:
    return [one.policy for one in found]


def test_what_is_beaten_in_both_is_not_on_the_front() -> None:
    points = tried((10, 5), (5, 10), (11, 6), (5, 12), (5, 10), (20, 1))
    assert names(front(points)) == ["p1", "p0", "p5"]


def test_a_policy_that_leaves_jobs_out_is_no_choice() -> None:
    some = tried((5, 10), (1, 1), (20, 1), (2, 2))
    points = [
        some[0],
        replace(some[1], figures=replace(some[1].figures, unserved=64)),
        some[2],
        replace(some[3], figures=replace(some[3].figures, too_large=1)),
    ]
    assert names(front(points)) == ["p0", "p2"]
    assert within(points, None, None) in (some[0], some[2])
    assert within(points, 10, None) == some[0]
    assert names(front(points[1:2])) == ["p1"], "all leave as many out"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1))
def test_everything_is_on_the_front_or_beaten_by_it(points: list[tuple[int, int]]) -> None:
    everything = tried(*((float(c), float(w)) for c, w in points))
    best = front(everything)
    for one in everything:
        assert any(
            other.figures.cost <= one.figures.cost
            and other.figures.mean_wait <= one.figures.mean_wait
            for other in best
        )


def test_policies_as_good_as_the_one_above_are_no_line_more() -> None:
    points = tried((100, 900), (100.2, 899), (100.4, 898), (100.8, 890), (200, 889), (200.1, 888))
    assert names(apart(points)) == ["p0", "p3", "p4", "p5"]
    assert names(apart(points, keep=(points[2], None))) == ["p0", "p2", "p3", "p4", "p5"]


def test_the_best_within_a_limit() -> None:
    points = tried((1, 100), (5, 20), (9, 3), (50, 1))
    assert within(points, 20, None) == points[1]
    assert within(points, 0.5, None) is None
    assert within(points, None, 9) == points[2]
    assert within(points, None, 0.5) is None
    assert within(points, None, None) == points[2]
    assert within([], None, None) is None


def test_neighbours_halve_and_double_each_number_once() -> None:
    policy = "semi_elastic(wait_limit=300, size=first)+idle(60)"
    assert neighbours([policy, policy], [policy]) == [
        "semi_elastic(wait_limit=150, size=first)+idle(60)",
        "semi_elastic(wait_limit=600, size=first)+idle(60)",
        "semi_elastic(wait_limit=300, size=first)+idle(30)",
        "semi_elastic(wait_limit=300, size=first)+idle(120)",
    ]
    assert neighbours(["ratio(slots=1)+idle(1)"], ["ratio(slots=2)+idle(1)"]) == [
        "ratio(slots=1)+idle(2)"
    ]
    assert neighbours(["slurm"], []) == []


def test_the_grid_names_each_policy_once() -> None:
    assert len(set(grid())) == len(grid())
