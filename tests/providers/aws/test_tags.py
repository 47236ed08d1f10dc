"""Which node a machine is, told by its tags."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.hostlist import expand
from slurm_elastic.model import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers.aws.requests import chunks
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import MAX_NODE_TAGS
from slurm_elastic.providers.base.tags import (
    MAX_VALUE,
    NodeNames,
    in_order,
    node_tags,
    nodes_text,
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
