"""On which nodes machines start ahead of a migration."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_elastic.model.cluster import Limits, Pool, Usage
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.repair.replacements import (
    Allowance,
    StandIn,
    allowance,
    can_start_ahead,
    choose,
)

OWN = Pool(name="own", cloud="onp", nodes=("o1", "o2", "o3"), cpus=4, real_memory=8000)
LEAVING = [(node, OWN) for node in OWN.nodes]


def stand_in(name: str, *free: str, price: float = 0.1, **fields: Any) -> StandIn:
    room = fields.pop("room", None)
    shape = {"cpus": 4, "real_memory": 8000} | fields
    pool = Pool(name=name, cloud="pub", nodes=free, **shape)
    return StandIn(pool=pool, free=free, price_per_hour=price, room=room)


def test_each_machine_gets_one_of_the_cheapest_pool_that_can_hold_it() -> None:
    rows = [
        stand_in("dear", "d1", "d2", price=0.3),
        stand_in("small", "s1", price=0.01, cpus=2),
        stand_in("cheap", "c1", "c2", price=0.1, cpus=8),
        stand_in("same", "e1", price=0.1),
    ]
    assert choose(LEAVING, rows, Allowance()) == ({"e1": "o1", "c1": "o2", "c2": "o3"}, None)


@pytest.mark.parametrize(
    ("row", "room", "count", "obstacle"),
    [
        (stand_in("p", "p1"), Allowance(), 1, "no node there is free"),
        (stand_in("p", "p1", "p2", "p3", room=2), Allowance(), 2, "no node there is free"),
        (stand_in("p", "p1", "p2", "p3"), Allowance(nodes=1), 1, "the limits leave no room"),
        (
            stand_in("p", "p1", "p2", "p3"),
            Allowance(dollars_per_hour=0.2),
            2,
            "the limits leave no room",
        ),
        (
            stand_in("p", "p1", real_memory=100),
            Allowance(),
            0,
            "no pool there holds a machine of pool own",
        ),
    ],
)
def test_it_says_why_a_machine_gets_none(
    row: StandIn, room: Allowance, count: int, obstacle: str
) -> None:
    chosen, why = choose(LEAVING, [row], room)
    assert (len(chosen), str(why)) == (count, obstacle)


def test_gpus_are_needed_where_the_leaving_machine_has_them() -> None:
    gpu = Pool(name="g", cloud="onp", nodes=("g1",), cpus=4, real_memory=8000, gres={"gpu": 2})
    rows = [stand_in("one", "a1", gres={"gpu": 1}), stand_in("four", "b1", gres={"gpu": 4})]
    assert choose([("g1", gpu)], rows, Allowance()) == ({"b1": "g1"}, None)


def test_all_limits_count_together() -> None:
    used = Usage(nodes={"": 5, "cloud:pub": 1}, dollars_per_hour={"": 1.0, "cloud:pub": 0.5})
    limits = [("", Limits(nodes=8)), ("cloud:pub", Limits(nodes=6, dollars_per_hour=0.75))]
    assert allowance(limits, used) == Allowance(nodes=3, dollars_per_hour=0.25)
    assert allowance([("", Limits(nodes=2))], used) == Allowance(nodes=0)
    assert allowance([("", Limits())], used) == Allowance()


@pytest.mark.parametrize(
    ("states", "held", "starts"),
    [
        ("IDLE CLOUD POWERED_DOWN", False, True),
        ("IDLE CLOUD POWERED_DOWN DRAIN", False, False),
        ("IDLE CLOUD POWERED_DOWN DRAIN", True, True),
        ("DOWN CLOUD POWERED_DOWN", False, False),
        ("IDLE CLOUD POWERING_DOWN", False, False),
        ("IDLE CLOUD", False, False),
    ],
)
def test_only_a_free_node_that_is_off_gets_a_machine(states: str, held: bool, starts: bool) -> None:
    node = SlurmNode(name="n1", states=frozenset(states.split()))
    assert can_start_ahead(node, is_held_by_policy=held) is starts
