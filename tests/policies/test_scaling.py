"""The actions of a group of pools at one moment, and how waiting jobs are dealt out to them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    Demand,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
    Slurm,
    SteadyStream,
    Waiting,
)
from slurm_elastic.policies.growth.counted_once import served_jobs
from slurm_elastic.policies.growth.dealing import split_demand
from slurm_elastic.policies.growth.guarded import grown
from slurm_elastic.policies.growth.release import Delayed, Flagged, Idle, IdleOrder
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    IdleInstance,
    PendingJob,
    PoolRules,
    PoolSnapshot,
    ScaleUp,
    ScalingPlan,
    decide,
    demand_of,
    excess,
    head_start,
    stops,
    weights,
)
from slurm_elastic.policies.money.bounds import Bounds, Spent, Window
from tests.simulate.test_replay import T, moments

ALL_GROWTHS: tuple[AnyGrowth, ...] = (
    OnDemand(), Bursts(), GroupBursts(), Ratio(), SemiElastic(), SteadyStream(),
)  # fmt: skip
RULES = PoolRules(growth=OnDemand(), release=Idle(60))


def pool(name: str = "burst", rules: PoolRules = RULES, **fields: object) -> PoolSnapshot:
    return PoolSnapshot(name=name, rules=rules, **fields)  # type: ignore[arg-type]


def job(number: int, *pools: str, nodes: int = 1, limit: int = 600, times: int = 1) -> PendingJob:
    return PendingJob(number, nodes, limit, T, pools or ("burst",), times)


def machines(count: int) -> tuple[IdleInstance, ...]:
    return tuple(IdleInstance(f"n{i}", T - 9, T - 9) for i in range(count))


def now(
    *pools: PoolSnapshot, queue: tuple[PendingJob, ...] = (), **fields: object
) -> GroupSnapshot:
    return GroupSnapshot(now=T, growth=pools[0].rules.growth, pools=pools, queue=queue, **fields)  # type: ignore[arg-type]


def starts(found: list[tuple[GroupSnapshot, ScalingPlan]]) -> dict[str, int]:
    count: Counter[str] = Counter()
    for _, plan in found:
        for start in plan.starts:
            count[start.pool] += start.machines
    return dict(count)


def test_what_is_stopped_says_why_and_counts_nobody() -> None:
    plan = decide(now(pool(room=3, stop=Quoted(text="the budget is spent")), queue=(job(1),)))
    assert plan == ScalingPlan(
        unserved="1 of 1 machines are not started: the budget is spent (1 new jobs wait for 1 nodes)"
    )


def test_what_finds_no_room_says_so_and_counts_only_who_got_some() -> None:
    plan = decide(now(pool(room=1), queue=(job(1), job(2))))
    assert plan.starts == (ScaleUp("burst", 1, "2 new jobs wait for 2 nodes"),)
    assert plan.covered == (1,), "the second job counts again at the next look"
    assert plan.unserved == (
        "1 of 2 machines are not started: no node is left that could be started"
        " (2 new jobs wait for 2 nodes)"
    )


@pytest.mark.parametrize("growth", [Bursts(waste=120), GroupBursts(group=6)])
def test_no_machine_starts_for_the_work_of_a_job_that_has_no_room(growth: AnyGrowth) -> None:
    """The policy wants machines beyond the job's nodes, and those would idle and be bought again."""
    rules = replace(RULES, growth=growth)
    large, small = job(1, nodes=4, limit=36000), job(2, limit=36000)
    plan = decide(now(pool(rules=rules, room=2), queue=(large,)))
    assert (plan.starts, plan.covered) == ((), ())
    assert plan.unserved is not None
    assert (
        sum(s.machines for s in decide(now(pool(rules=rules, room=2), queue=(small,))).starts) == 2
    )
    both = decide(now(pool(rules=rules, room=2), queue=(large, small)))
    assert sum(start.machines for start in both.starts) == 2, "they are for the small job"
    assert 1 not in both.covered


