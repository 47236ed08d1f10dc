"""Machines are dealt to whole jobs, within every bound."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.cluster import Limits, Market, NodeRequest, Offer, Usage
from slurm_elastic.policies.growth.allotting import CommonBound, Room, Share, allot, choose
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    GroupBursts,
    OnDemand,
    Ratio,
    SemiElastic,
)
from slurm_elastic.policies.growth.dealing import split_demand, tasks_on_machines
from slurm_elastic.policies.growth.purchase_rooms import purchase_room, shared_rooms
from slurm_elastic.policies.growth.scaling import (
    GroupSnapshot,
    IdleInstance,
    PendingJob,
    PoolRules,
    PoolSnapshot,
    SharedRoom,
    decide,
)
from slurm_elastic.policies.launch.ranking import Scope
from tests.ledger_cases import offer
from tests.ledger_cases import pool as bought_pool

T = 1_800_000_000
Place = list[Room[str]]

counts = st.integers(0, 6)


@st.composite
def places(draw: st.DrawFn) -> list[list[tuple[str, int, int, int]]]:
    """By cloud its pools: (name, free, now, total)."""
    clouds = []
    for cloud in range(draw(st.integers(1, 3))):
        pools = []
        for number in range(draw(st.integers(1, 2))):
            now = draw(counts)
            pools.append((f"{cloud}-{number}", draw(counts), now, now + draw(counts)))
        clouds.append(pools)
    return clouds


@st.composite
def bounds(draw: st.DrawFn, names: list[str]) -> list[tuple[float, dict[str, float], bool]]:
    """(left, costs, is_turn) of each."""
    costs = st.dictionaries(st.sampled_from(names), st.sampled_from((0.1, 0.5, 1.0)), min_size=1)
    rows = st.tuples(st.sampled_from((0.0, 0.3, 1.0, 4.0)), costs, st.booleans())
    return draw(st.lists(rows, max_size=2))


@given(st.data(), places(), st.lists(st.integers(1, 8), max_size=8))
def test_each_job_has_all_its_machines_in_one_cloud_within_all_bounds_or_none(
    data: st.DataObject, clouds: list[list[tuple[str, int, int, int]]], needs: list[int]
) -> None:
    names = [name for pools in clouds for name, *_ in pools]
    rows = data.draw(bounds(names))
    rooms = [[Room(*pool) for pool in pools] for pools in clouds]
    limits = [CommonBound(left, costs, is_turn=turn) for left, costs, turn in rows]
    shares = allot([needs] * len(rooms), rooms, limits)
    free, starts = Counter[str](), Counter[str]()
    for need, share in zip(needs, shares, strict=True):
        if share is not None:
            free.update(dict(share.free))
            starts.update(dict(share.starts))
            assert len({pool.partition("-")[0] for pool, _ in (*share.free, *share.starts)}) <= 1
            assert sum(n for _, n in share.free) + share.lack == need
    pools = {name: row for row_of_cloud in clouds for name, *row in row_of_cloud}
    assert all(free[name] <= row[0] and starts[name] <= row[1] for name, row in pools.items())
    for left, costs, _ in rows:
        assert sum(costs.get(name, 0.0) * n for name, n in starts.items()) <= left + 1e-6
    lacks = sum(share.lack for share in shares if share is not None)
    assert lacks <= sum(row[2] for row in pools.values())


@pytest.mark.parametrize("step", [1, -1])
def test_a_bound_is_not_charged_for_machines_that_another_bound_forbids(step: int) -> None:
    rooms = [Room("spot a", 0, 4), Room("spot b", 0, 4), Room("on-demand", 0, 10)]
    nodes = CommonBound(10, {room.pool: 1.0 for room in rooms})
    spot = CommonBound(4, {"spot a": 1.0, "spot b": 1.0})
    whole = Share(starts=(("spot a", 4), ("on-demand", 4)))
    assert allot([[8]], [rooms], [nodes, spot][::step]) == [whole]


@given(places(), st.integers(2, 20))
def test_a_job_that_fits_a_cloud_is_dealt(
    clouds: list[list[tuple[str, int, int, int]]], need: int
) -> None:
    rooms = [[Room(*pool) for pool in pools] for pools in clouds]
    fits = any(sum(free + total for _, free, _, total in pools) >= need for pools in clouds)
    assert (allot([[need]] * len(rooms), rooms)[0] is not None) == fits


def test_a_job_takes_the_first_cloud_where_it_starts_soonest() -> None:
    """A cloud whose machines idle or boot, then one that boots all at once, then one in turns."""
    turns, at_once, there = Room("a", 0, 2, 9), Room("b", 0, 4), Room("c", 4, 0)
    assert allot([[4] * 3] * 3, [[turns], [at_once], [there]]) == [
        Share(free=(("c", 4),)),
        Share(starts=(("b", 4),)),
        Share(starts=(("a", 2),), later=2),
    ]


def test_a_job_of_one_node_does_not_wait_for_its_turn() -> None:
    assert allot([[1]] * 2, [[Room("a", 0, 0, 9)], [Room("b", 0, 1)]]) == [
        Share(starts=(("b", 1),))
    ]


def test_the_last_job_of_a_growth_gets_all_its_machines() -> None:
    rooms = [Room("a", 0, 9)]
    shares = allot([[3, 3, 3]], [rooms])
    assert choose(4, shares, range(3), (), [3, 3, 3], rooms).starts == {"a": 6}
    assert choose(0, shares, range(3), (), [3, 3, 3], rooms).starts == {}


def test_machines_ahead_of_need_are_none_of_a_job_without_room() -> None:
    rooms = [Room("a", 0, 4)]
    shares = allot([[6]], [rooms])
    assert choose(6, shares, [0], (), [6], rooms).starts == {}
    assert choose(8, shares, [0], (), [6], rooms).starts == {"a": 2}


def test_starts_tell_the_fewest_machines_that_a_job_can_use() -> None:
    rooms = [Room("a", 1, 20)]
    shares = allot([[6, 4]], [rooms])
    chosen = choose(9, shares, range(2), (), [6, 4], rooms)
    # One machine of the first job is there.
    assert (chosen.starts, chosen.least) == ({"a": 9}, {"a": 4})


def test_machines_that_no_job_needs_together_are_of_use_alone() -> None:
    rooms = [Room("a", 0, 20)]
    shares = allot([[6]], [rooms])
    assert choose(8, shares, [0], (), [6], rooms).least == {"a": 1}


def test_machines_that_start_in_turns_are_of_use_alone() -> None:
    rooms = [Room("a", 0, 2, 6)]
    shares = allot([[6]], [rooms])
    chosen = choose(6, shares, [0], (), [6], rooms)
    assert (chosen.starts, chosen.least) == ({"a": 2}, {"a": 1})


# in a whole look


def pool(name: str, growth: AnyGrowth, **fields: object) -> PoolSnapshot:
    return PoolSnapshot(name=name, rules=PoolRules(growth=growth), **fields)  # type: ignore[arg-type]


def job(number: int, *pools: str, nodes: int = 1, times: int = 1) -> PendingJob:
    return PendingJob(number, nodes, 600, T, pools, times)


def machines(prefix: str, count: int) -> tuple[IdleInstance, ...]:
    return tuple(IdleInstance(f"{prefix}{n}", T - 900, T - 900) for n in range(count))


GROWTHS = (OnDemand(), GroupBursts(group=6), Bursts(), SemiElastic(wait_limit=0), Ratio())


@pytest.mark.parametrize("growth", GROWTHS)
def test_no_machine_starts_for_a_job_that_lacks_room(growth: AnyGrowth) -> None:
    rows = (pool("a", growth, room=4), pool("b", growth, room=3))
    now = GroupSnapshot(now=T, growth=growth, pools=rows, queue=(job(1, "a", "b", nodes=6),))
    assert decide(now).starts == ()


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_job_behind_one_that_lacks_room_gets_its_machines(growth: AnyGrowth) -> None:
    queue = (job(1, "a", nodes=6), job(2, "a", nodes=2))
    now = GroupSnapshot(now=T, growth=growth, pools=(pool("a", growth, room=4),), queue=queue)
    starts = {start.pool: start.machines for start in decide(now).starts}
    assert starts["a"] in (2, 4 if isinstance(growth, GroupBursts) else 2)


def test_two_pools_of_a_cloud_serve_a_job_together_within_the_limit_of_the_cloud() -> None:
    growth = OnDemand()
    rows = tuple(pool(name, growth, cloud="c", room=4) for name in ("a", "b"))
    now = GroupSnapshot(now=T, growth=growth, pools=rows, queue=(job(1, "a", "b", nodes=6),))
    assert {s.pool: s.machines for s in decide(now).starts} == {"a": 4, "b": 2}
    limit = SharedRoom(left=5, costs={"a": 1.0, "b": 1.0})
    assert decide(replace(now, shared_rooms=(limit,))).starts == ()


def test_jobs_of_other_pools_take_their_part_of_a_common_limit() -> None:
    growth = OnDemand()
    rows = tuple(pool(name, growth, cloud="c", room=9) for name in ("a", "b"))
    limit = SharedRoom(left=5, costs={"a": 1.0, "b": 1.0})
    queue = (job(1, "a", nodes=3), job(2, "b", nodes=3), job(3, "b", nodes=2))
    now = GroupSnapshot(now=T, growth=growth, pools=rows, queue=queue, shared_rooms=(limit,))
    starts = Counter[str]()
    for _, plan in split_demand(now):
        starts.update({start.pool: start.machines for start in plan.starts})
    assert starts == {"a": 3, "b": 2}


def test_idle_machines_that_wait_for_others_of_their_job_are_kept() -> None:
    growth = OnDemand()
    first = pool("a", growth, idle=machines("a", 2), booting=2, room=0, total_room=4)
    now = GroupSnapshot(now=T, growth=growth, pools=(first,), queue=(job(1, "a", nodes=8),))
    plan = decide(now)
    assert (plan.starts, plan.kept) == ((), ("a0", "a1"))
    assert decide(replace(now, pools=(replace(first, total_room=3),))).kept == (), "lacks room"
    assert decide(replace(now, queue=(job(1, "a", nodes=2),))).kept == (), "Slurm may start it"


def test_tasks_whose_machines_boot_are_known_to_other_groups() -> None:
    growth = OnDemand()
    rows = (pool("a", growth, booting=5), pool("b", growth, idle=machines("b", 2)))
    queue = (job(1, "a", "b", times=3), job(2, "a", nodes=4), job(3, "a", "b"))
    now = GroupSnapshot(now=T, growth=growth, pools=rows, queue=queue)
    assert tasks_on_machines(now) == {1: 3, 3: 1}, "machines that idle for long prove nothing"


# the bounds of purchases


def on_demand(price: float, **fields: object) -> Offer:
    return replace(offer(market=Market.ON_DEMAND, price=price, on_demand=price), **fields)


def wanted_nodes(count: int) -> NodeRequest:
    return NodeRequest(id="", pool=bought_pool(), nodes=tuple(f"n{i}" for i in range(count)))


def test_a_room_is_what_limits_and_stock_leave() -> None:
    wanted = wanted_nodes(9)
    used = Usage(nodes={"": 2})
    scope = Scope(limits=Limits(nodes=6, dollars_per_hour=50.0), usage=used)
    assert purchase_room(wanted, [on_demand(price=1.0)], scope, T).machines == 4
    assert purchase_room(wanted, [on_demand(price=1.0, free=3)], scope, T).machines == 3
    assert purchase_room(wanted, [on_demand(price=20.0)], scope, T, unlaunched=1).room == 1
    assert purchase_room(wanted, [], scope, T).room == 0
    assert "6 nodes" in str(purchase_room(wanted, [on_demand(price=1.0)], scope, T).bound)


@given(st.integers(1, 9), st.integers(0, 5), st.sampled_from((1.0, 2.5)), st.integers(0, 9))
def test_common_bounds_give_one_pool_alone_all_its_machines(
    nodes: int, cheap: int, price: float, limit: int
) -> None:
    """Their costs are averages of cheap and dear machines."""
    wanted = wanted_nodes(nodes)
    offers = [on_demand(0.3, zone="a", free=cheap), on_demand(price, zone="b")]
    scope = Scope(limits=Limits(nodes=limit, dollars_per_hour=6.0))
    room = purchase_room(wanted, offers, scope, T)
    shared = shared_rooms({"a": room, "b": room})
    rooms = [Room("a", 0, room.machines)]
    limits = [CommonBound(bound.left, bound.costs) for bound in shared]
    if room.machines:
        assert allot([[room.machines]], [rooms], limits)[0] is not None
