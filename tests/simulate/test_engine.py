"""Machines that come and go, are paid and are taken away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from simulate.histories import histories

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.cluster import Limits
from slurm_elastic.policies.checkpoint.checkpoint import (
    Daly,
    FirstOf,
    Hour,
    Never,
    OnNotice,
    Threshold,
)
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
    SteadyStream,
)
from slurm_elastic.policies.growth.release import AtOnce, Delayed, Flagged, Idle, IdleOrder
from slurm_elastic.policies.money.bounds import Bounds, Window
from slurm_elastic.simulate import core
from slurm_elastic.simulate.bills.billing import Curve, Hourly, PerSecond
from slurm_elastic.simulate.bills.market import SpotMarket
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.queues.idle_set import idle_machines
from slurm_elastic.simulate.scenario import Clock, CoolDownTimes, PoolModel, Scenario, Sold

CLOUD = PoolModel(
    name="cloud", machines=20, price=1.0, boot=BootTimes(((1, 100),)), release=Idle(600)
)
RACK = PoolModel(name="rack", machines=2, standing=2, public=False)
DAYS = 86400


def jobs(*rows: tuple[int, int, int]) -> Jobs:
    """(submit, run, nodes), the limit as long as the run."""
    return Jobs(Job(i, s, r, r, n) for i, (s, r, n) in enumerate(rows))


def one(pool: PoolModel, history: Jobs, **changes: object) -> RunResult:
    return simulate(history, replace(Scenario(pools=(pool,)), **changes))


def test_a_job_waits_for_its_machines_and_the_next_one_gets_them_at_once() -> None:
    found = one(CLOUD, jobs((0, 50, 2), (200, 50, 2), (2000, 50, 1)))
    assert list(found.starts) == [100, 200, 2100]
    assert found.figures.pools[0].launched == 3
    assert found.figures.cost == pytest.approx((2 * 850 + 750) / 3600)


def test_a_job_takes_idle_machines_and_boots_only_what_it_lacks() -> None:
    found = one(CLOUD, jobs((0, 50, 2), (200, 50, 5)))
    assert list(found.starts) == [100, 300]
    assert found.figures.pools[0].launched == 5


def test_any_number_of_pools_and_launches_has_room_in_an_event_and_in_the_idle_machines() -> None:
    small = [replace(CLOUD, name=f"small{number}", machines=1) for number in range(300)]
    found = simulate(
        jobs((0, 50, 2)), Scenario(pools=(*small, CLOUD), growth=OnDemand(period=None))
    )
    assert list(found.starts) == [100]
    many = 1 << 24
    starts = cast("Sequence[int]", defaultdict(int))
    idle = idle_machines(IdleOrder.MAX_MARGIN, starts, 3600, 0, sinces=True)
    idle.put(many, 1, 5)
    assert idle.entries() == [(many, 5, 1)]


def test_of_machines_that_boot_together_only_as_many_are_lost_as_there_is_no_room_for() -> None:
    """One of two goes at 30; the other boots on for whoever comes first."""
    spot = SpotMarket(Curve.flat(0.1), available=((0, 2), (30, 1)))
    pool = replace(CLOUD, spot=spot, boot=BootTimes(((1, 60),)), release=Idle(6000))
    found = simulate(jobs((0, 100, 2)), Scenario(pools=(pool,)))
    (machines,) = found.pools
    assert machines.reclaimed == 1
    assert machines.leases.count[0] == 1


def test_of_a_jobs_machines_only_as_many_are_lost_as_there_is_no_room_for() -> None:
    """The job has three machines of one launch, which had become idle at different times."""
    spot = SpotMarket(Curve.flat(0.1), available=((0, 3), (300, 2)))
    pool = replace(CLOUD, spot=spot, boot=BootTimes(((1, 10),)), release=Idle(6000))
    history = jobs((0, 50, 1), (0, 60, 1), (0, 70, 1), (100, 500, 3))
    (machines,) = simulate(history, Scenario(pools=(pool,), growth=OnDemand())).pools
    assert list(machines.batch_live[:1]) == [0]
    assert machines.leases.count[0] == 1
    assert machines.reclaimed == 1


def test_machines_of_two_offers_are_lost_in_the_same_second() -> None:
    """Two zones, each with room for one; both have none from 300 on."""
    (sold, on_demand) = replace(CLOUD, spot=SpotMarket(Curve.flat(0.1))).sold
    zones = tuple(
        Sold(
            offer=replace(sold.offer, zone=zone),
            market=SpotMarket(Curve.flat(0.1), available=((0, 1), (300, 0))),
        )
        for zone in "ab"
    )
    pool = replace(CLOUD, offers=(*zones, on_demand), boot=BootTimes(((1, 10),)))
    (machines,) = simulate(jobs((0, 5000, 1), (0, 5000, 1)), Scenario(pools=(pool,))).pools
    lost = zip(machines.leases.end, machines.leases.reclaimed, strict=True)
    assert [end for end, reclaimed in lost if reclaimed] == [300, 300]


def test_machines_that_were_ready_before_their_jobs_last_ones_are_idle_when_it_is_stopped() -> None:
    """Two boot from 420 to 480, the third from then on; room for two is left from 460."""
    spot = SpotMarket(Curve.flat(0.1), available=((0, 3), (460, 2)))
    pool = replace(
        CLOUD, machines=4, spot=spot, boot=BootTimes(((1, 60),)), max_booting=2, release=AtOnce()
    )
    found = simulate(jobs((420, 259, 3)), Scenario(pools=(pool,)))
    assert list(found.starts) == [480 + 60], "with one more, bought when the two are idle"


def test_a_job_that_comes_back_is_looked_at_where_it_is_among_the_first() -> None:
    rows = [
        (7, 400, 2), (88, 209, 2), (106, 64, 3), (120, 304, 1), (144, 199, 4), (269, 44, 4),
    ]  # fmt: skip
    steps = ((0, 1), (36, 0), (119, 1), (339, 0))
    two = PoolModel(name="a", machines=2, procs=2, price=1.0)
    one = PoolModel(
        name="b", machines=1, price=1.0, spot=SpotMarket(Curve.flat(0.1), available=steps)
    )
    history = Jobs(Job(n, s, r, r, p) for n, (s, r, p) in enumerate(rows))
    found = simulate(history, Scenario(pools=(two, one), depth=3, requeue_delay=30))
    whole = simulate(history, Scenario(pools=(two, one), requeue_delay=30))
    assert found.ends == whole.ends


def test_standing_machines_are_paid_until_the_last_job_has_ended() -> None:
    """Not until a look at a machine that is gone: it was due at 4304, and lost before."""
    standing = PoolModel(name="a", machines=1, standing=1, price=1.0)
    spot = SpotMarket(Curve.flat(0.1), available=((0, 1), (250, 0)))
    other = replace(CLOUD, machines=1, spot=spot, boot=BootTimes(((1, 10),)), release=Idle(4000))
    found = simulate(jobs((0, 200, 1), (4, 174, 1)), Scenario(pools=(standing, other)))
    assert list(found.pools[0].leases.end) == [250]


def test_the_queue_is_not_looked_at_because_an_idle_machine_may_go() -> None:
    """The first job waits from 1 on, for one that is beyond its limit. At 3 an idle machine may go,
    which changes nothing for the last job, and at 4 another one ends.
    """
    rows = [
        (0, 0, 1), (0, 0, 1), (0, 0, 1), (1, 0, 4), (1, 3, 1), (1, 0, 1), (1, 1, 1), (1, 2, 3),
        (2, 0, 4), (2, 0, 1),
    ]  # fmt: skip
    history = Jobs(Job(n, s, r, 1, p) for n, (s, r, p) in enumerate(rows))
    pools = tuple(
        PoolModel(
            name=name, machines=2, procs=2, price=1.0, public=public,
            release=Idle(1), boot=BootTimes(((1, 0),)),
        )
        for name, public in (("a", False), ("b", True))
    )  # fmt: skip
    assert simulate(history, Scenario(pools=pools)).starts[9] == 4


def test_machines_that_could_not_be_bought_are_not_counted_on_any_more() -> None:
    """The third job, at 30, cannot have two machines, as the limit leaves one: then none are to be
    had for the second either, for which the last one would have been kept away from the first pool.
    """
    rack = PoolModel(name="rack", machines=2, standing=2, procs=2, shared=True, limited=False)
    cloud = replace(CLOUD, machines=3, procs=2, shared=True, boot=BootTimes(((1, 10),)))
    history = Jobs(
        Job(n, s, r, limit, p)
        for n, (s, r, limit, p) in enumerate(
            [
                (0, 500, 500, 3),
                (1, 400, 400, 1),
                (20, 50, 50, 6),
                (30, 20, 20, 3),
                (40, 600, 600, 1),
            ]
        )
    )
    found = simulate(history, Scenario(pools=(rack, cloud), limits=Limits(nodes=2)))
    assert found.starts[4] == 40


def test_a_purchase_that_fails_is_known_to_all_that_wait_in_that_second() -> None:
    """The third job was to have three machines at 510. At 110 the last one asks for one more than the
    limit leaves, so that none of the third's are to be had: the fourth may have the idle one.
    """
    pool = replace(CLOUD, machines=3, boot=BootTimes(((1, 10),)))
    history = jobs((0, 500, 1), (0, 100, 1), (20, 50, 3), (20, 2000, 1), (20, 100, 2))
    cool = CoolDownTimes(capacity=3600, longest=3600)
    found = simulate(history, Scenario(pools=(pool,), limits=Limits(nodes=2), cool_downs=cool))
    assert found.starts[3] == 110


def test_a_job_that_comes_back_is_before_one_that_comes_in_the_same_second() -> None:
    """The first is lost at 50 and back at 80, when the second is submitted; there is one machine."""
    spot = SpotMarket(Curve.flat(0.1), available=((0, 1), (50, 0), (60, 1)))
    pool = replace(CLOUD, machines=1, spot=spot, boot=BootTimes(((1, 10),)), release=Idle(60))
    found = simulate(jobs((0, 100, 1), (80, 100, 1)), Scenario(pools=(pool,), requeue_delay=30))
    assert list(found.ends) == [190, 290]


def test_a_job_that_comes_back_goes_before_what_is_kept_for_a_later_one() -> None:
    """The second is lost at 50 and back at 80. The third waits for both machines of the first pool,
    which it was kept from the end of the first job on: the second has one there again, and not the
    other pool's.
    """
    spot = SpotMarket(Curve.flat(0.1), available=((0, 2), (50, 1)))
    first = replace(CLOUD, name="a", machines=2, spot=spot, boot=BootTimes(((1, 10),)))
    second = replace(CLOUD, name="b", machines=1)
    history = jobs((0, 500, 1), (0, 2000, 1), (30, 100, 2))
    found = simulate(history, Scenario(pools=(first, second), requeue_delay=30))
    assert list(found.ends) == [510, 2090, 2190]
    assert found.pools[1].launched == 0


def test_a_machine_that_is_taken_leaves_the_others_in_their_order() -> None:
    """Two on spot are idle from 110 on, one on demand from 120 on; one on spot is taken at 150. The
    last job gets the other, which has been idle for longest.
    """
    spot = SpotMarket(Curve.flat(0.1), available=((0, 2), (150, 1)))
    pool = replace(CLOUD, machines=3, spot=spot, boot=BootTimes(((1, 10),)), release=Idle(600))
    history = jobs((0, 100, 2), (1, 109, 1), (200, 1000, 1))
    found = simulate(history, Scenario(pools=(pool,), order=IdleOrder.MAX_IDLE))
    assert sorted(found.pools[0].leases.end) == [150, 720, 1800]


def test_a_machine_that_goes_while_jobs_wait_is_not_counted_on_any_more() -> None:
    """The fourth job was to have three machines at 1010. The one that goes at 160, as pools share a
    limit, will not be among them: the last job need not wait for that with the other idle one.
    """
    first = replace(CLOUD, name="a", machines=3, boot=BootTimes(((1, 10),)), release=Idle(100))
    pools = (first, replace(first, name="b", machines=1))
    history = jobs((0, 1000, 1), (0, 50, 1), (0, 100, 1), (65, 100, 3), (70, 2000, 1))
    found = simulate(history, Scenario(pools=pools, limits=Limits(nodes=3), growth=OnDemand()))
    assert found.starts[4] == 160


def test_machines_that_are_to_come_are_counted_on_at_once() -> None:
    """The second job was to have both nodes of the rack at 1000. Growth starts machines at 15, which
    it will have sooner: the third need not leave the other node idle.
    """
    history = jobs((0, 1000, 1), (10, 100, 2), (12, 2000, 1))
    found = simulate(history, Scenario(pools=(RACK, CLOUD), growth=OnDemand()))
    assert list(found.starts) == [0, 115, 15]


def test_a_machine_that_is_ready_as_a_job_arrives_is_there_for_it() -> None:
    """Two are started at 0; the second pool's serves both first jobs. The last one comes as that of
    the first pool is ready, and goes there.
    """
    first = replace(CLOUD, name="a", machines=1)
    # The boot of the first pool is paid for longer, so the second one is so dear that it comes last.
    second = replace(first, name="b", boot=BootTimes(((1, 10),)), price=9.0)
    history = jobs((0, 20, 1), (0, 20, 1), (100, 50, 1))
    found = simulate(history, Scenario(pools=(first, second), growth=OnDemand()))
    assert [list(machines.leases.end) for machines in found.pools] == [[750], [650]]


def test_idle_time_counts_from_the_first_second_on_too() -> None:
    """The second job is over at 0. Its machine is due at 64, and goes when none waits any more."""
    pool = replace(CLOUD, machines=1, boot=BootTimes(((1, 0),)), release=Idle(64))
    history = jobs((0, 100, 2), (0, 0, 1), (1, 50, 2))
    found = simulate(history, Scenario(pools=(RACK, pool)))
    assert list(found.pools[1].leases.end) == [100]


def test_machines_that_were_due_go_when_the_last_waiting_job_gets_its_own() -> None:
    """A hold ends at 200, and the second job gets a machine then; the first one's, of another pool,
    is due since 110.
    """
    first = replace(
        CLOUD, name="a", machines=1, procs=1, boot=BootTimes(((1, 10),)), release=AtOnce()
    )
    spot = SpotMarket(Curve.flat(0.1), available=((0, 0), (150, 2)))
    (sold, _) = replace(CLOUD, name="b", spot=spot).sold
    second = replace(CLOUD, name="b", machines=2, boot=BootTimes(((1, 10),)), offers=(sold,))
    pools = (first, replace(second, offers=(Sold(offer=sold.offer, market=spot),)))
    cool = CoolDownTimes(capacity=50, longest=50)
    found = simulate(jobs((0, 100, 1), (1, 500, 2)), Scenario(pools=pools, cool_downs=cool))
    begun = found.starts[1] - 10
    assert list(found.pools[0].leases.end) == [begun]


def test_a_growth_policy_looks_again_when_machines_are_ready_at_its_very_look() -> None:
    pool = replace(CLOUD, machines=3, boot=BootTimes(((1, 0),)), max_booting=1, release=Idle(600))
    found = simulate(jobs((0, 50, 3)), Scenario(pools=(pool,), growth=OnDemand()))
    assert found.figures.unserved == 0


def test_a_machine_of_its_own_for_each_job() -> None:
    found = one(CLOUD, jobs((0, 50, 2), (200, 50, 2)), reuse=False)
    assert list(found.starts) == [100, 300]
    assert found.figures.pools[0].launched == 4


def test_machines_for_one_job_each_need_a_growth_that_starts_them_for_a_job() -> None:
    scenario = Scenario(pools=(CLOUD,), growth=Ratio(), reuse=False)
    assert scenario.problems() == ["machines that serve one job each need growth slurm"]
    assert Scenario(pools=(CLOUD,), reuse=False).problems() == []


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_the_last_job_is_served_after_a_pause_of_months(
    compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(core.SWITCH, compiled)
    found = one(CLOUD, jobs((0, 50, 1), (100 * DAYS, 50, 1)), growth=OnDemand())
    assert found.figures.unserved == 0
    assert found.starts[1] >= 100 * DAYS


def test_delayed_release_keeps_an_hourly_machine_until_its_hour_ends() -> None:
    pool = replace(CLOUD, billing=Hourly(), release=Delayed(before_end=180))
    found = one(pool, jobs((0, 50, 1), (3000, 50, 1), (3600, 50, 1)))
    assert list(found.starts) == [100, 3000, 3700]
    assert found.figures.pools[0].billed_hours == 2


def test_the_bill_may_begin_with_readiness_as_in_papers() -> None:
    pool = replace(CLOUD, clock=Clock.REQUEST, release=AtOnce())
    assert one(pool, jobs((0, 50, 1))).figures.cost == pytest.approx(150 / 3600)
    assert one(replace(pool, clock=Clock.READY), jobs((0, 50, 1))).figures.cost == pytest.approx(
        60 / 3600
    )


def test_the_sites_own_machines_come_first() -> None:
    found = simulate(jobs((0, 500, 2), (1, 500, 2), (2, 500, 3)), Scenario(pools=(RACK, CLOUD)))
    assert [pool.jobs for pool in found.figures.pools] == [1, 2]
    assert list(found.starts) == [0, 101, 102]
    assert found.figures.pools[0].on_demand == 0


def test_a_burst_is_held_until_the_wait_would_be_too_long() -> None:
    pool = replace(CLOUD, release=Delayed(before_end=60), billing=Hourly(), check=60)
    history = jobs((0, 1000, 4), (700, 100, 4), (705, 500, 4))
    patient = one(pool, history, growth=SemiElastic(wait_limit=600))
    hasty = one(pool, history, growth=SemiElastic(wait_limit=60))
    assert list(patient.starts) == [100, 1100, 1200]
    assert patient.figures.pools[0].launched == 4
    assert hasty.starts[1] == 800
    assert hasty.figures.pools[0].launched > 4


def test_machines_are_not_released_while_jobs_wait() -> None:
    pool = replace(CLOUD, machines=4, release=Idle(10))
    found = one(pool, jobs((0, 1000, 3), (5, 10, 4)), growth=OnDemand(period=15))
    assert found.figures.unserved == 0
    assert found.figures.pools[0].launched == 4


def test_steady_stream_keeps_one_machine_to_the_end() -> None:
    pool = replace(CLOUD, release=Flagged())
    found = one(pool, jobs((0, 60, 1), (9000, 60, 1)), growth=SteadyStream())
    assert list(found.starts) == [100, 9000]
    assert found.figures.pools[0].launched == 1


def test_bursts_boot_six_machines_for_the_papers_first_workload() -> None:
    pool = replace(CLOUD, machines=10, release=Flagged(), boot=BootTimes(((1, 94),)))
    history = Jobs(Job(i, 0, 60, 120, 1) for i in range(20))
    assert one(pool, history, growth=Bursts(waste=180)).figures.pools[0].launched == 6
    assert one(pool, history, growth=OnDemand()).figures.pools[0].launched == 10


def test_jobs_that_nothing_can_hold_are_named_and_left_out() -> None:
    found = one(replace(CLOUD, machines=4), jobs((0, 10, 5), (1, 10, 4)))
    assert (found.figures.jobs, found.figures.too_large) == (1, 1)
    assert list(found.starts) == [-1, 101]


def test_a_spent_budget_stops_new_machines_until_the_next_day() -> None:
    pool = replace(CLOUD, release=AtOnce())
    history = jobs((0, 7200, 1), (7000, 100, 4))
    found = one(pool, history, bounds=Bounds(per_day=1.0))
    assert found.starts[0] == 100
    assert found.starts[1] == 86400 + 100
    assert found.figures.unserved == 0


def test_a_window_stops_new_machines_and_no_running_job() -> None:
    pool = replace(CLOUD, release=AtOnce())
    bounds = Bounds(windows=(Window(0, 3600),))
    found = one(pool, jobs((0, 7200, 1), (4000, 10, 2)), bounds=bounds)
    assert list(found.starts) == [100, 86400 + 100]


@pytest.mark.parametrize(
    "growth", [Slurm(), OnDemand(), Bursts(waste=20), GroupBursts(), Ratio(), SemiElastic(30)]
)
def test_a_job_is_served_although_its_growth_was_shared_out_over_pools(growth: AnyGrowth) -> None:
    """One machine of each pool is of no use to a job of two."""
    small, large = replace(CLOUD, name="small", machines=1), replace(CLOUD, machines=4)
    found = simulate(jobs((0, 100, 2)), Scenario(pools=(small, large), growth=growth))
    assert found.figures.jobs == 1


def test_a_queue_that_nothing_will_ever_serve_ends() -> None:
    found = one(CLOUD, jobs((0, 10, 1)), growth=OnDemand(), bounds=Bounds(machines=0))
    assert found.figures.unserved == 1
    assert found.figures.jobs == 0


@pytest.mark.parametrize("growth", [Slurm(), OnDemand(), SemiElastic()])
def test_an_overloaded_site_looks_at_the_first_jobs_only_and_serves_all(growth: Slurm) -> None:
    history = Jobs(Job(i, i, 100, 100, 1 + i % 3) for i in range(400))
    pool = replace(CLOUD, machines=4, release=Idle(60))
    found = one(pool, history, growth=growth, depth=5)
    assert (found.figures.jobs, found.figures.unserved) == (400, 0)
    assert found.figures.peak == 4


def test_combinations_without_sense_are_refused() -> None:
    with pytest.raises(SlurmElasticError, match="pool cloud: bursts start machines ahead"):
        one(replace(CLOUD, release=AtOnce()), jobs((0, 1, 1)), growth=Bursts())
    with pytest.raises(SlurmElasticError, match="there are no pools"):
        simulate(jobs((0, 1, 1)), Scenario(pools=()))


SPIKE = Curve([0, 5000, 6000], [0.1, 9.0, 0.1])


def spot(**changes: object) -> PoolModel:
    market = SpotMarket(SPIKE, bid=1.0)
    return replace(CLOUD, spot=market, billing=Hourly(refund=True), **changes)


def test_a_price_over_the_bid_takes_machines_and_the_job_begins_anew_on_demand() -> None:
    found = one(spot(), jobs((0, 8000, 1)))
    figures = found.figures
    assert figures.interruptions == 1
    assert list(found.starts) == [100]
    assert list(found.ends) == [5000 + 100 + 8000]
    assert figures.lost_hours == pytest.approx(4900 / 3600)
    assert figures.spot == pytest.approx(0.1)  # 4900 s: the second hour is the provider's
    assert figures.on_demand == pytest.approx(3.0)


def test_a_checkpoint_saves_the_work_before_it() -> None:
    how = Checkpoints(policy=Hour(margin=200), dump=160, restart=74, look=30)
    found = one(spot(), jobs((0, 8000, 1)), checkpoints=how)
    saved = 3300  # at the first look within the last 200 s of the hour that began at the launch
    assert found.figures.checkpoints == 1
    assert found.figures.lost_hours == pytest.approx((4900 - saved - 160) / 3600)
    assert found.ends[0] == 5000 + 100 + 74 + 8000 - saved
    assert found.figures.overhead_hours == pytest.approx((160 + 74) / 3600)


def test_an_answered_notice_loses_next_to_nothing() -> None:
    how = Checkpoints(policy=FirstOf((OnNotice(), Daly())), dump=60, restart=30, look=10)
    market = SpotMarket(Curve.flat(0.1), available=[(0, 20), (5000, 0), (6000, 20)], notice=120)
    found = one(replace(CLOUD, spot=market), jobs((0, 4950, 1)), checkpoints=how)
    assert found.figures.interruptions == 1
    assert found.figures.lost_hours * 3600 <= 60


def test_a_recommendation_to_move_saves_what_the_warning_is_too_short_for() -> None:
    """EC3's checkpoints took 160 s, EC2 warns 120 s before."""
    how = Checkpoints(policy=OnNotice(), dump=160, restart=30, look=10)
    lost = []
    for rebalance in (0, 100, 600):
        market = SpotMarket(
            Curve.flat(0.1), available=[(0, 20), (5000, 0), (6000, 20)], rebalance=rebalance
        )
        found = one(replace(CLOUD, spot=market), jobs((0, 6000, 1)), checkpoints=how)
        lost.append(round(found.figures.lost_hours * 3600))
    assert lost == [4900, 4900, 600 - 160], "one that comes after the warning says nothing"


