"""Who may reach the head, and which address each node has in the tunnel."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_cases import changed
from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.machine.programs.tunnel import own_address
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.memory import Machine, Tunnel
from slurm_elastic.policies.repair.peers import Enrolling, admission, may_enrol_once, newest
from slurm_elastic.policies.repair.tunnel_addresses import (
    TunnelPeer,
    addresses_of,
    blocks,
    head_address,
    room_for,
)

SUBNET = "10.99.0.0/24"
ADDRESSES = {"pub1": "10.99.0.8", "pub2": "10.99.0.9"}
CLOUDS = frozenset({"aws"})
sizes = st.dictionaries(st.text("abcdef", min_size=1, max_size=6), st.integers(1, 60), max_size=8)


def machine(
    node: str = "pub1", cloud: str = "aws", generation: str = "g1", **more: object
) -> Machine:
    one = Instance(
        id=f"i-{node}-{generation}", cloud=cloud, node=node, generation=generation, instance_type="c",
        zone="z", market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=0.0,
        address="10.0.0.5",
    )  # fmt: skip
    return changed(Machine(instance=one, pool="pub"), **more)


def tunnel(node: str = "pub1", generation: str = "g1", key: str = "K") -> Tunnel:
    return Tunnel(generation=generation, node=node, address=ADDRESSES[node], key=key, since=0.0)


def test_a_machine_that_enrolled_is_let_in_until_its_end_is_decided() -> None:
    seen = admission([machine()], [], [tunnel()], ADDRESSES, CLOUDS)
    assert seen.peers == (TunnelPeer(address="10.99.0.8", key="K"),)
    assert (seen.enrolling, seen.over) == ((), ())
    seen = admission([machine(suspending=5.0)], [], [tunnel()], ADDRESSES, CLOUDS)
    assert (seen.peers, seen.enrolling, seen.over) == ((), (), (tunnel(),))
    assert admission([], [], [tunnel()], ADDRESSES, CLOUDS).over == (tunnel(),)


@pytest.mark.parametrize("state", [InstanceState.STOPPING, InstanceState.STOPPED])
def test_a_list_with_a_wanted_machine_as_off_keeps_its_peer(state: InstanceState) -> None:
    some = [machine(), machine("pub2", cloud="onprem")]
    listed = [replace(m, instance=replace(m.instance, state=state)) for m in some]
    seen = admission(listed, [], [tunnel()], ADDRESSES, CLOUDS)
    assert seen == admission(some, [], [tunnel()], ADDRESSES, CLOUDS)
    assert len(seen.peers) == 2
    assert seen.over == ()


def test_the_key_of_a_machine_is_not_that_of_the_next_one_for_its_node() -> None:
    seen = admission([machine(generation="g2")], [], [tunnel()], ADDRESSES, CLOUDS)
    assert (seen.peers, seen.over) == ((), (tunnel(),))
    assert [(e.generation, e.node, e.address) for e in seen.enrolling] == [
        ("g2", "pub1", "10.99.0.8")
    ]


def test_machines_without_a_tunnel_come_from_their_own_addresses() -> None:
    some = [machine(cloud="onprem"), machine("pub2", cloud="onprem")]
    seen = admission(some, [], [], {}, CLOUDS)
    assert seen.peers == (TunnelPeer(address="10.0.0.5"),)


@pytest.mark.parametrize(("resume_timeout", "good_s"), [(420.0, 600), (1800.0, 1800)])
def test_a_key_for_enrolling_is_good_for_ten_minutes_or_a_longer_resume_timeout(
    resume_timeout: float, good_s: int
) -> None:
    born = 1_800_000_000.0
    (one,) = admission(
        [machine(generation=f"g{int(born * 1000):013d}-x")], [], [], ADDRESSES, CLOUDS
    ).enrolling
    assert may_enrol_once(one, born + good_s - 1, resume_timeout)
    assert not may_enrol_once(one, born + good_s, resume_timeout)


@given(sizes)
def test_blocks_keep_apart_in_any_order(pools: dict[str, int]) -> None:
    if not room_for("10.99.0.0/20", list(pools.values())):
        return
    placed = blocks("10.99.0.0/20", pools)
    spans = sorted((start, start + pools[name]) for name, start in placed.items())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(start >= 8 and end <= 4096 - 8 for start, end in spans)
    assert blocks("10.99.0.0/20", dict(reversed(pools.items()))) == placed


def test_another_pool_moves_none_of_the_others() -> None:
    before = {f"pool{n}": 20 for n in range(5)}
    old = blocks("10.99.0.0/16", before)
    new = blocks("10.99.0.0/16", before | {"another": 100})
    assert {name: new[name] for name in before} == old


@given(st.lists(st.from_regex(r"(pub|gpu-)[0-9]{1,3}", fullmatch=True), min_size=1, max_size=40,
                unique=True))  # fmt: skip
def test_a_machine_finds_the_same_address(names: list[str]) -> None:
    nodes = expand(compress(names))
    addresses = addresses_of("10.99.0.0/16", {"pub": nodes, "other": ["x1"]})
    settings = {"pools": {"pub": {"first": addresses[nodes[0]], "nodes": compress(nodes)}}}
    found = {n: own_address(settings, {"pool": "pub", "node": n}) for n in nodes}
    assert found == {n: addresses[n] for n in nodes}
    assert len(set(addresses.values())) == len(addresses)
    inside = IPv4Network("10.99.0.0/16")
    assert all(IPv4Address(a) in inside and a != head_address(str(inside)) for a in found.values())


def test_an_address_that_no_rule_can_have_keeps_nobody_else_out() -> None:
    def at(node: str, address: str) -> Machine:
        one = machine(node, cloud="other")
        return replace(one, instance=replace(one.instance, address=address))

    some = [at("a", "2001:db8::1"), at("b", "host.example.org"), at("c", "10.99.0.77"),
            at("d", "10.0.0.9")]  # fmt: skip
    seen = admission(some, [], [], ADDRESSES, CLOUDS, SUBNET)
    assert seen.peers == (TunnelPeer(address="10.0.0.9"),)
    assert TunnelPeer(address="10.99.0.77") in admission(some, [], [], ADDRESSES, CLOUDS).peers


def test_an_address_is_that_of_the_latest_launch_of_its_node() -> None:
    def coming(generation: str, node: str) -> Enrolling:
        return Enrolling(generation=generation, node=node, address=ADDRESSES[node])

    late, early = "g2000000000000-0a", "g1000000000000-0b"
    some = [coming(generation, node) for generation in (late, early) for node in ADDRESSES]
    assert {e.generation for e in newest(some, ())} == {late}
    assert [e.node for e in newest(some, ["10.99.0.8"])] == ["pub2"]


@pytest.mark.parametrize(
    ("counts", "fit"), [((64, 32, 16, 8), True), ((64, 32, 16, 8, 1), False), ((61, 0, 1), True)]
)
def test_half_of_a_subnet_but_its_first_block_is_for_pools(
    counts: tuple[int, ...], *, fit: bool
) -> None:
    assert room_for("10.99.0.0/24", counts) is fit


def test_a_block_holds_its_pool_and_eight_at_least() -> None:
    nodes = {"a": [f"a{i}" for i in range(8)], "b": ["b0"]}
    found = addresses_of("10.99.0.0/27", nodes)
    own = {found[name] for name in nodes["a"]}
    assert own in (
        {f"10.99.0.{n}" for n in range(8, 16)}, {f"10.99.0.{n}" for n in range(16, 24)},
    )  # fmt: skip
    assert found["b0"] in {"10.99.0.8", "10.99.0.16"} - own
    assert head_address("10.99.0.0/27") == "10.99.0.1"


@pytest.mark.parametrize(("subnet", "sizes"), [("10.99.0.0/28", {"a": 1}),
                                               ("10.99.0.0/27", {"a": 9}),
                                               ("10.99.0.0/27", {"a": 1, "b": 8, "c": 1})])  # fmt: skip
def test_where_there_is_no_room_the_pool_and_the_subnet_are_named(
    subnet: str, sizes: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match=rf"no room for pool \w in {subnet}"):
        blocks(subnet, sizes)