def test_jobs_get_machines_where_they_may_run() -> None:
    both = (pool("rack", room=2), pool("burst", room=2))
    found = split_demand(now(*both, queue=(job(1, "burst"), job(2, "rack"))))
    assert starts(found) == {"burst": 1, "rack": 1}


def test_a_machine_is_for_one_job_only() -> None:
    """An idle machine that the first job will get is not there for the second."""
    rack = pool("rack", room=0, idle=(IdleInstance("op1", T - 9, T - 9),))
    queue = (job(1, "rack", "burst"), job(2, "rack"))
    found = split_demand(now(rack, pool("burst", room=2), queue=queue))
    assert starts(found) == {}
    assert found[1][1].unserved is not None, "the second job has none"


@pytest.mark.parametrize(
    ("idle", "booting", "nodes", "left"),
    [
        (2, 2, 1, ((1, 2, 1, 3), (3, 1, 0, 2))),
        (2, 2, 3, ((0, 1, 3, 3), (3, 1, 0, 2))),
        (2, 2, 4, ((0, 0, 4, 3), (3, 1, 0, 2))),
        (2, 1, 5, ((0, 0, 3, 3), (1, 1, 2, 2))),
        # Nobody else waits for the one that boots, so it is not started a second time.
        (0, 0, 4, ((0, 0, 0, 3), (0, 0, 4, 2))),
        (0, 0, 6, ((0, 0, 2, 1), (0, 0, 4, 2))),
    ],
)
def test_what_a_job_gets_of_each_pool_is_not_there_for_the_next(
    idle: int, booting: int, nodes: int, left: tuple[tuple[int, ...], ...]
) -> None:
    """Idle machines first, then those that boot; of the first pool first."""
    pools = [
        pool(
            name, cloud="both", room=room, booting=boots,
            idle=tuple(IdleInstance(f"{name}{i}", T - 9, T - 9) for i in range(count)),
        )
        for name, room, boots, count in (("a", 3, booting, idle), ("b", 2, 1, 3))
    ]  # fmt: skip
    queue = (job(1, "a", "b", nodes=nodes), job(2, "a"), job(3, "b"))
    found = {moment.queue[0].id: moment for moment, _ in split_demand(now(*pools, queue=queue))}
    pools_left = [found[2].pools[0], found[3].pools[0]]
    assert tuple((len(p.idle), p.booting, p.promised, p.room) for p in pools_left) == left


def test_an_array_counts_by_its_tasks() -> None:
    rules = replace(RULES, growth=Bursts(waste=300))
    found = split_demand(now(pool(rules=rules, room=9), queue=(job(1, times=4),)))
    assert starts(found) == {"burst": 4}


@pytest.mark.parametrize(("times", "idle"), [(0, 1), (1, 1), (2, 0)])
def test_each_task_of_an_array_gets_a_machine_before_the_next_job(times: int, idle: int) -> None:
    up = tuple(IdleInstance(f"op{i}", T - 9, T - 9) for i in range(2))
    queue = (job(1, "rack", "burst", times=times), job(2, "rack"))
    found = split_demand(now(pool("rack", idle=up), pool("burst"), queue=queue))
    assert len(found[1][0].pools[0].idle) == idle


def test_machines_are_kept_while_a_job_waits_that_could_use_them() -> None:
    idle = (IdleInstance("pub1", T - 900, T - 600),)
    rest = pool("rack", idle=(IdleInstance("op1", T - 900, T - 600),))
    waiting = job(1, "burst", nodes=2)
    found = split_demand(now(rest, pool("burst", idle=idle), queue=(waiting,), covered=(1,)))
    assert [leave.node for _, plan in found for leave in plan.leaves] == ["op1"]


