"""Which node a machine is, told by its tags."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers.aws.requests import chunks
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import (
    MAX_NODE_TAGS,
    PLACE,
    PLACES,
    PRICES,
    SITE_TAGS,
    FleetNodeNames,
    assigned,
    fleet_tags,
    place_of,
    price_text,
    tagging,
    width,
)
from slurm_elastic.providers.base.tags import (
    MAX_VALUE,
    PRICE,
    NodeNames,
    gathered,
    in_order,
    node_tags,
    nodes_text,
    spread,
    tags_of,
)

SETTINGS = AwsCloud(
    name="c", location=Location.PUBLIC, region="us-east-1", image="ami-1",
    types={"t": InstanceType(cpus=1, memory=1, price=1.0)},
)  # fmt: skip

names = st.from_regex(
    re.compile(r"[a-z]{1,3}(-[a-z0-9]{1,3})?[0-9]{0,4}", re.ASCII), fullmatch=True
)


@given(st.lists(names, min_size=1, max_size=60, unique=True), st.integers(20, 300))
def test_the_lists_expand_to_the_nodes_in_their_order(nodes: list[str], size: int) -> None:
    lists = in_order(nodes, size)
    assert [name for text in lists for name in expand(text)] == nodes
    assert all(len(text) <= size for text in lists)


@given(st.lists(names, min_size=1, max_size=200, unique=True))
def test_each_machine_finds_its_node(nodes: list[str]) -> None:
    tags = node_tags(nodes)
    reader = NodeNames()
    assert [reader.node(tags, n) for n in range(len(nodes))] == nodes
    assert reader.node(tags, len(nodes)) == ""
    assert nodes_text(tags)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 99999), min_size=1, max_size=2500, unique=True))
def test_launches_are_cut_so_that_the_tags_hold_them(numbers: list[int]) -> None:
    nodes = [f"a-rather-long-name-of-a-pool-{n:05}" for n in numbers]
    parts = list(chunks(nodes, SETTINGS))
    assert [n for part in parts for n in part] == nodes
    for part in parts:
        assert 1 <= len(part) <= 1000
        assert len(node_tags(part)) <= MAX_NODE_TAGS
    assert [list(p) for p in chunks(nodes, SETTINGS)] == [list(p) for p in parts]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (["p1"], "p1"),
        (["p1", "p2", "p3", "p7"], "p[1-3,7]"),
        (["p08", "p09", "p10"], "p[08-10]"),
        (["p9", "p10", "head", "p1"], "p[9-10],head,p1"),
        (["p2", "p1"], "p[2,1]"),
        (["7", "8"], "7,8"),
    ],
)
def test_lists_read_well(nodes: list[str], text: str) -> None:
    assert in_order(nodes, 256) == [text]


@pytest.mark.parametrize("text", ["", "p[", "p[3-1]"])
def test_tags_that_somebody_changed_name_no_node(text: str) -> None:
    assert NodeNames().node({"slurm-elastic:nodes": text}, 0) == ""


PLAIN = Pool(name="p", cloud="c", nodes=("a1",), cpus=1, real_memory=1)
OFFER = Offer(
    cloud="c", location=Location.PUBLIC, instance_type="t", zone="z", market=Market.SPOT,
    price=0.0123456, cpus=1, memory=1,
)  # fmt: skip


def test_a_value_is_filled_to_its_last_character() -> None:
    ids = (*range(10**6, 10**6 + 31), 10**7)  # 31 of 7 and one of 8 characters, and the commas
    one = LaunchSpec(generation="g", pool=PLAIN, nodes=("a1",), offer=OFFER, jobs=(*ids, 1))
    jobs = tags_of(one, one.nodes, Cluster(name="n", uuid="u"), "c")["slurm-elastic:jobs"]
    assert jobs == ",".join(map(str, ids))
    assert len(jobs) == MAX_VALUE


def test_values_fit_and_jobs_are_whole() -> None:
    pool = replace(PLAIN, name="p" * 300)
    spec = LaunchSpec(
        generation="g", pool=pool, nodes=("a1",), offer=OFFER, jobs=tuple(range(10**6, 10**6 + 99))
    )
    tags = tags_of(spec, spec.nodes, Cluster(name="n", uuid="u"), "c")
    assert all(len(value) <= MAX_VALUE for value in tags.values())
    assert all(len(job) == 7 for job in tags["slurm-elastic:jobs"].split(","))
    assert float(tags["slurm-elastic:price"]) == 0.0123456


@pytest.mark.parametrize(
    ("nodes", "size", "lists"),
    [
        (["p1", "p3"], 6, ["p[1,3]"]),
        (["p1", "p3"], 5, ["p1", "p3"]),
        (["a1", "b1"], 9, ["a1,b1"]),
        (["a1", "b1"], 8, ["a1", "b1"]),
        (["p1", "p3", "p5"], 8, ["p[1,3,5]"]),
        (["p1", "p3", "p5"], 7, ["p[1,3]", "p5"]),
    ],
)
def test_a_list_is_filled_to_its_last_character(
    nodes: list[str], size: int, lists: list[str]
) -> None:
    assert in_order(nodes, size) == lists


@pytest.mark.parametrize(
    ("lengths", "found"), [((200, 55), 1), ((200, 56), 2), ((256, 1), 2), ((100, 100, 54, 256), 2)]
)
def test_items_are_spread_over_as_many_tags_as_they_need(
    lengths: tuple[int, ...], found: int
) -> None:
    items = ["x" * length for length in lengths]
    tags = spread("prices", items)
    assert list(tags) == ["prices", "prices-1"][:found]
    assert " ".join(gathered(tags | {"prices-9": "y"}, "prices")).split() == items
    assert gathered({}, "prices") == [""]


# of a fleet


CLUSTER = Cluster(name="n", uuid="u")


def test_the_tags_of_a_machine_are_no_more_than_ec2_takes() -> None:
    """50, of which nodes and the site's own template may have what the others leave."""
    owned = replace(LAUNCH, owner={"account": "physics", "user": "ada"})
    assert len(tags_of(owned, [], CLUSTER, "c")) + MAX_NODE_TAGS + SITE_TAGS + 8 == 50