def test_a_job_is_back_after_the_requeue_delay() -> None:
    assert one(spot(), jobs((0, 8000, 1)), requeue_delay=74).ends[0] == 5074 + 100 + 8000


def test_only_the_youngest_surplus_is_taken() -> None:
    market = SpotMarket(Curve.flat(0.1), available=[(0, 9), (1000, 3)])
    pool = replace(CLOUD, machines=9, spot=market)
    found = one(pool, jobs((0, 3000, 3), (500, 3000, 2)))
    assert found.ends[0] == 3100
    assert found.figures.interruptions == 1
    assert found.figures.on_demand > 0


def test_machines_that_boot_are_taken_too() -> None:
    market = SpotMarket(Curve.flat(0.1), available=[(0, 9), (50, 0)])
    found = one(replace(CLOUD, spot=market), jobs((0, 10, 2)))
    assert found.figures.interruptions == 1
    assert found.ends[0] == 50 + 100 + 10
    later = one(replace(CLOUD, spot=market), jobs((0, 10, 2)), growth=OnDemand())
    assert later.figures.jobs == 1


def test_a_spot_price_over_the_on_demand_price_is_not_paid() -> None:
    market = SpotMarket(Curve.flat(2.0))
    assert one(replace(CLOUD, spot=market), jobs((0, 10, 2))).figures.spot == 0