def test_warm_machines_stay_and_are_made_up() -> None:
    rules = PoolRules(growth=Slurm(), release=Idle(60), min_idle=2)
    idle = tuple(IdleInstance(f"pub{i}", T - 900, T - 600) for i in range(4))
    plan = decide(now(pool(rules=rules, idle=idle, room=5)))
    assert [leave.node for leave in plan.leaves] == ["pub0", "pub1"]
    plan = decide(now(pool(rules=rules, idle=idle[:1], room=5)))
    assert plan.starts == (ScaleUp("burst", 1, "2 machines are kept idle", is_warm=True),)


def test_machines_on_the_emptiest_host_go_first_and_jobs_get_the_fullest_one() -> None:
    on_hosts = (("pub1", 3), ("pub2", 1), ("pub3", 2), ("pub4", 3))
    idle = tuple(IdleInstance(name, T - 900, T - 600, count) for name, count in on_hosts)
    rules = PoolRules(growth=Slurm(), release=Idle(300), order=IdleOrder.PACKED, min_idle=2)
    plan = decide(
        GroupSnapshot(
            now=T, growth=Slurm(), pools=(PoolSnapshot(name="pub", rules=rules, idle=idle),)
        )
    )
    assert [leave.node for leave in plan.leaves] == ["pub2", "pub3"]
    assert weights(rules, idle, T, base=10) == {"pub1": 10, "pub4": 10, "pub3": 11, "pub2": 12}


def test_a_steady_stream_flags_idle_machines_first() -> None:
    rules = PoolRules(growth=SteadyStream(waste=100), release=Flagged())
    idle = (IdleInstance("pub3", T - 900, T - 5),)
    plan = decide(now(pool(rules=rules, idle=idle, taken=("pub1", "pub2")), running=2))
    assert [leave.node for leave in plan.leaves] == ["pub3", "pub1"]


@pytest.mark.parametrize(("before", "goes"), [(30, True), (61, False)])
def test_a_delayed_release_acts_only_at_the_end_of_the_lease(before: int, goes: bool) -> None:
    rules = PoolRules(growth=Slurm(), release=Delayed(before_end=60), lease=3600)
    idle = (IdleInstance("pub1", T - 2 * 3600 + before, T - 600),)
    assert bool(decide(now(pool(rules=rules, idle=idle))).leaves) is goes


def test_the_first_bound_that_stops_is_told() -> None:
    day = ("", Bounds(per_day=5.0), Spent(day=5.0))
    cloud = ("cloud aws", Bounds(per_month=50.0), Spent(month=60.0))
    shut = ("", Bounds(windows=(Window(0, 60),)), Spent())
    assert str(stops(T, [cloud, day])) == "cloud aws: the budget of $50.00 a month is spent"
    assert str(stops(T, [day])) == "the budget of $5.00 a day is spent"
    times = "outside the times at which machines may be started"
    assert str(stops(T, [shut])) == f"{times}: 00:00-00:01 UTC"
    assert stops(T, [("", Bounds(per_day=5.0), Spent(day=4.99))]) is None


def test_the_head_starts_when_enough_machines_are_free() -> None:
    assert head_start(2, T, [[T + 50, T - 9, T + 20]]) == T + 20
    assert head_start(4, T, [[T, T, T]]) is None
    assert head_start(2, T, [[T, T + 90], [T]]) == T + 90  # not of two clouds
    assert head_start(0, T, []) is None


def test_weights_follow_the_rest_of_the_lease() -> None:
    rules = PoolRules(growth=Slurm(), order=IdleOrder.MAX_MARGIN, lease=3600)
    idle = tuple(IdleInstance(f"n{i}", T - 300 * i, T - 9) for i in range(1, 12))
    found = weights(rules, idle, T, 1000)
    ordered = sorted(found, key=lambda name: int(name[1:]))
    assert [found[name] for name in ordered] == sorted(found.values())
    assert set(found.values()) <= set(range(1000, 1009))
    assert weights(PoolRules(growth=Slurm()), idle, T, 1000) == {}


