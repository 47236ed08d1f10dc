"""The fleet of the busiest moment, which an always-on cluster would have all the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.money.always_on import Fleet, RunningSpan, busiest_fleet

HOUR = 3_600_000
spans = st.lists(
    st.builds(
        RunningSpan, st.integers(0, 50), st.integers(0, 50), st.integers(0, 5)
    ),
    max_size=8,
)  # fmt: skip


def test_the_busiest_moment_is_the_dearest_one() -> None:
    cheap = [RunningSpan(0, HOUR, 100_000) for _ in range(3)]
    dear = RunningSpan(2 * HOUR, 3 * HOUR, 400_000)
    found = busiest_fleet([*cheap, dear], 0, 10 * HOUR)
    assert found == Fleet(at=7200.0, machines=1, micro_per_hour=400_000)
    assert found.micro(0.0, 36_000.0) == 4_000_000


def test_a_machine_and_its_successor_do_not_run_together() -> None:
    found = busiest_fleet([RunningSpan(0, HOUR, 7), RunningSpan(HOUR, 2 * HOUR, 7)], 0, 9 * HOUR)
    assert found == Fleet(at=0.0, machines=1, micro_per_hour=7)


def test_machines_that_cost_nothing_or_ran_before_make_no_fleet() -> None:
    assert busiest_fleet([RunningSpan(0, HOUR, 0), RunningSpan(0, 10, 5)], 10, HOUR) is None


@given(spans, st.integers(0, 50), st.integers(0, 50))
def test_it_is_the_dearest_of_all_moments(ran: list[RunningSpan], since: int, until: int) -> None:
    by_moment = {
        moment: [s.micro_per_hour for s in ran if s.begin <= moment < s.end]
        for moment in range(since, until)
    }
    dearest = max(map(sum, by_moment.values()), default=0)
    found = busiest_fleet(ran, since, until)
    assert (found.micro_per_hour if found else 0) == dearest
    if found:
        costly = [price for price in by_moment[round(found.at * 1000)] if price]
        assert (sum(costly), len(costly)) == (dearest, found.machines)
