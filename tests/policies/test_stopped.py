"""Which idle machines are stopped, which stay so, and which are started."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from machine_cases import machine_with
from msgspec.structs import replace

from slurm_elastic.model.causes.stops import StoppedByOrder
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    Limits,
    Location,
    Market,
    NodeRequest,
    Offer,
    Pool,
    Usage,
)
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.growth import stopped
from slurm_elastic.policies.growth.stopped import (
    Recipes,
    Startable,
    gangs_with_room,
    to_start,
    to_stop,
    unwanted,
)
from slurm_elastic.policies.launch import ranking
from slurm_elastic.policies.launch.gang import gangs
from slurm_elastic.policies.launch.ranking import Scope

NOW = 1_800_000_000.0
NODES = ("a1", "a2", "a3")
POOL = Pool(
    name="a", cloud="c", nodes=NODES, cpus=2, real_memory=1000, instance_types=("small",),
    zones=("z",), max_age=1000.0, stopped=2,
)  # fmt: skip
RECIPES = Recipes(made_of={"g1": "new", "g2": "old"}, fresh={"a": "new"})


def machine(number: int, *, age: float = 100.0, **changes: Any) -> Machine:
    own: dict[str, Any] = {
        "market": Market.ON_DEMAND, "node": f"a{number}", "generation": "g1", "zone": "z",
        "instance_type": "small", "state": InstanceState.RUNNING, "cloud": "c",
    }  # fmt: skip
    of_row = {k: changes.pop(k) for k in list(changes) if k not in own}
    one = Instance(id=f"i{number}", price=0.1, launched=NOW - age, **own | changes)
    row: dict[str, Any] = {"pool": "a", "registered": NOW - 50, "first_launched_at": NOW - age}
    return machine_with(instance=one, **row | of_row)


def off(number: int, **changes: Any) -> Machine:
    own = {"state": InstanceState.STOPPED, "stopped": NOW - 10, "suspending": NOW - 10}
    return machine(number, **own | changes)


def chosen(*doomed: Machine, there: tuple[Machine, ...] = (), pool: Pool = POOL) -> list[str]:
    found = to_stop(doomed, there, {"a": pool}, RECIPES, NOW)
    return [m.instance.id for m in found]


def test_as_many_as_the_pool_keeps_are_stopped() -> None:
    assert chosen(machine(1), machine(2), machine(3)) == ["i1", "i2"]
    assert chosen(machine(1), machine(2), there=(off(3),)) == ["i1"]
    assert chosen(machine(1), there=(off(2), machine(3, stopping=NOW, suspending=NOW))) == []


@pytest.mark.parametrize(
    "one",
    [
        machine(1, market=Market.SPOT),
        machine(1, registered=None),
        machine(1, suspending=NOW),
        machine(1, age=1001),
        machine(1, generation="g2"),
        machine(1, generation="unknown"),
        machine(1, instance_type="large"),
        machine(1, zone="y"),
        machine(1, node="b1"),
        machine(1, pool="b"),
    ],
)
def test_what_is_no_good_to_keep_ends(one: Machine) -> None:
    assert chosen(one) == []


def test_a_node_keeps_one() -> None:
    assert chosen(machine(1), there=(off(2, node="a1"),)) == []


def test_a_pool_that_keeps_none_stops_none() -> None:
    assert chosen(machine(1), pool=replace(POOL, stopped=0)) == []


def ends(*some: Machine, pool: Pool | None = POOL, recipes: Recipes = RECIPES) -> dict[str, Any]:
    return unwanted(some, {"a": pool} if pool else {}, recipes, {}, NOW)


def test_of_too_many_the_oldest_end() -> None:
    found = ends(off(1, age=300), off(2, age=200), off(3, age=100))
    assert list(found) == ["i1"]
    assert str(found["i1"]) == "the pool keeps 2 stopped machines"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (off(1, age=1001), "the pool's maximum is 16m"),
        (off(1, generation="g2"), "another image"),
        (off(1, zone="y"), "zone y"),
        (off(1, instance_type="large"), "instance type large"),
        (off(1, market=Market.RESERVED), "market reserved"),
        (off(1, node="b1"), "no longer has its node in this pool"),
    ],
)
def test_what_no_fresh_machine_would_be_ends(one: Machine, words: str) -> None:
    assert words in str(ends(one)["i1"])


def test_nothing_ends_for_a_recipe_that_nobody_knows() -> None:
    assert ends(off(1, generation="g2"), recipes=Recipes(made_of={}, fresh={})) == {}


def test_a_pool_that_has_left_the_configuration_keeps_none() -> None:
    assert list(ends(off(1), pool=None)) == ["i1"]


def test_those_that_an_operator_wants_gone_end() -> None:
    order = StoppedByOrder(number=1, fact="node a1 is drained", who="ann")
    assert unwanted([off(1)], {"a": POOL}, RECIPES, {"i1": order}, NOW) == {"i1": order}


def started(*some: Machine, recipes: Recipes = RECIPES) -> list[str]:
    return [m.instance.id for m in to_start(some, ("a1", "a2"), POOL, recipes, NOW)]


def test_stopped_machines_of_these_nodes_are_started() -> None:
    assert started(off(1), off(2), off(3)) == ["i1", "i2"]
    assert started(off(1, state=InstanceState.STOPPING)) == ["i1"]


@pytest.mark.parametrize(
    "one",
    [
        off(1, state=InstanceState.RUNNING),
        off(1, missed_listings=1),
        off(1, age=1001),
        off(1, generation="g2"),
        off(1, pool="b"),
    ],
)
def test_what_may_not_come_up_as_a_fresh_one_is_not_started(one: Machine) -> None:
    assert started(one) == []


def test_what_nobody_knows_the_recipe_of_is_not_started() -> None:
    assert started(off(1), recipes=Recipes(made_of={}, fresh={})) == []


OFFER = Offer(
    cloud="c", location=Location.PUBLIC, instance_type="small", zone="z", market=Market.ON_DEMAND,
    price=0.1, cpus=2, memory=2000, on_demand_price=0.1,
)  # fmt: skip


def with_room(
    jobs: dict[int, tuple[str, ...]],
    *numbers: int,
    free: int | None = None,
    scope: Scope | None = None,
    alone: tuple[str, ...] = (),
    price: float = 0.1,
) -> list[int | None]:
    """The jobs whose gangs fit, if the nodes of these numbers have a stopped machine."""
    nodes = tuple(dict.fromkeys(n for of in jobs.values() for n in of))
    pool = replace(POOL, nodes=nodes, markets=(Market.ON_DEMAND,))
    request = NodeRequest(id="r", pool=pool, nodes=nodes, jobs=tuple(jobs), job_nodes=jobs)
    some = [Startable(machine=off(n), offer=replace(OFFER, free=0, price=price)) for n in numbers]
    found = gangs_with_room(
        request, gangs(nodes, jobs, alone), some, [replace(OFFER, free=free)], scope or Scope(), NOW
    )
    return [gang.job for gang in found]


def at_most(nodes: int, used: int = 0) -> Scope:
    return Scope(limits=Limits(nodes=nodes), usage=Usage(nodes={"": used}))


def test_a_gang_fits_whose_stopped_and_bought_machines_are_enough_together() -> None:
    job = {1: NODES}
    assert with_room(job, 1, 2, free=1) == [1]
    assert with_room(job, 1, 2, free=0) == []
    assert with_room(job, 1, 2, 3, free=0) == [1]


def test_a_start_counts_within_the_limits_like_a_launch() -> None:
    job = {1: NODES}
    assert with_room(job, 1, 2, scope=at_most(3)) == [1]
    assert with_room(job, 1, 2, scope=at_most(3, used=1)) == []
    assert with_room(job, 1, 2, 3, scope=at_most(2)) == []


def test_a_gang_that_fits_takes_the_room_of_those_after_it() -> None:
    jobs = {1: ("a1", "a4"), 2: ("a2", "a3"), 3: ("a5",)}
    assert with_room(jobs, 2, scope=at_most(4)) == [1, 2]
    assert with_room(jobs, 2, scope=at_most(3)) == [1]
    assert with_room(jobs, 2, 5, scope=at_most(3)) == [1, 3]
    assert with_room(jobs, 2, 5, scope=at_most(2)) == [1]


def test_nodes_that_are_served_alone_are_judged_when_they_start() -> None:
    job = {1: NODES}
    assert with_room(job, 1, 2, scope=at_most(1), alone=NODES) == [1, 1]


def test_bought_machines_of_a_gang_leave_fewer_of_an_offer_to_the_next_gang() -> None:
    jobs = {1: ("a1", "a4"), 2: ("a2", "a5"), 3: ("a3", "a6")}
    assert with_room(jobs, 1, 2, 3, free=2) == [1, 2]
    assert with_room(jobs, 1, 2, 3, free=3) == [1, 2, 3]


def test_jobs_that_share_a_node_need_one_machine_for_it() -> None:
    jobs = {1: ("a1", "a2"), 2: ("a2", "a3"), 3: ("a4", "a5")}
    assert with_room(jobs, 1, 2, scope=at_most(3)) == [1, 2]


@pytest.mark.parametrize(
    ("size", "limit", "fitting", "rankings"),
    [(1, 100, 400, 0), (4, 400, 100, 401), (4, 360, 90, 800), (4, 0, 0, 600)],
)
def test_the_offers_are_ranked_a_few_times_for_each_node_however_many_jobs_wait(
    monkeypatch: pytest.MonkeyPatch, *, size: int, limit: int, fitting: int, rankings: int
) -> None:
    """Four hundred nodes of jobs of ``size`` nodes. Half of them have a stopped machine, or all if
    each job has one node.
    """
    rank = Mock(wraps=ranking.rank)
    for module in (stopped, ranking):
        monkeypatch.setattr(module, "rank", rank)
    names = [f"a{n}" for n in range(400)]
    jobs = {n: tuple(names[n * size : (n + 1) * size]) for n in range(400 // size)}
    off_nodes = range(0, 400, 1 if size == 1 else 2)
    assert len(with_room(jobs, *off_nodes, scope=at_most(limit))) == fitting
    assert rank.call_count <= rankings


def test_a_machine_that_is_too_dear_to_start_is_replaced_by_a_bought_one() -> None:
    limits = Limits(dollars_per_hour=0.2)
    job = {1: ("a1", "a2")}
    assert with_room(job, 1, scope=Scope(limits=limits), price=0.3) == [1]
    assert with_room(job, 1, scope=Scope(limits=limits), price=0.15) == []


def test_the_disk_of_a_machine_that_starts_costs_nothing_more() -> None:
    scope = Scope(
        limits=Limits(dollars_per_hour=0.2),
        usage=Usage(dollars_per_hour={"": 0.2, "cloud:c": 0.2}),
    )
    job = {1: ("a1", "a2")}
    assert with_room(job, 1, 2, scope=scope) == [1], "the disks cost $0.1/h each"
