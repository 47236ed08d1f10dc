"""Who starts when on a fixed number of nodes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from simulate.histories import histories, plain

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.simulate.engine import Engine, simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.queues import easy
from slurm_elastic.simulate.queues.easy import starts
from slurm_elastic.simulate.scenario import PoolModel, Scenario

NODES = 8
STATIC = Scenario(pools=(PoolModel(name="rack", machines=NODES, standing=NODES, public=False),))


def jobs(*rows: tuple[int, int, int, int]) -> Jobs:
    """(submit, run, limit, nodes)."""
    return Jobs(Job(i, s, r, limit, n) for i, (s, r, limit, n) in enumerate(rows))


def test_a_short_job_slips_in_before_a_reservation_and_a_long_one_does_not() -> None:
    found = starts(jobs((0, 100, 100, 6), (1, 50, 50, 8), (2, 90, 90, 2), (3, 99, 99, 2)), 8)
    assert list(found) == [0, 100, 2, 150]


def test_a_long_job_runs_beside_the_head_on_what_the_head_leaves() -> None:
    found = starts(jobs((0, 100, 100, 6), (1, 50, 50, 6), (2, 900, 900, 2), (3, 900, 900, 1)), 8)
    assert list(found) == [0, 100, 2, 150]


def test_all_that_is_released_at_the_shadow_counts() -> None:
    found = starts(jobs((0, 100, 100, 4), (0, 100, 100, 3), (1, 9, 9, 5), (2, 500, 500, 1)), 8)
    assert list(found) == [0, 0, 100, 2]


def test_a_job_beyond_its_limit_holds_the_head_up_but_not_the_others() -> None:
    found = starts(jobs((0, 100, 10, 7), (1, 10, 10, 8), (50, 5, 5, 1)), 8)
    assert list(found) == [0, 100, 110]


def test_an_end_comes_before_an_arrival_of_the_same_second() -> None:
    assert list(starts(jobs((0, 10, 10, 8), (10, 5, 5, 8)), 8)) == [0, 10]


def within_limits(history: Jobs) -> Jobs:
    """As the reader makes them: no job beyond its limit."""
    return Jobs(
        job._replace(limit=max(job.limit, job.run, 1))
        for job in map(history.__getitem__, range(len(history)))
    )


@given(histories)
def test_the_fast_path_and_the_engine_agree_with_the_plain_rule(history: Jobs) -> None:
    history = within_limits(history)
    expected = plain(history, NODES)
    assert list(starts(history, NODES)) == expected
    assert list(Engine(history, STATIC).run().starts) == expected


@given(histories)
def test_the_fast_path_and_the_engine_agree_on_jobs_beyond_their_limits(history: Jobs) -> None:
    assert starts(history, NODES) == Engine(history, STATIC).run().starts


@given(histories, st.sampled_from([None, 500, 5, 1]), st.integers(1, 3))
def test_a_site_that_never_grows_is_simulated_fast_with_the_same_books(
    history: Jobs, depth: int | None, procs: int
) -> None:
    """Also where a cloud could be used but is not: it has no machine."""
    rack = replace(STATIC.pools[0], procs=procs)
    cloud = PoolModel(name="cloud", machines=0, price=1.0)
    scenario = Scenario(pools=(cloud, rack), depth=depth)
    plain, fast = Engine(history, scenario).run(), simulate(history, scenario)
    figures = replace(fast.figures, unbought="")  # which is told of either
    assert (fast.starts, fast.ends, figures) == (plain.starts, plain.ends, plain.figures)
    assert fast.paid_steps(1) == plain.paid_steps(1)


def test_the_command_goes_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("slurm_elastic.simulate.engine._engine")
    history = jobs((0, 100, 100, 6), (1, 50, 50, 8), (2, 90, 90, 2))
    assert list(simulate(history, STATIC).starts) == [0, 100, 2]
    with pytest.raises(NameError):
        simulate(history, replace(STATIC, depth=1))


def test_books_that_use_a_node_twice_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(easy, "starts", lambda *_: array("q", [0, 1]))
    with pytest.raises(SlurmElasticError, match="9 of 8 machines were used at 1"):
        simulate(jobs((0, 100, 100, 6), (1, 50, 50, 3)), STATIC)


@given(histories, st.integers(2, 5))
@settings(max_examples=60)
def test_several_reservations_agree_with_the_plain_rule(history: Jobs, reservations: int) -> None:
    history = within_limits(history)
    scenario = replace(STATIC, reservations=reservations)
    assert list(simulate(history, scenario).starts) == plain(history, NODES, reservations)


@given(histories)
def test_without_backfill_the_order_is_kept(history: Jobs) -> None:
    found = list(simulate(history, replace(STATIC, depth=1)).starts)
    assert found == plain(history, NODES, backfill=False)
    assert found == sorted(found)


@given(histories, st.integers(8, 12))
def test_more_machines_never_raise_the_wait_of_a_queue_without_backfill(
    history: Jobs, more: int
) -> None:
    larger = Scenario(
        pools=(PoolModel(name="rack", machines=more, standing=more, public=False),), depth=1
    )
    few = simulate(history, replace(STATIC, depth=1)).starts
    many = simulate(history, larger).starts
    assert all(b <= a for a, b in zip(few, many, strict=True))