@pytest.mark.parametrize("order", [IdleOrder.MAX_MARGIN, IdleOrder.MIN_MARGIN])
def test_by_the_second_no_machine_has_more_left_than_another(order: IdleOrder) -> None:
    idle = tuple(IdleInstance(f"n{i}", T - i, T - 9) for i in range(1, 6))
    found = weights(PoolRules(growth=Slurm(), order=order), idle, T, 1000)
    assert set(found.values()) == {1000}


@given(moments())
def test_nobody_gets_what_is_not_there(group: GroupSnapshot) -> None:
    rooms = {one.name: 0 if one.stop else one.room for one in group.pools}
    there = {one.name: {r.node for r in one.idle} | {*one.taken} for one in group.pools}
    found = split_demand(group)
    assert all(rooms[name] >= count for name, count in starts(found).items())
    leaves = [leave.node for _, plan in found for leave in plan.leaves]
    assert len(leaves) == len(set(leaves))
    assert set(leaves) <= set().union(*there.values())


@given(moments())
def test_warm_machines_are_never_let_go(group: GroupSnapshot) -> None:
    leaves = {leave.node for _, plan in split_demand(group) for leave in plan.leaves}
    for one in group.pools:
        left = [r for r in one.idle if r.node not in leaves]
        assert len(left) >= min(one.rules.min_idle, len(one.idle))


@given(moments())
def test_reasons_are_given(group: GroupSnapshot) -> None:
    for _, plan in split_demand(group):
        assert all(part.reason for part in (*plan.starts, *plan.leaves))


@pytest.mark.parametrize("running", [0, 1])
def test_a_job_gets_all_its_machines_in_one_cloud_when_some_came_in_two(running: int) -> None:
    """One idle machine in each cloud is of no use to a job of two."""
    idle = (IdleInstance("n1", T - 60, T - 40),)
    pools = (pool("a", idle=idle), pool("b", room=3, idle=idle))
    asked = now(*pools, queue=(job(1, "a", "b", nodes=2),), covered=(1,), running=running)
    assert decide(asked).starts == (ScaleUp("b", 1, "1 new jobs wait for 2 nodes"),)
    for other in (
        replace(asked, pools=(pools[0], replace(pools[1], booting=1))),
        replace(asked, pools=(pools[0], replace(pools[1], idle=(*idle, IdleInstance("n2", T, T))))),
        replace(
            asked, pools=(pools[0], replace(pools[1], stop=Quoted(text="the budget is spent")))
        ),
        replace(asked, growth=Slurm()),
    ):
        assert decide(other).starts == ()


def test_a_first_job_that_no_policy_counts_gets_its_machines_when_nothing_runs_or_boots() -> None:
    """By the count of a policy for bursts the two idle machines in two clouds serve the job."""
    rules = replace(RULES, growth=GroupBursts(group=1))
    idle = (IdleInstance("n1", T - 60, T - 40),)
    pools = (pool("a", rules, idle=idle), pool("b", rules, room=3, idle=idle))
    asked = now(*pools, queue=(job(1, "a", "b", nodes=2),), covered=(1,))
    assert decide(asked).starts == (ScaleUp("b", 1, "a job needs 2 machines of one cloud at once"),)
    assert decide(replace(asked, running=1)).starts == ()


# the parts that the simulator has, too


def test_a_policy_that_counts_a_job_once_is_asked_for_the_new_ones() -> None:
    queue = (job(1), job(2, times=2))
    rules = replace(RULES, growth=Bursts())
    once = demand_of(now(pool(rules=rules), queue=queue, covered=(1,)))
    assert (len(once.queue), len(once.fresh)) == (3, 2)
    rules = replace(RULES, growth=SemiElastic())
    again = demand_of(now(pool(rules=rules), queue=queue, covered=(1,)))
    assert (len(again.queue), len(again.fresh)) == (3, 3)


def test_machines_are_counted_over_all_pools() -> None:
    idle = (IdleInstance("n1", T - 9, T - 9),)
    found = demand_of(
        now(pool("a", idle=idle, taken=("n2",), promised=2, booting=3), pool("b", booting=1))
    )
    assert (found.idle, found.busy, found.booting) == (1, 3, 4)