LAUNCH = LaunchSpec(
    generation="g", pool=PLAIN, nodes=("a1",), offer=OFFER, jobs=(7,),
    alternatives=(replace(OFFER, zone="y", price=0.5),),
)  # fmt: skip


def test_a_fleets_tags_tell_the_price_of_each_offer_and_how_many_digits_a_place_has() -> None:
    found = fleet_tags(LAUNCH, [f"a{n}" for n in range(11)], CLUSTER, "c")
    assert found[PRICES] == "t@z=0.0123456 t@y=0.5"
    assert found[PLACES] == "2"
    assert PRICE not in found
    assert found["slurm-elastic:nodes"] == "a[0-10]"


@pytest.mark.parametrize(
    ("tags", "price"),
    [
        ({PRICE: "0.3", PRICES: "t@z=0.1"}, "0.3"),
        ({PRICES: "t@y=0.2 t@z=0.1"}, "0.1"),
        ({PRICES: "t@y=0.2", f"{PRICES}-1": "t@z=0.1"}, "0.1"),
        ({PRICES: "t@y=0.2"}, None),
        ({}, None),
    ],
)
def test_a_price_is_that_of_the_machines_type_and_zone(
    tags: dict[str, str], price: str | None
) -> None:
    assert price_text(tags, "t", "z") == price


@pytest.mark.parametrize(
    ("count", "digits"), [(0, 1), (1, 1), (10, 1), (11, 2), (100, 2), (101, 3), (1000, 3)]
)
def test_places_have_the_digits_of_the_last_one(count: int, digits: int) -> None:
    assert width(count) == digits


@pytest.mark.parametrize(
    ("tags", "place"),
    [
        ({PLACES: "1", f"{PLACE}0": "4"}, 4),
        ({PLACES: "2", f"{PLACE}0": "0", f"{PLACE}1": "3"}, 3),
        ({PLACES: "2", f"{PLACE}1": "3"}, None),
        ({PLACES: "1", f"{PLACE}0": "x"}, None),
        ({PLACES: "1", f"{PLACE}0": "\u0663"}, None),
        ({PLACES: "x", f"{PLACE}0": "4"}, None),
        ({PLACES: "\u0661", f"{PLACE}0": "4"}, None),
        ({PLACES: "11", f"{PLACE}0": "4"}, None),
        ({f"{PLACE}0": "4"}, None),
    ],
)
def test_a_machine_of_a_fleet_has_a_place_once_all_its_digits_are_there(
    tags: dict[str, str], place: int | None
) -> None:
    assert place_of(tags) == place
    marks = tags | {"slurm-elastic:nodes": "p[0-9]"}
    node = "p2" if PLACES not in tags else "" if place is None else f"p{place}"
    assert FleetNodeNames().node(marks, 2) == node, "else the launch index tells"


def test_places_go_to_ids_in_their_order_and_none_twice() -> None:
    assert assigned(["i-3", "i-1", "i-2"], {}, 3) == ({"i-1": 0, "i-2": 1, "i-3": 2}, [])
    assert assigned(["i-3", "i-1", "i-2"], {"i-2": 0}, 3) == ({"i-1": 1, "i-3": 2}, [])
    assert assigned(["i-3", "i-1", "i-2"], {"i-2": 1}, 2) == ({"i-1": 0}, ["i-3"])
    assert assigned(["i-1"], {"i-1": 0}, 2) == ({}, [])


def test_one_call_tags_all_machines_with_a_digit() -> None:
    calls = list(tagging({"i-1": 0, "i-2": 10, "i-3": 1}, 11))
    assert calls == [
        (f"{PLACE}0", "0", ["i-1", "i-3"]), (f"{PLACE}0", "1", ["i-2"]),
        (f"{PLACE}1", "0", ["i-1", "i-2"]), (f"{PLACE}1", "1", ["i-3"]),
    ]  # fmt: skip
