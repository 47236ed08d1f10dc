"""One launch on a nova in memory: what stands, what is over, which calls are made, what is believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers.base import tags
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.providers.openstack import launch as module
from slurm_elastic.providers.openstack import requests
from slurm_elastic.providers.openstack.convert import DELETING, ServerFields
from slurm_elastic.providers.openstack.errors import NO_HOST
from slurm_elastic.providers.openstack.launch import ServerLaunch
from slurm_elastic.testing.contract import UUID

PATIENCE = 10.0
DAY = 86400.0
NODES = tuple(f"n{n}" for n in range(1, 9))
FULL = CapacityError("stack", NO_HOST, "no valid host")
BROKEN = ProviderError("stack", "Broken", "the image is broken")


def spec(*nodes: str, generation: str = "g1") -> LaunchSpec:
    offer = Offer(
        cloud="stack", location=Location.ON_PREMISES, instance_type="small", zone="z",
        market=Market.ON_DEMAND, price=0.1, cpus=2, memory=4096,
    )  # fmt: skip
    pool = Pool(name="p", cloud="stack", nodes=NODES, cpus=2, real_memory=3000)
    return LaunchSpec(generation=generation, pool=pool, nodes=nodes or NODES[:2], offer=offer)


class Nova:
    """Its servers, the orders that it was given, and what it does with each."""

    name = "stack"

    def __init__(self) -> None:
        self.now = 1000.0
        self.there: list[ServerFields] = []
        self.gone: list[ServerFields] = []
        self.since: list[float] = []
        self.orders: list[tuple[int, tuple[str, ...]]] = []
        self.deleted: list[str] = []
        self.faults: dict[str, ProviderError] = {}
        self.then: Callable[[int, Sequence[str]], None] = self.makes
        self.looks = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def live(self, mark: str) -> list[ServerFields]:
        assert mark == requests.mark(UUID, "g1")
        self.looks += 1
        self.meanwhile()
        return list(self.there)

    def ended(self, mark: str, since: float) -> list[ServerFields]:
        self.since.append(since)
        return self.gone

    def delete(self, ids: Sequence[str]) -> None:
        self.deleted += ids
        self.there = [one for one in self.there if one.id not in ids]

    def fault(self, server: str) -> ProviderError:
        return self.faults[server]

    def order(self, spec: LaunchSpec, start: int, nodes: Sequence[str]) -> None:
        self.orders.append((start, tuple(nodes)))
        self.then(start, nodes)

    def makes(self, start: int, nodes: Sequence[str], **fields: Any) -> None:
        call = f"{start}.{len(self.orders)}"
        self.there += [
            server(node, start, n, len(nodes), **({"id": f"{node}@{call}"} | fields))
            for n, node in enumerate(nodes)
        ]

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < PATIENCE
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def server(node: str, start: int = 0, number: int = 0, of: int = 1, **fields: Any) -> ServerFields:
    label = f"x{requests.mark(UUID, 'g1')}{start}" + (f"-{number + 1}" if of > 1 else "")
    return ServerFields(**({
        "id": f"{node}@{start}", "name": label, "status": "ACTIVE", "task": "", "created": 5.0,
        "placed": True, "started": True, "powered": True, "tags": {tags.GENERATION: "g1"},
        "node": node, "address": None,
    } | fields))  # fmt: skip


FAILED = {"status": "ERROR", "started": False, "powered": False, "placed": False}


@pytest.fixture
def nova(monkeypatch: pytest.MonkeyPatch) -> Nova:
    made = Nova()
    monkeypatch.setattr(module, "time", made)
    return made


def launch(
    nova: Nova,
    one: LaunchSpec | None = None,
    *,
    now: float = 50 * DAY,
    warned: ProviderError | None = None,
    unconfirmed: UnconfirmedOrders | None = None,
) -> ServerLaunch:
    orders = unconfirmed or UnconfirmedOrders("stack", 0.0, nova.monotonic)
    made = ServerLaunch(
        nova, nova.order, lambda: warned, UUID, one or spec(), PATIENCE, orders  # type: ignore[arg-type]
    )  # fmt: skip
    made.run(now)
    return made


def nodes(one: ServerLaunch) -> list[str]:
    return sorted(one.standing)


# looking back


def test_what_stands_is_not_ordered_again(nova: Nova) -> None:
    assert nodes(launch(nova)) == ["n1", "n2"]
    assert nodes(launch(nova)) == ["n1", "n2"]
    assert nova.orders == [(0, ("n1", "n2"))]


def test_one_that_was_started_twice_is_ended_the_later_one(
    nova: Nova, caplog: pytest.LogCaptureFixture
) -> None:
    nova.makes(0, ("n1", "n2"))
    nova.there += [
        server("n1", id="late", created=6.0), server("n2", id="a", created=5.0),
        server("n2", id="b", created=7.0),
    ]  # fmt: skip
    found = launch(nova)
    assert {one.id for one in found.standing.values()} == {"n1@0.0", "a"}
    assert sorted(nova.deleted) == ["b", "late", "n2@0.0"], (
        "of two of one moment the lesser id stays"
    )
    assert "second machines of nodes ended generation=g1 count=3" in caplog.messages


def test_nothing_is_said_where_none_was_started_twice(
    nova: Nova, caplog: pytest.LogCaptureFixture
) -> None:
    launch(nova)
    assert caplog.messages == []


def test_machines_of_other_launches_and_other_nodes_are_let_be(nova: Nova) -> None:
    other = server("n1", id="other", tags={tags.GENERATION: "g0"})
    strange = server("n7", id="strange", name="renamed")
    nova.there = [other, strange]
    found = launch(nova)
    assert nodes(found) == ["n1", "n2"]
    assert nova.deleted == []
    assert nova.orders == [(0, ("n1", "n2"))]


@pytest.mark.parametrize(
    ("generation", "since"), [("g1800000000500-ab", 1_800_000_000.5), ("g1", 49 * DAY)]
)
def test_ended_ones_are_looked_for_from_the_launch_on_or_for_a_day(
    nova: Nova, monkeypatch: pytest.MonkeyPatch, generation: str, since: float
) -> None:
    monkeypatch.setattr(nova, "live", lambda _: [])
    with pytest.raises(TransientError, match="NotListed"):
        launch(nova, spec(generation=generation))
    assert nova.since == [since - 600.0], "clocks may differ"


@pytest.mark.parametrize("status", ["SHUTOFF", "ACTIVE"])
def test_one_that_stops_or_is_being_deleted_is_over(nova: Nova, status: str) -> None:
    nova.makes(0, ("n1", "n2"))
    task = DELETING if status == "ACTIVE" else ""
    nova.there[1] = replace(nova.there[1], status=status, task=task)
    assert nodes(launch(nova)) == ["n1"]
    assert (nova.orders, nova.deleted) == ([], [])


def test_of_a_call_whose_machines_are_gone_none_is_ordered_again(nova: Nova) -> None:
    nova.gone = [server("", 0, n, 2) for n in range(2)]
    waits = UnconfirmedOrders("stack", 60.0, nova.monotonic)
    assert nodes(launch(nova, unconfirmed=waits)) == []
    assert nova.orders == []


def test_what_is_over_of_a_later_call_is_not_waited_for(nova: Nova) -> None:
    many = tuple(f"m{n}" for n in range(250))
    nova.gone = [server("", 100, n, 100) for n in range(100)]
    waits = UnconfirmedOrders("stack", 60.0, nova.monotonic)
    with waits.order("g1", ["m105"], lambda _: False):
        pass
    launch(nova, spec(*many), unconfirmed=waits)
    assert [start for start, _ in nova.orders] == [0, 200]


def test_one_that_never_had_a_host_says_nothing_of_its_call(nova: Nova) -> None:
    nova.gone = [server("", 0, n, 2, placed=False) for n in range(2)]
    assert nodes(launch(nova)) == ["n1", "n2"]
    assert nova.orders == [(0, ("n1", "n2"))]


def test_a_machine_that_may_be_there_is_waited_for(nova: Nova) -> None:
    waits = UnconfirmedOrders("stack", 60.0, nova.monotonic)
    with waits.order("g1", ["n2"], lambda _: False):
        pass
    with pytest.raises(UnsettledError, match="1 machine"):
        launch(nova, unconfirmed=waits)
    assert nova.orders == []


def test_a_call_that_was_carried_out_is_not_made_again_but_those_after_it_are(nova: Nova) -> None:
    many = tuple(f"m{n}" for n in range(250))
    nova.makes(100, many[100:200])
    found = launch(nova, spec(*many))
    assert len(found.standing) == 250
    assert [(start, len(some)) for start, some in nova.orders] == [(0, 100), (200, 50)]


def test_a_refusal_from_before_is_told_where_nothing_has_begun(nova: Nova) -> None:
    denied = AuthError("stack", "Denied", "no")
    found = launch(nova, warned=denied)
    assert (found.refusal, nova.orders) == (denied, [])
    nova.makes(0, ("n1",))
    found = launch(nova, warned=denied)
    assert (found.refusal, nodes(found)) == (None, ["n1"])


# calls


def refuses(nova: Nova, error: ProviderError) -> None:
    def order(start: int, some: Sequence[str]) -> None:
        raise error

    nova.then = order


def test_a_refusal_ends_the_launch(nova: Nova) -> None:
    quota = QuotaError("stack", "Quota", "no cores")
    refuses(nova, quota)
    found = launch(nova, spec(*(f"m{n}" for n in range(150))))
    assert (found.refusal, found.standing) == (quota, {})
    assert len(nova.orders) == 1
    refuses(nova, TransientError("stack", "Timeout", "?"))
    with pytest.raises(TransientError, match="Timeout"):
        launch(nova)


def room_for(nova: Nova, count: int, fault: ProviderError = FULL) -> None:
    """nova's scheduler places all machines of a call or none."""

    def order(start: int, some: Sequence[str]) -> None:
        standing = sum(one.status == "ACTIVE" for one in nova.there)
        fits = standing + len(some) <= count
        nova.makes(start, some, **({} if fits else FAILED))
        nova.faults |= {one.id: fault for one in nova.there}

    nova.then = order


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(8, [8]), (7, [8, 4, 2, 1]), (4, [8, 4, 2, 1]), (5, [8, 4, 2, 1]), (0, [8, 4, 2, 1])],
)
def test_where_there_is_no_room_half_as_many_are_tried(
    nova: Nova, count: int, sizes: list[int]
) -> None:
    room_for(nova, count)
    found = launch(nova, spec(*NODES))
    assert nodes(found) == list(NODES[:count])
    assert [len(some) for _, some in nova.orders] == sizes
    assert (found.refusal is None) is (count == 8)
    failed = sum(len(some) for _, some in nova.orders) - count
    assert len(nova.deleted) == failed


