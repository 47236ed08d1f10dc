"""``peak``: the most machines that are paid (or stand) at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from simulate.histories import histories

from slurm_elastic.policies.growth.capacity import AnyGrowth, Bursts, OnDemand, Slurm
from slurm_elastic.policies.growth.release import AtOnce, Idle
from slurm_elastic.simulate import series
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.scenario import Clock, PoolModel, Scenario


def test_machines_that_wait_for_their_turn_to_boot_are_not_paid() -> None:
    """Two begin every 10 s and run for 60 s, so 12 of the 20 are paid at a time."""
    jobs = Jobs(Job(number, 0, 50, 50, 1) for number in range(20))
    pool = PoolModel(
        name="cloud", machines=30, boot=BootTimes(((1, 10),)), release=AtOnce(), max_booting=2
    )
    figures = simulate(jobs, Scenario(pools=(pool,))).figures
    assert (figures.peak, figures.pools[0].peak, figures.pools[0].launched) == (12, 12, 20)


def test_a_machine_counts_from_the_moment_from_which_it_is_paid() -> None:
    """The second machine boots from 30 s to 60 s; the first is paid until 50 s."""
    jobs = Jobs([Job(1, 0, 20, 20, 1), Job(2, 5, 20, 20, 1)])
    boot = BootTimes(((1, 30),))
    for clock, most in ((Clock.REQUEST, 2), (Clock.READY, 1)):
        pool = PoolModel(
            name="cloud", machines=2, boot=boot, release=AtOnce(), clock=clock, max_booting=1
        )
        assert simulate(jobs, Scenario(pools=(pool,))).figures.peak == most


def test_the_peak_of_a_site_is_no_sum_of_peaks_at_other_times() -> None:
    """The small pool takes the first job, the large one the second, an hour later."""
    jobs = Jobs([Job(1, 0, 100, 100, 1), Job(2, 3600, 100, 100, 3)])
    pools = tuple(PoolModel(name=f"of {most}", machines=most, release=AtOnce()) for most in (1, 3))
    figures = simulate(jobs, Scenario(pools=pools)).figures
    assert [pool.peak for pool in figures.pools] == [1, 3]
    assert figures.peak == 3


@given(
    histories,
    st.integers(1, 3),
    st.integers(1, 60),
    st.sampled_from([Slurm(), OnDemand(), Bursts(waste=20)]),
    st.sampled_from([Idle(30), Idle(300)]),
    st.sampled_from([Clock.REQUEST, Clock.READY]),
)
def test_no_more_are_paid_than_could_boot_until_then(
    history: Jobs, cap: int, boot: int, growth: AnyGrowth, release: Idle, clock: Clock
) -> None:
    pool = PoolModel(
        name="cloud", machines=50, boot=BootTimes(((1, boot),)), release=release,
        max_booting=cap, clock=clock,
    )  # fmt: skip
    outcome = simulate(history, Scenario(pools=(pool,), growth=growth))
    (machines,) = outcome.pools
    rows = [
        (machines.batch_start[batch], end, count) for batch, end, count, _ in machines.leases.rows()
    ]
    first = min((start for start, _, _ in rows), default=0)
    paid = [
        (second, sum(count for start, end, count in rows if start <= second < end))
        for second in {start for start, _, _ in rows}
    ]
    assert outcome.figures.peak == max((count for _, count in paid), default=0)
    steps = series.machines(machines)
    assert outcome.figures.peak == max((count for _, count in steps), default=0)
    assert all(count <= cap * ((second - first) // boot + 1) for second, count in paid)
