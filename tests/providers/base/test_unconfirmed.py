"""Machines that may have been ordered are not ordered again before lists must show them."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError, UnsettledError
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.providers.opennebula.errors import is_refusal as one_refuses
from slurm_elastic.providers.openstack.errors import is_refusal as nova_refuses

LAG = 60.0
NODES = ("n1", "n2", "n3")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def orders(clock: Clock) -> UnconfirmedOrders:
    made = UnconfirmedOrders("nebula", LAG, clock)
    clock.now += 10_000
    return made


def spec(generation: str = "g1", *, again: bool = False) -> LaunchSpec:
    offer = Offer(
        cloud="nebula", location=Location.ON_PREMISES, instance_type="small", zone="default",
        market=Market.RESERVED, price=0.0, cpus=2, memory=4096,
    )  # fmt: skip
    pool = Pool(name="p", cloud="nebula", nodes=NODES, cpus=2, real_memory=3000)
    return LaunchSpec(generation=generation, pool=pool, nodes=NODES, offer=offer, is_repeated=again)


def order(orders: UnconfirmedOrders, *nodes: str, error: Exception | None = None) -> None:
    def refuses(found: ProviderError) -> bool:
        return not isinstance(found, TransientError)

    try:
        with orders.order("g1", nodes, refuses):
            if error is not None:
                raise error
    except type(error or ValueError):
        pass


LOST = TransientError("nebula", "ConnectionResetError", "gone")


@pytest.mark.parametrize("error", [LOST, ValueError("nobody knows"), None])
def test_what_may_have_taken_effect_is_waited_for(
    orders: UnconfirmedOrders, clock: Clock, error: Exception | None
) -> None:
    order(orders, "n1", error=error)
    clock.now += LAG - 1
    with pytest.raises(UnsettledError) as caught:
        orders.require(spec(), ["n1", "n2"])
    assert str(caught.value) == (
        "nebula: Unsettled: 1 machine of this launch may have been started 59s ago by a call "
        "without an answer, and lists may lack them yet: not ordered again for another 1s "
        "(listing_lag)"
    )
    clock.now += 1
    orders.require(spec(), ["n1", "n2"])


def test_a_refused_order_is_no_reason_to_wait(orders: UnconfirmedOrders) -> None:
    order(orders, "n1", error=CapacityError("nebula", "NoLease", "full"))
    orders.require(spec(), NODES)


def test_other_nodes_and_other_launches_do_not_wait(orders: UnconfirmedOrders) -> None:
    order(orders, "n1", error=LOST)
    orders.require(spec(), ["n2", "n3"])
    orders.require(spec("g2"), NODES)
    orders.require(spec(), [])


def test_what_the_lists_have_shown_is_settled(orders: UnconfirmedOrders) -> None:
    order(orders, "n1", "n2", error=LOST)
    orders.listed("g1", ["n1", "n2", "n3"])
    orders.require(spec(), NODES)


def test_each_order_counts_anew(orders: UnconfirmedOrders, clock: Clock) -> None:
    order(orders, "n1", error=LOST)
    clock.now += LAG
    order(orders, "n1", error=LOST)
    clock.now += LAG - 1
    with pytest.raises(UnsettledError):
        orders.require(spec(), ["n1"])


def test_of_orders_that_must_show_by_now_nothing_is_kept(
    orders: UnconfirmedOrders, clock: Clock
) -> None:
    order(orders, "n1", error=LOST)
    clock.now += LAG - 1
    order(orders, "n2", error=LOST)
    assert orders._ordered_at.keys() == {("g1", "n1"), ("g1", "n2")}
    clock.now += 1
    order(orders, "n3", error=LOST)
    assert orders._ordered_at.keys() == {("g1", "n2"), ("g1", "n3")}


def test_it_is_told_how_long_the_latest_order_keeps_all_waiting(
    orders: UnconfirmedOrders, clock: Clock
) -> None:
    order(orders, "n1", error=LOST)
    clock.now += 20
    order(orders, "n2", error=LOST)
    clock.now += 10
    with pytest.raises(UnsettledError, match=r"2 machine.* 10s ago .* for another 50s"):
        orders.require(spec(), NODES)


def test_what_an_earlier_process_ordered_counts_from_the_begin_of_this_one(clock: Clock) -> None:
    orders = UnconfirmedOrders("nebula", LAG, clock)
    orders.require(spec(), NODES)
    clock.now += LAG - 1
    with pytest.raises(UnsettledError, match=r"^nebula: Unsettled: 3 machine.* 59s ago"):
        orders.require(spec(again=True), NODES)
    clock.now += 1
    orders.require(spec(again=True), NODES)


@pytest.mark.parametrize("refuses", [one_refuses, nova_refuses])
def test_only_what_says_that_nothing_was_done_counts_as_a_refusal(refuses) -> None:
    def transient(code: str) -> TransientError:
        return TransientError("c", code, "text")

    assert refuses(CapacityError("c", "NoRoom", "full"))
    assert refuses(ProviderError("c", "HTTP400", "no such flavor"))
    for code in ("NotConnected", "HTTP429", "HTTP503"):
        assert refuses(transient(code)), code
    doubtful = (
        "HTTP500",
        "HTTP502",
        "HTTP504",
        "BadAnswer",
        "TimeoutError",
        "Internal",
        "NotListed",
    )
    for code in doubtful:
        assert not refuses(transient(code)), code