def test_another_fault_is_not_tried_with_fewer(
    nova: Nova, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    room_for(nova, 0, BROKEN)
    assert launch(nova).refusal == BROKEN
    assert len(nova.orders) == 1
    assert caplog.messages == [
        "machines failed generation=g1 count=2 of=2 error=stack: Broken: the image is broken"
    ]


def test_halves_are_tried_for_three_times_the_patience(nova: Nova) -> None:
    for seconds, calls in ((3 * PATIENCE, 4), (3 * PATIENCE + 0.1, 1)):
        nova.orders.clear()
        nova.there.clear()
        room_for(nova, 0)
        whole, begun = nova.then, nova.now

        def slow(
            start: int, some: Sequence[str],
            whole: Any = whole, end: float = begun + seconds,
        ) -> None:  # fmt: skip
            nova.now = end
            whole(start, some)

        nova.then = slow
        launch(nova, spec(*NODES))
        assert len(nova.orders) == calls


def test_some_that_failed_end_the_launch_with_the_others(nova: Nova) -> None:
    def order(start: int, some: Sequence[str]) -> None:
        nova.makes(start, some)
        nova.there[-1] = replace(nova.there[-1], **FAILED)
        nova.faults = {nova.there[-1].id: FULL}

    nova.then = order
    found = launch(nova, spec(*NODES))
    assert (nodes(found), found.refusal) == (list(NODES[:7]), FULL)
    assert (len(nova.orders), nova.deleted) == (1, ["n8@0.1"])


def test_a_quota_that_cuts_a_call_is_no_refusal(
    nova: Nova, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nova.then = lambda start, some: nova.makes(start, some[:3])
    found = launch(nova, spec(*NODES))
    assert (nodes(found), found.refusal) == (list(NODES[:3]), None)
    assert len(nova.orders) == 1
    reason = "launch gets fewer machines generation=g1 reason=the quota left room for 3 of 8"
    assert caplog.messages == [reason]
    assert nova.looks == 3, "fewer are believed when they are as many twice"


# what is believed


@pytest.mark.parametrize("at_once", [(), ("n1",)])
def test_the_schedulers_word_is_waited_for(nova: Nova, at_once: Sequence[str]) -> None:
    nova.then = lambda start, some: nova.makes(start, some, status="BUILD", placed=False)

    def placed() -> None:
        nova.there = [
            replace(one, placed=nova.now > 1003 or one.node in at_once) for one in nova.there
        ]

    nova.meanwhile = placed
    assert nodes(launch(nova)) == ["n1", "n2"]
    assert 1003 < nova.now < 1000 + PATIENCE


def test_but_no_longer_than_patience(nova: Nova) -> None:
    nova.then = lambda start, some: nova.makes(start, some, status="BUILD", placed=False)
    assert nodes(launch(nova)) == ["n1", "n2"]
    assert PATIENCE < nova.now - 1000 <= PATIENCE + 1


def test_an_order_that_shows_nowhere_is_in_doubt(nova: Nova) -> None:
    nova.then = lambda start, some: None
    text = "NotListed: nova took the order of 2 machines and lists none of them"
    with pytest.raises(TransientError, match=text):
        launch(nova)
    assert nova.now - 1000 > PATIENCE


def test_what_goes_wrong_after_an_order_puts_it_in_doubt(
    nova: Nova, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> None:
        if nova.orders:
            raise AuthError("stack", "Denied", "no")

    nova.meanwhile = denied
    text = "Denied: the machines were ordered and cannot be looked after: no"
    with pytest.raises(TransientError, match=text):
        launch(nova)


def test_machines_that_are_listed_are_settled(nova: Nova) -> None:
    waits = UnconfirmedOrders("stack", 60.0, nova.monotonic)
    with waits.order("g1", ["n9"], lambda _: False):
        pass
    whole = nova.makes

    def order(start: int, some: Sequence[str]) -> None:
        with waits.order("g1", some, lambda _: False):
            whole(start, some)

    nova.then = order
    launch(nova, unconfirmed=waits)
    waits.require(spec(), ["n1", "n2"])
    with pytest.raises(UnsettledError):
        waits.require(spec(), ["n9"])