GROWTHS = [Slurm(), OnDemand(), SemiElastic(), Ratio(), Bursts(), GroupBursts(), SteadyStream()]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    growth = draw(st.sampled_from(GROWTHS))
    release = draw(st.sampled_from([Idle(60), Idle(0), Delayed(before_end=180), Flagged()]))
    if isinstance(growth, SteadyStream):
        release = Flagged()
    if isinstance(growth, Slurm) and release == Idle(0):
        release = AtOnce()
    points = draw(st.lists(st.integers(1, 900), max_size=6, unique=True).map(sorted))
    market = SpotMarket(
        Curve([0, *points], [0.1, *([2.0, 0.2] * 3)[: len(points)]]),
        bid=draw(st.sampled_from([None, 1.0])),
        available=draw(st.sampled_from([(), [(0, 9), (200, 3), (300, 6), (500, 0), (600, 9)]])),
    )
    cloud = PoolModel(
        name="cloud",
        machines=draw(st.integers(8, 30)),
        procs=draw(st.integers(1, 2)),
        price=1.0,
        billing=draw(st.sampled_from([Hourly(), Hourly(refund=True), PerSecond()])),
        release=release,
        boot=BootTimes(((1, 20), (8, 60))),
        clock=draw(st.sampled_from(Clock)),
        spot=draw(st.sampled_from([None, market])),
        check=draw(st.sampled_from([1, 60])),
    )
    rack = PoolModel(name="rack", machines=4, standing=4, public=False)
    policy = draw(st.sampled_from([Never(), Hour(), Threshold(), Daly(mtti=200.0), OnNotice()]))
    return Scenario(
        pools=draw(st.sampled_from([(cloud,), (rack, cloud)])),
        growth=growth,
        order=draw(st.sampled_from(IdleOrder)),
        checkpoints=Checkpoints(
            policy=policy, dump=10, restart=5, look=5, blocking=draw(st.booleans())
        ),
        reservations=draw(st.integers(1, 3)),
        depth=draw(st.sampled_from([None, 1, 4])),
        requeue_delay=draw(st.sampled_from([0, 30])),
        reuse=draw(st.booleans()) or not isinstance(growth, Slurm),
        bounds=draw(st.sampled_from([Bounds(), Bounds(booting=8), Bounds(per_day=50.0)])),
        seed=draw(st.integers(0, 3)),
    )


