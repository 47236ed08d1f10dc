"""Launches and machines as rows: all of each comes back, and what a machine may cost at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledger_cases import T0, instance, offer, spec
from machine_cases import changed
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import InstanceState, Market, worst_price
from slurm_elastic.model.launch_states import Done
from slurm_elastic.model.memory import Launch, Machine, PurchaseTerms
from slurm_elastic.state.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as made:
        yield made


OTHER = offer(zone="eu-west-1b", on_demand=0.5)


def test_a_launch_comes_back_whole(ledger: Ledger) -> None:
    ledger.books.record_payers({"pub1": {"physics": 2}, "pub9": {"bio": 1}}, T0)
    asked = replace(spec(jobs=(1, 2)), alternatives=(OTHER,), owner={"user": "ann"})
    terms = {"m5.large": PurchaseTerms(billing_increment_s=3600, on_demand_price=0.3)}
    ledger.launches.record_intent(asked, "r1", T0, terms)
    row = Launch(
        generation="g1", request="r1", pool="burst", cloud="aws", nodes=("pub1", "pub2"),
        jobs=(1, 2), offer=offer(), alternatives=(OTHER,), created=T0,
        accounts={"pub1": {"physics": 2}}, owner={"user": "ann"}, terms=terms,
    )  # fmt: skip
    assert ledger.launches.open() == (row,)
    assert ledger.launches.get("g1") == row
    assert ledger.launches.get("g2") is None
    assert ledger.launches.finish_times(["g1"]) == {}
    ledger.machines.record_launch("g1", [], T0 + 5)
    ledger.machines.record_launch("g1", [], T0 + 9)
    assert ledger.launches.get("g1") == replace(row, state=Done(finished_at=T0 + 5))
    assert ledger.launches.finish_times(["g1", "g2"]) == {"g1": T0 + 5}
    assert ledger.launches.finish_times([]) == {}


def test_a_machine_comes_back_whole(ledger: Ledger) -> None:
    one = instance("i-1", state=InstanceState.RUNNING, address="10.0.0.7")
    ledger.books.record_payers({"pub1": {"physics": 2}}, T0)
    ledger.launches.record_intent(spec(jobs=(1, 2)), "r1", T0)
    ledger.machines.record_launch("g1", [one], T0 + 5)
    row = Machine(
        instance=one, pool="burst", jobs=(1, 2), last_seen=T0 + 5, worst_price=0.12,
        accounts={"physics": 2},
    )  # fmt: skip
    assert ledger.machines.live() == (row,)
    ledger.machines.record_registration("aws", ["i-1"], T0 + 6)
    ledger.machines.record_ending("aws", ["i-1"], Quoted(text="too old"), T0 + 7)
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), T0 + 8)
    ended = changed(
        row, instance=replace(one, state=InstanceState.TERMINATED), registered=T0 + 6,
        suspending=T0 + 7, ended=T0 + 8, cause=Quoted(text="too old"),
    )  # fmt: skip
    assert ledger.machines.live() == ()
    assert ledger.machines.live(ended_since=T0 + 8) == (ended,)
    assert ledger.machines.live(ended_since=T0 + 8.5) == ()


@pytest.mark.parametrize("adopts", [False, True])
def test_a_machine_is_billed_by_the_terms_that_held_when_its_launch_was_decided(
    ledger: Ledger, *, adopts: bool
) -> None:
    """The configuration may change between the intent and the row of the machine."""
    one, then = instance("i-1"), PurchaseTerms(billing_increment_s=3600)
    now = PurchaseTerms(billing_increment_s=60)
    ledger.launches.record_intent(spec(), "r1", T0, {one.instance_type: then})
    if adopts:
        ledger.machines.adopt(one, "burst", T0 + 90, terms=now)
    else:
        ledger.machines.record_launch("g1", [one], T0 + 90, lambda _: now)
    assert [m.terms for m in ledger.machines.live()] == [then]


def test_a_type_that_the_intent_does_not_name_has_the_terms_of_now(ledger: Ledger) -> None:
    now = PurchaseTerms(billing_increment_s=60)
    ledger.launches.record_intent(spec(), "r1", T0, {"another": PurchaseTerms(disk_price=9.0)})
    ledger.machines.record_launch("g1", [instance("i-1")], T0 + 90, lambda _: now)
    assert [m.terms for m in ledger.machines.live()] == [now]


def test_both_are_told_as_of_one_moment(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.launches.record_intent(spec("g2", ("pub3",)), "r2", T0)
    ledger.machines.record_launch("g1", [instance("i-1"), instance("i-2", "pub2")], T0)
    ledger.machines.record_end("aws", ["i-2"], Quoted(text="gone"), T0)
    state = ledger.state()
    assert [m.instance.id for m in state.machines] == ["i-1"]
    assert [row.generation for row in state.launches] == ["g2"]


def test_clouds_that_have_or_had_machines_are_named(ledger: Ledger) -> None:
    for number, cloud in enumerate(("gcp", "aws", "old")):
        at = offer(cloud)
        generation = f"g{number}"
        ledger.launches.record_intent(spec(generation, ("pub1",), bought=at), "r", T0)
        ledger.machines.record_launch(
            generation, [instance("i", generation=generation, bought=at)], T0
        )
    ledger.machines.record_end("gcp", ["i"], Quoted(text="gone"), T0 + 10)
    ledger.machines.record_end("old", ["i"], Quoted(text="gone"), T0 + 5)
    assert ledger.machines.clouds(T0 + 10) == ("aws", "gcp")
    assert ledger.machines.clouds(T0 + 11) == ("aws",)


@pytest.mark.parametrize(
    ("bought", "alternatives", "worst"),
    [
        (offer(), (), 0.12),
        (offer(), (OTHER,), 0.12),
        (OTHER, (OTHER,), 0.5),
        # Of an offer that the launch does not name: the dearest that it does.
        (offer(type_="strange"), (OTHER,), 0.5),
        (offer(market=Market.ON_DEMAND, price=0.9, on_demand=None), (), 0.9),
        (offer(price=0.3), (), 0.3),
    ],
)
def test_the_most_that_a_machine_may_cost_is_that_of_its_offer(
    ledger: Ledger, bought: object, alternatives: tuple[object, ...], worst: float
) -> None:
    ledger.launches.record_intent(replace(spec(), alternatives=alternatives), "r", T0)
    launch = ledger.launches.get("g1")
    assert launch is not None
    assert worst_price(instance(bought=bought), launch.offers) == worst  # type: ignore[arg-type]
    ledger.machines.record_launch("g1", [instance("i-1", bought=bought)], T0)  # type: ignore[arg-type]
    assert [m.worst_price for m in ledger.machines.live()] == [worst]


def test_only_what_is_to_be_stopped_has_stopped(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1"), instance("i-2", "pub2")], T0)
    ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 10)
    ledger.stops.record_stopped("aws", {"i-1": 0.01, "i-2": 0.01, "i-9": 0.01}, T0 + 20)
    ledger.stops.record_stopped("aws", {"i-1": 0.02}, T0 + 30)
    (one,) = ledger.stops.machines()
    assert (one.instance.id, one.instance.price, one.life.since) == ("i-1", 0.01, T0 + 20)
    assert [m.instance.id for m in ledger.machines.live()] == ["i-2"]


def test_a_stopped_machine_that_is_to_be_ended_is_stopped_no_more(ledger: Ledger) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1"), instance("i-2", "pub2")], T0)
    ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 10)
    ledger.stops.record_stopped("aws", {"i-1": 0.01}, T0 + 20)
    ledger.stops.record_ending_of_stopped("aws", ["i-1", "i-2"], Quoted(text="too old"), T0 + 30)
    assert not ledger.stops.machines()
    one, other = sorted(ledger.machines.live(), key=lambda m: m.instance.id)
    assert (one.instance.price, one.retired_at, str(one.cause_text)) == (0.01, T0 + 30, "too old")
    assert other.is_wanted, "it was not stopped"


@pytest.mark.parametrize(("stopped", "worst"), [(0.01, 0.04), (0.05, 0.05)])
def test_the_most_that_a_machine_may_cost_that_somebody_has_started_is_the_dearer_price(
    ledger: Ledger, stopped: float, worst: float
) -> None:
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1")], T0)
    ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 10)
    ledger.stops.record_stopped("aws", {"i-1": stopped}, T0 + 20)
    ledger.stops.record_running(replace(instance("i-1"), price=0.04), T0 + 30)
    (one,) = ledger.machines.live()
    assert (one.instance.price, one.worst_price, one.registered_at) == (0.04, worst, T0 + 30)


def test_the_part_of_a_life_that_a_machine_was_stopped_is_told_where_it_is_asked_for(
    ledger: Ledger,
) -> None:
    def parts(*, stopped: bool) -> set[str]:
        return {m.instance.id for m in ledger.machines.live(ended_since=0.0, stopped=stopped)}

    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1")], T0)
    ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), T0 + 10)
    ledger.stops.record_stopped("aws", {"i-1": 0.01}, T0 + 20)
    ledger.stops.record_ending_of_stopped("aws", ["i-1"], Quoted(text="too old"), T0 + 30)
    assert parts(stopped=False) == {"i-1@1", "i-1"}
    assert parts(stopped=True) == {"i-1@1", "i-1@2", "i-1"}
