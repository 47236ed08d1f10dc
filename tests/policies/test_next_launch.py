"""The next launch: one decision, made from what came of those before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.causes.limits import StartsLimited
from slurm_elastic.model.cluster import Location, Market, NodeRequest, Offer, Pool
from slurm_elastic.policies.launch.gang import gangs, part_of
from slurm_elastic.policies.launch.next_launch import WORTH_A_CALL, NextLaunch, next_launch
from slurm_elastic.policies.launch.ranking import Scope

NODES = tuple(f"n{i}" for i in range(1, 7))
POOL = Pool(
    name="burst", cloud="pub", nodes=NODES, cpus=2, real_memory=1000,
    markets=(Market.SPOT, Market.ON_DEMAND),
)  # fmt: skip


def offer(market: Market, price: float, *, zone: str = "a", free: int | None = None) -> Offer:
    return Offer(
        cloud="pub", location=Location.PUBLIC, instance_type="small", zone=zone, market=market,
        price=price, cpus=2, memory=2000, on_demand_price=0.10, free=free,
    )  # fmt: skip


SPOT = offer(Market.SPOT, 0.03)
SPOT_B = offer(Market.SPOT, 0.04, zone="b")
ON_DEMAND = offer(Market.ON_DEMAND, 0.10)


def decide(
    jobs: dict[int, tuple[str, ...]],
    offers: tuple[Offer, ...] = (SPOT, SPOT_B, ON_DEMAND),
    had: tuple[str, ...] = (),
    scope: Scope | None = None,
    *,
    caps: tuple[tuple[str, int], ...] = (),
    startable: int | None = None,
    choices: int = 0,
) -> NextLaunch:
    names = tuple(dict.fromkeys(n for of in jobs.values() for n in of))
    request = NodeRequest(id="r", pool=POOL, nodes=names, jobs=tuple(jobs), job_nodes=jobs)
    todo = gangs(names, jobs)
    return next_launch(
        request, todo, had, offers, scope or Scope(), 0.0, caps=caps, startable=startable,
        choices=choices,
    )  # fmt: skip


def test_all_nodes_go_to_the_best_offer_that_has_room() -> None:
    found = decide({1: ("n1", "n2"), 2: ("n3",)})
    assert found.nodes == ("n1", "n2", "n3")
    assert found.offers[0] is SPOT
    assert (found.delayed_nodes, found.spare_nodes) == ((), 0)


def test_what_has_a_machine_is_not_asked_for_again() -> None:
    assert decide({1: ("n1", "n2")}, had=("n1",)).nodes == ("n2",)


def test_a_job_that_cannot_be_had_whole_is_not_begun() -> None:
    few = offer(Market.SPOT, 0.03, free=2)
    found = decide({1: ("n1", "n2", "n3"), 2: ("n4",)}, (few,))
    assert found.nodes == ("n4",)
    assert found.placement.request.nodes == ("n4",), "ranked anew, for what is asked for"
    alone = decide({1: ("n1", "n2", "n3")}, (few,))
    assert (alone.nodes, alone.spare_nodes) == ((), 2)


def test_nodes_wait_for_their_turn_where_so_many_boot_already() -> None:
    scope = Scope(booting={"pool:burst": 2})
    found = decide({1: ("n1",)}, scope=scope, caps=(("pool:burst", 2),))
    assert (found.nodes, found.delayed_nodes) == ((), ("n1",))
    assert str(found.cap) == "pool burst boots 2 at a time"
    some = decide({1: ("n1",), 2: ("n2",)}, scope=scope, caps=(("pool:burst", 3),))
    assert some.nodes == ("n1",)


def test_an_api_that_starts_few_machines_is_waited_for_until_a_call_is_worth_it() -> None:
    assert decide({1: ("n1", "n2")}, startable=1).delayed_nodes == ("n1", "n2")
    assert decide({1: ("n1", "n2")}, startable=WORTH_A_CALL).nodes == ("n1", "n2")


MANY = tuple(f"n{i}" for i in range(1, 31))


@pytest.mark.parametrize(
    ("startable", "nodes"),
    [(None, 30), (31, 30), (30, 30), (29, 29), (20, 20), (19, 0), (0, 0)],
)
def test_a_call_for_twenty_machines_is_worth_it(startable: int | None, nodes: int) -> None:
    request = NodeRequest(id="r", pool=replace(POOL, nodes=MANY), nodes=MANY)
    found = next_launch(
        request, gangs(MANY, {}), (), (ON_DEMAND,), Scope(), 0.0, startable=startable
    )
    assert found.nodes == MANY[:nodes]
    assert found.delayed_nodes == (() if nodes else MANY)
    assert found.cap == (None if nodes else StartsLimited(cloud="pub"))


def test_few_machines_are_started_at_once_where_no_more_are_wanted() -> None:
    assert decide({1: ("n1", "n2")}, startable=2).nodes == ("n1", "n2")


def test_nodes_that_wait_for_their_turn_leave_the_rest_of_the_room() -> None:
    room = offer(Market.SPOT, 0.03, free=5)
    scope = Scope(booting={"pool:burst": 2})
    found = decide({1: ("n1", "n2")}, (room,), scope=scope, caps=(("pool:burst", 2),))
    assert (found.delayed_nodes, found.spare_nodes) == (("n1", "n2"), 0), "of a request for two"


def test_alternatives_are_of_the_same_market_and_could_serve_all() -> None:
    assert decide({1: ("n1", "n2")}, choices=19).offers == (SPOT, SPOT_B)
    assert decide({1: ("n1", "n2")}).offers == (SPOT,)
    narrow = offer(Market.SPOT, 0.04, zone="b", free=1)
    assert decide({1: ("n1", "n2")}, (SPOT, narrow), choices=19).offers == (SPOT,)
    enough = offer(Market.SPOT, 0.04, zone="b", free=2)
    assert decide({1: ("n1", "n2")}, (SPOT, enough), choices=19).offers == (SPOT, enough)
    third = offer(Market.SPOT, 0.05, zone="c")
    assert decide({1: ("n1",)}, (SPOT, SPOT_B, third), choices=1).offers == (SPOT, SPOT_B)


def test_without_an_offer_the_placement_says_why() -> None:
    dear = offer(Market.SPOT, 0.20)
    found = decide({1: ("n1",)}, (dear,))
    assert found.nodes == ()
    assert [r.offer for r in found.placement.rejected] == [dear]


def test_a_part_of_a_request_has_the_jobs_of_its_nodes() -> None:
    jobs = {1: ("n1", "n2"), 2: ("n3",)}
    request = NodeRequest(id="r", pool=POOL, nodes=NODES, jobs=(1, 2), job_nodes=jobs)
    part = part_of(request, ("n2",))
    assert (part.nodes, part.jobs, part.job_nodes) == (("n2",), (1,), {1: ("n2",)})


def test_the_last_offer_is_asked_for_a_whole_job_or_for_none() -> None:
    """While others remain, they may give the machines that the first one lacks."""
    jobs = {1: ("n1", "n2", "n3"), 2: ("n4", "n5")}
    assert decide(jobs).least == 1
    assert decide(jobs, (SPOT,)).least == 2
    assert decide(jobs, (SPOT,), had=("n4",)).least == 1
    assert decide({1: ("n1", "n2", "n3")}, (SPOT,)).least == 3


def test_the_last_offer_is_asked_for_all_machines_that_growth_started_for_a_job() -> None:
    """Slurm tells no job of such nodes."""
    names = ("n1", "n2", "n3")
    request = NodeRequest(
        id="r", pool=POOL, nodes=names, least_by_node={"n1": 3, "n2": 3, "n3": 3}
    )  # fmt: skip

    def least(request: NodeRequest, offers: tuple[Offer, ...], had: tuple[str, ...] = ()) -> int:
        return next_launch(request, gangs(names, {}), had, offers, Scope(), 0.0).least

    assert least(request, (SPOT,)) == 3
    # The first offer gave one machine, and the last one must give the others.
    assert least(request, (SPOT,), had=("n1",)) == 2
    assert least(request, (SPOT, ON_DEMAND)) == 1
    assert least(replace(request, least_by_node={"n1": 3, "n2": 3}), (SPOT,)) == 1