@given(histories, scenarios())
@settings(max_examples=150, deadline=None)
def test_work_machines_and_money_are_conserved_and_a_seed_repeats_itself(
    history: Jobs, scenario: Scenario
) -> None:
    """The books are checked within: ``simulate`` raises if anything does not add up."""
    first, again = simulate(history, scenario), simulate(history, scenario)
    assert msgspec.json.encode(first.figures) == msgspec.json.encode(again.figures)
    assert (first.starts, first.ends) == (again.starts, again.ends)
    figures = first.figures
    assert figures.jobs + figures.unserved + figures.too_large == len(history)
    for index, (start, end) in enumerate(zip(first.starts, first.ends, strict=True)):
        assert end < 0 or end - start >= history.run[index]
        assert end < 0 or start >= history.submit[index]


@given(histories, scenarios())
@settings(max_examples=100, deadline=None)
def test_boots_that_are_counted_change_nothing_where_nobody_waits(
    history: Jobs, scenario: Scenario
) -> None:
    pools = tuple(replace(pool, machines=10**6, release=Idle(60)) for pool in scenario.pools)
    scenario = replace(scenario, growth=Slurm(), pools=pools, bounds=Bounds(), depth=None)
    assume(not scenario.problems())
    counted = replace(scenario, bounds=Bounds(booting=10**6))
    quiet, loud = simulate(history, scenario), simulate(history, counted)
    assert msgspec.json.encode(quiet.figures) == msgspec.json.encode(loud.figures)
    assert (quiet.starts, quiet.ends) == (loud.starts, loud.ends)


@given(histories, scenarios())
@settings(max_examples=50, deadline=None)
def test_the_cost_is_never_below_what_the_work_is_worth(history: Jobs, scenario: Scenario) -> None:
    assume(scenario.pools[-1].billing != Hourly(refund=True))
    figures = simulate(history, scenario).figures
    busy = figures.pools[-1].busy_hours
    assert figures.cost >= busy * 0.1 - 1e-9
    assert figures.spot or figures.cost >= busy - 1e-9
    assert 0 <= figures.utilisation <= 1