@pytest.mark.parametrize(
    ("growth", "served_by_started"),
    [
        (OnDemand(), [0, 1, 1, 2]),
        # Two machines for each 360 s of work: the jobs count as 1, 2, 3 machines.
        (Bursts(), [0, 1, 1, 1]),
        (GroupBursts(), [0, 0, 1, 1]),
    ],
)
def test_a_growth_that_a_bound_cuts_serves_the_first_jobs_only(
    growth: AnyGrowth, served_by_started: list[int]
) -> None:
    jobs = (Waiting(1, 600, T), Waiting(2, 900, T), Waiting(4, 900, T))
    demand = Demand(now=T, queue=jobs, fresh=jobs)
    answer = grown(growth, demand)
    assert answer is not None
    served = [
        len(list(served_jobs(growth, ((n, 1) for n in range(3)), demand, answer, started)))
        for started in (*range(4), answer.machines)
    ]
    assert served == [*served_by_started, 3]


@pytest.mark.parametrize("growth", [OnDemand(), Bursts(), GroupBursts(group=1)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1), (2, 2), (1, 4)])
def test_jobs_that_max_booting_left_out_get_machines_at_the_next_looks(
    growth: AnyGrowth, sizes: tuple[int, ...]
) -> None:
    """Two machines boot at a time, and each needs two looks. In the end there are no more machines
    than without the bound, and each job is served.
    """
    rules = replace(RULES, growth=growth)
    queue = tuple(job(number, nodes=nodes, limit=600) for number, nodes in enumerate(sizes))
    whole = now(pool(rules=rules, room=20), queue=queue)
    unbound = starts([(whole, decide(whole))])["burst"]
    covered: tuple[int, ...] = ()
    begun: tuple[int, ...] = ()
    boots: list[int] = []
    for look in range(40):
        booting = sum(began > look - 2 for began in boots)
        idle = machines(len(boots) - booting)
        current = pool(rules=rules, room=2 - booting, total_room=20, idle=idle, booting=booting)
        asked = now(current, queue=queue, running=1)
        plan = decide(replace(asked, covered=covered, begun=begun))
        covered, begun = plan.covered, plan.begun
        boots += [look] * sum(start.machines for start in plan.starts)
    # Bursts rounds the work that is left down at each look, and a job gets all its nodes.
    is_near = isinstance(growth, Bursts) and 2 <= len(boots) <= max(unbound, sum(sizes))
    assert len(boots) == unbound or is_near
    assert covered == tuple(range(len(sizes)))


def test_what_is_idle_goes_once_nothing_waits() -> None:
    idle = (IdleInstance("n1", T - 9, T - 9), IdleInstance("n2", T - 9, T - 9))
    assert excess(OnDemand(), demand_of(now(pool(idle=idle)))) == 2
    assert excess(OnDemand(), demand_of(now(pool(idle=idle), queue=(job(1),)))) == 0


@given(st.integers(1, 3), st.integers(2, 6), st.sampled_from(ALL_GROWTHS))
def test_a_job_larger_than_max_booting_gets_all_its_machines_look_by_look(
    at_once: int, nodes: int, growth: AnyGrowth
) -> None:
    """The small pool takes a part of the first growth, which serves nobody there."""
    rules = replace(RULES, growth=growth)
    idle, covered = {"small": 0, "large": 0}, ()
    room = {"small": nodes - 1, "large": nodes}
    for _ in range(2 * nodes + 2):
        off = {name: room[name] - idle[name] for name in room}
        pools = (
            pool("small", rules, room=off["small"], idle=machines(idle["small"])),
            pool(
                "large",
                rules,
                room=min(off["large"], at_once),
                total_room=off["large"],
                idle=machines(idle["large"]),
            ),
        )
        queue = (job(1, "small", "large", nodes=nodes),)
        ((_, plan),) = split_demand(now(*pools, queue=queue, covered=covered))
        covered = plan.covered
        for start in plan.starts:
            idle[start.pool] += start.machines
    assert idle["large"] >= nodes


