"""A machine's tags, believed as far as they make sense."""

from __future__ import annotations

import math
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.repair.list_plausibility import (
    MAX_PRICE_PER_HOUR,
    is_price,
    price_in,
    sanitize_listing,
)
from slurm_elastic.state.ledger.machines import machine_row

NOW = 1_800_000_000.0
GOOD = Instance(
    id="i-1", cloud="pub", node="pub1", generation="g1700000000000-00ff00ff", instance_type="small",
    zone="zone-1", market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=NOW - 60,
    address="10.0.0.1",
)  # fmt: skip


def only(**changes: object) -> tuple[Instance, str]:
    found = sanitize_listing([replace(GOOD, **changes)], lambda _: 7.0, NOW)
    (machine,) = found.machines
    return machine, found.doubts.get(machine.id, "")


def test_what_makes_sense_is_kept_as_it_is() -> None:
    assert only() == (GOOD, "")
    bare = {"node": "", "generation": "", "address": None, "zone": "", "instance_type": ""}
    assert only(**bare) == (replace(GOOD, **bare), "")


@pytest.mark.parametrize("price", [math.nan, math.inf, -math.inf, -0.01, MAX_PRICE_PER_HOUR * 2])
def test_a_price_that_is_none_counts_as_the_configured_one(price: float) -> None:
    machine, doubt = only(price=price)
    assert machine.price == 7.0
    assert doubt == f"price {price} is not possible: it counts as $7.00/h"


def test_a_machine_whose_price_its_cloud_does_not_know_costs_the_configured_one() -> None:
    machine, doubt = only(price=0.0, is_price_known=False)
    assert (machine.price, machine.is_price_known, doubt) == (7.0, True, "")


@pytest.mark.parametrize(
    ("price", "possible"),
    [(0.0, True), (0.004, True), (10_000.0, True), (10_000.01, False), (-0.001, False)],
)
def test_a_machine_may_cost_nothing_and_ten_thousand_dollars_an_hour_at_most(
    price: float, *, possible: bool
) -> None:
    assert is_price(price) is possible
    assert only(price=price)[0].price == (price if possible else 7.0)


@pytest.mark.parametrize("node", ["pub1 State=DOWN", "pub1\n", "\x1b[2Jpub1", "\udcff", "n" * 256])
def test_a_node_that_is_no_name_is_not_known(node: str) -> None:
    machine, doubt = only(node=node)
    assert machine == replace(GOOD, node="")
    assert doubt.endswith("is no name: its node is not known")
    assert doubt.isprintable()
    assert doubt.isascii()


@pytest.mark.parametrize("generation", ["g1\x00", "g" * 65, "g²²²²²²²²²²²²²"])
def test_a_generation_that_is_none_is_not_known(generation: str) -> None:
    assert only(generation=generation)[0] == replace(GOOD, generation="")


@pytest.mark.parametrize("address", ["10.0.0.1 State=DOWN", "-x", "", "a\n", "1" * 256])
def test_an_address_that_is_none_is_not_told_to_slurm(address: str) -> None:
    assert only(address=address)[0].address is None


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "::1", "node-1.example.org"])
def test_addresses_of_every_kind_are_kept(address: str) -> None:
    assert only(address=address)[0].address == address


@pytest.mark.parametrize("launched", [math.nan, math.inf, -1.0, 1e300])
def test_a_launch_time_that_is_none_is_now(launched: float) -> None:
    assert only(launched=launched)[0].launched == NOW


def test_a_machine_without_a_usable_id_is_told_of_and_the_others_are_kept() -> None:
    listed = [GOOD, replace(GOOD, id="i-\x1b[2J"), replace(GOOD, id=""), replace(GOOD, id="i-2")]
    found = sanitize_listing(listed, lambda _: 0.0, NOW)
    assert [one.id for one in found.machines] == ["i-1", "i-2"]
    assert set(found.unusable) == {r"i-\x1b[2J", ""}
    assert "end it with the cloud's own tools" in found.unusable[""]


def test_a_tags_price() -> None:
    texts = ("0.25", "0", "nan", "-1", "inf", "1e99", "", "free", "1_0", None)
    assert [price_in(t) for t in texts] == [0.25, 0.0, *[None] * 6, 10.0, None]


text = st.text(st.characters(exclude_categories=()), max_size=300)
anything = st.builds(
    Instance, id=text, cloud=st.just("pub"), node=text, generation=text, instance_type=text,
    zone=text, market=st.sampled_from(Market), price=st.floats(), state=st.sampled_from(InstanceState),
    launched=st.floats(), address=st.none() | text,
)  # fmt: skip


@given(st.lists(anything, max_size=5))
def test_whatever_a_cloud_lists_fits_into_the_ledger_and_is_told_in_plain_characters(
    listed: list[Instance],
) -> None:
    found = sanitize_listing(listed, lambda _: 1.0, NOW)
    assert len(found.machines) == sum(
        bool(i.id) and i.id.isascii() and i.id.isprintable() and " " not in i.id and len(i.id) < 256
        for i in listed
    )
    db = sqlite3.connect(":memory:")
    for machine in found.machines:
        row = machine_row(Machine(instance=machine, pool=""))
        assert tuple(db.execute(f"select {', '.join('?' * len(row))}", row).fetchone()) == row
    db.close()
    assert all(why.isprintable() for why in (*found.doubts.values(), *found.unusable))


def test_all_that_is_wrong_with_a_machine_is_told() -> None:
    _, doubt = only(
        node="a b", generation="g h", instance_type="t\n", zone="z\x00", address="-x",
        launched=-1.0, price=-1.0,
    )  # fmt: skip
    assert doubt.split("; ") == [
        "node a b is no name: its node is not known",
        "generation g h is none: its launch is not known",
        "instance type t\\n is none",
        "zone z\\x00 is none",
        "address -x is none",
        "launch time -1.0 is not possible: it counts from now",
        "price -1.0 is not possible: it counts as $7.00/h",
    ]


@pytest.mark.parametrize(
    ("field", "most"),
    [("node", 255), ("generation", 64), ("instance_type", 255), ("zone", 255), ("address", 255)],
)
def test_a_text_is_believed_up_to_its_length(field: str, most: int) -> None:
    assert only(**{field: "n" * most}) == (replace(GOOD, **{field: "n" * most}), "")
    machine, doubt = only(**{field: "n" * (most + 1)})
    assert not getattr(machine, field)
    assert f" {'n' * min(most + 1, 80)} is " in doubt, "the start of it is shown"


def test_an_id_has_255_characters_at_most() -> None:
    listed = [replace(GOOD, id="i" * n) for n in (255, 256)]
    assert [len(one.id) for one in sanitize_listing(listed, lambda _: 0.0, NOW).machines] == [255]


def test_a_machine_may_be_as_old_as_unix_and_of_the_year_2242_at_most() -> None:
    assert only(launched=0.0)[0].launched == 0.0
    assert only(launched=2.0**33 - 1)[0].launched == 2.0**33 - 1
    assert only(launched=2.0**33)[0].launched == NOW
