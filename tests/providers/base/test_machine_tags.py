"""A machine as the tags tell of it that were given with the one call which made it."""

from __future__ import annotations

import pytest

from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers.base.hosts.host_settings import HostsCloud
from slurm_elastic.providers.base.machine_tags import (
    MADE,
    MARKET,
    TYPE,
    ZONE,
    Spelling,
    bought,
    machine_of,
    marks_of,
)
from slurm_elastic.providers.base.tags import NODES, PRICE
from slurm_elastic.testing.contract import CLUSTER

SETTINGS = HostsCloud(
    name="rack", location=Location.ON_PREMISES, hosts={"n1": "bmc1"},
    types={"host": InstanceType(cpus=2, memory=4096, price=0.05)},
)  # fmt: skip
POOL = Pool(name="p", cloud="rack", nodes=("n1", "n2"), cpus=2, real_memory=3000)
OFFER = Offer(
    cloud="rack", location=Location.ON_PREMISES, instance_type="host", zone="hall",
    market=Market.ON_DEMAND, price=0.25, cpus=2, memory=4096,
)  # fmt: skip
SPEC = LaunchSpec(
    generation="g1", pool=POOL, nodes=("n1", "n2"), offer=OFFER, jobs=(7,), owner={"user": "ann"}
)
MARKS = marks_of(SPEC, "n2", CLUSTER, "rack", 1_800_000_000.4)


def test_a_machine_is_read_as_it_was_marked() -> None:
    one = machine_of("n2-g1", MARKS, SETTINGS, InstanceState.RUNNING, "10.0.0.2")
    assert (one.id, one.cloud, one.node, one.generation) == ("n2-g1", "rack", "n2", "g1")
    assert (one.instance_type, one.zone, one.market) == ("host", "hall", Market.ON_DEMAND)
    assert (one.price, one.launched) == (0.25, 1_800_000_000.0)
    assert (one.state, one.address) == (InstanceState.RUNNING, "10.0.0.2")


@pytest.mark.parametrize("made", ["", "-5", "1e9", "soon"])
def test_one_whose_marks_were_spoilt_is_old_and_has_no_price_of_its_own(made: str) -> None:
    spoilt = MARKS | {MADE: made, PRICE: "nothing", MARKET: "x", NODES: "n["}
    del spoilt[ZONE], spoilt[TYPE]
    one = machine_of("n2-g1", spoilt, SETTINGS, InstanceState.RUNNING, None)
    assert (one.launched, one.is_price_known, one.market) == (0.0, False, Market.RESERVED)
    assert (one.node, one.zone, one.instance_type) == ("", "default", "")


@pytest.mark.parametrize("node", ["n2", "n002", "7", "a1b", "x" * 20 + "1" * 20])
def test_keys_of_another_spelling_are_read_as_they_were_written(node: str) -> None:
    spelling = Spelling(lambda key: key.upper().replace("-", "_").replace(":", "_"))
    written = spelling.written(SPEC, node, CLUSTER, "rack")
    assert (written["SLURM_ELASTIC_NODE"], written["SLURM_ELASTIC_USER"]) == (node, "ann")
    assert all(key.replace("_", "").isalpha() for key in written)
    read = spelling.read(written | {"SCHED_MESSAGE": "no room"})
    wanted = bought(SPEC, [node], CLUSTER, "rack")
    del wanted["Name"], wanted[ZONE]
    assert read == wanted | {"SCHED_MESSAGE": "no room"}