@pytest.mark.parametrize("growth", [GroupBursts(group=4), Bursts(), OnDemand()], ids=type)
def test_a_job_gets_the_machines_that_it_lacks_in_one_cloud_although_others_idle_elsewhere(
    growth: AnyGrowth,
) -> None:
    """Jobs run, so the queue is not stuck."""
    rules = PoolRules(growth=growth)
    pools = [
        pool(name, rules, cloud=name, room=8, idle=machines(2), running=1, taken=("n9",))
        for name in ("a", "b")
    ]
    queue = (job(1, "a", "b", nodes=4),)
    ((_, plan),) = split_demand(now(*pools, queue=queue))
    assert plan.starts[0].pool == "a"
    assert plan.starts[0].machines >= 2
    assert plan.covered == (1,)


def test_a_job_of_one_node_starts_when_the_first_machine_is_free() -> None:
    assert head_start(1, T, [[T + 50, T + 20]]) == T + 20
    assert head_start(2, T, [[T + 50, T + 20]]) == T + 50


# what is told, and to the very machine


def test_a_growth_that_gets_all_leaves_nothing_unserved() -> None:
    plan = decide(now(pool(room=1), queue=(job(1),)))
    assert plan.unserved is None
    assert plan.covered == (1,)


def test_why_a_machine_goes_is_told_with_its_times() -> None:
    rules = PoolRules(growth=Slurm(), release=Idle(60))
    plan = decide(now(pool(rules=rules, idle=(IdleInstance("n1", T - 900, T - 600),))))
    assert plan.leaves == (
        ("n1", "idle for 10m, 15m after its start, and nothing waits"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("room", "started"),
    [
        (1, [("a", 1)]),
        (2, [("a", 1), ("a", 1)]),
        (5, [("a", 1), ("a", 2)]),
    ],
)
def test_warm_machines_come_out_of_the_room_that_a_growth_leaves(
    room: int, started: list[tuple[str, int]]
) -> None:
    """Three are to be warm, and one of them is there by the growth."""
    rules = replace(RULES, min_idle=3)
    pools = (pool("a", rules=rules, room=room), pool("b", room=9))
    plan = decide(now(*pools, queue=(job(1, "a", "b"),)))
    assert [start[:2] for start in plan.starts] == started


def test_no_more_are_flagged_than_are_too_many_in_all_pools() -> None:
    rules = PoolRules(growth=OnDemand(), release=Flagged())
    one, *two = (IdleInstance(f"n{i}", T - 900, T - 5) for i in range(3))
    pools = (
        pool("a", rules=rules, idle=(one,), taken=("busy",)),
        pool("b", rules=rules, idle=tuple(two)),
    )
    assert [leave.node for leave in decide(now(*pools)).leaves] == ["n1", "n2", "n0"]


def test_nothing_is_started_for_its_own_sake_where_jobs_wait_elsewhere() -> None:
    rules = PoolRules(growth=SteadyStream(), release=Flagged())
    pools = (pool("a", rules=rules, room=2), pool("b", rules=rules, room=2))
    assert starts(split_demand(now(*pools))) == {"a": 1}
    assert starts(split_demand(now(*pools, queue=(job(1, "b"),)))) == {"b": 1}


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0]), (3, [0, 1, 2]), (9, [*range(9)]), (11, [0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8])],
)
def test_weights_are_spread_over_nine_levels(count: int, expected: list[int]) -> None:
    rules = PoolRules(growth=Slurm(), order=IdleOrder.MAX_MARGIN, lease=3600)
    idle = [IdleInstance(f"n{i}", T - 300 * i, T - 9) for i in range(count)]
    assert list(weights(rules, idle, T, 1000).values()) == [1000 + level for level in expected]
