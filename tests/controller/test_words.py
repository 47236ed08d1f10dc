"""``explain`` and ``status`` on requests, launches, doubts and strays: how much, in which words."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace

import pytest
from ledger_cases import instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.base.errors import TransientError
from slurm_elastic.controller import strays
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.doubted_lists import keep_doubt, review_lasting_doubt
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.launching import provision
from slurm_elastic.controller.launching.launch import assign_addresses, cool_down_partial
from slurm_elastic.controller.launching.launch_decisions import Refusals, record_ranking
from slurm_elastic.controller.snapshot import build_terms, take_snapshot
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.cluster import Instance, Market, NodeRequest, Offer
from slurm_elastic.model.exclusion import DOUBT, Exclusion
from slurm_elastic.model.memory import generation_order, generation_time
from slurm_elastic.model.placement import Placement, Ranked, Rejected
from slurm_elastic.policies.launch.gang import request_for
from slurm_elastic.policies.repair.inventory import InventoryReport
from slurm_elastic.state.ledger import Decision
from tests.controller.world import T0, World


def request(
    world: World, *nodes: str, jobs: dict[int, tuple[str, ...]] | None = None
) -> NodeRequest:
    return request_for("r1", world.site.pools["burst"], nodes, jobs or {})


def kinds_of_machines(count: int) -> list[Offer]:
    return [offer(cloud="pub", type_=f"type-{chr(97 + n)}") for n in range(count)]


def last(world: World, subject: str) -> Decision:
    return world.ledger.decisions.about(subject)[-1]


# rankings and refusals


@pytest.mark.parametrize("enough", [True, False])
def test_of_a_ranking_three_offers_are_told_with_their_reasons_and_the_others_by_name(
    world: World, enough: bool
) -> None:
    offers = kinds_of_machines(5)
    asked = request(world, "pub1", "pub2", jobs={7: ("pub1", "pub2")})
    ranked = tuple(
        Ranked(offer=o, room=n, bound=Quoted(text=f"why {n}")) for n, o in enumerate(offers)
    )
    record_ranking(world.site, Placement(request=asked, ranked=ranked, rejected=()), enough=enough)
    told = last(world, "job:7")
    best = offers[0].key if enough else "none"
    assert str(told.reason) == f"best offer for 2 nodes of pool burst: {best}"
    assert told.detail is not None
    assert told.detail["ranked"] == [[r.offer.key, r.room, r.reason] for r in ranked[:3]]
    assert told.detail["behind"] == ["pub/{type-d,type-e}/eu-west-1a/spot"]
    assert told.detail["jobs"] == {"7": "pub[1-2]"}
    record_ranking(
        world.site, Placement(request=asked, ranked=ranked[:3], rejected=()), enough=True
    )
    assert "behind" not in (last(world, "job:7").detail or {})


def test_of_causes_twenty_are_kept(world: World) -> None:
    offers = [offer(cloud="pub", type_=f"t{n}") for n in range(25)]
    words = "abcdefghijklmnopqrstuvwxy"
    rejected = tuple(
        Rejected(offer=o, cause=Quoted(text=w * 5)) for o, w in zip(offers, words, strict=True)
    )
    asked = request(world, "pub1")
    record_ranking(world.site, Placement(request=asked, ranked=(), rejected=rejected), enough=True)
    told = last(world, "pub1")
    assert str(told.reason).endswith(": none")
    rows = (told.detail or {})["rejected"]
    assert isinstance(rows, list)
    assert len(rows) == 20
    tried = Refusals(world.site, asked)
    for o, w in zip(offers, words, strict=True):
        tried.add(spec(f"g{o.instance_type}", ("pub1",), bought=o), Quoted(text=w * 5))
    tried.record_collected()
    rows = (last(world, "pub1").detail or {})["refused"]
    assert isinstance(rows, list)
    assert len(rows) == 20


def test_one_refusal_is_told_in_its_own_words_and_none_is_not_told(world: World) -> None:
    asked = request(world, "pub1", "pub2", jobs={7: ("pub2",), 8: ("pub1",)})
    tried = Refusals(world.site, asked)
    tried.record_collected()
    assert world.ledger.decisions.about("pub1") == ()
    tried.add(spec("g1", ("pub1",), bought=offer(cloud="pub")), Quoted(text="no capacity"))
    tried.record_collected()
    tried.record_collected()
    (told,) = world.ledger.decisions.about("pub1")
    assert (told.kind, str(told.reason), told.detail) == ("launch-refused", "no capacity", None)
    assert [d.kind for d in world.ledger.decisions.about("job:8")] == ["launch-refused"]
    assert world.ledger.decisions.about("job:7") == (), "it waits for another node"


def test_what_was_said_last_of_a_node_is_no_news(world: World) -> None:
    recorder, nodes, turn = world.site.recorder, ("pub1", "pub2"), Quoted(text="for its turn")
    assert recorder.find_changed(nodes, "waiting", turn) == ["pub1", "pub2"]
    recorder.record("r1", "waiting", ["pub1"], turn)
    assert recorder.find_changed(nodes, "waiting", turn) == ["pub2"]
    assert recorder.find_changed(nodes, "waiting", turn, "r1") == ["pub2"]
    assert recorder.find_changed(nodes, "waiting", turn, "r2") == ["pub1", "pub2"]
    assert recorder.find_changed(nodes, "waiting", Quoted(text="for another")) == ["pub1", "pub2"]
    recorder.record("r1", "launched", ["pub1"], Quoted(text="x"))
    assert recorder.find_changed(nodes, "waiting", turn) == ["pub1", "pub2"]


def _reasons(world: World, node: str) -> list[str]:
    return [f"{d.correlation} {d.reason}" for d in world.ledger.decisions.about(node)]


def test_a_decision_is_recorded_again_only_for_the_nodes_where_it_changed(world: World) -> None:
    recorder, nodes, turn = world.site.recorder, ("pub1", "pub2"), Quoted(text="for its turn")
    assert recorder.record_if_changed("r1", "waiting", ["pub1"], turn, jobs=["job:7"]) == ["pub1"]
    assert recorder.record_if_changed("r2", "waiting", nodes, turn, jobs=["job:7"]) == ["pub2"]
    assert recorder.record_if_changed("r3", "waiting", nodes, turn, jobs=["job:7"]) == []
    assert _reasons(world, "pub1") == ["r1 for its turn"]
    assert _reasons(world, "pub2") == ["r2 for its turn"]
    assert _reasons(world, "job:7") == ["r1 for its turn", "r2 for its turn"]


def test_it_is_recorded_once_for_each_request_where_that_is_asked_for(world: World) -> None:
    recorder, turn = world.site.recorder, Quoted(text="for its turn")
    for request, recorded in (("r1", ["pub1"]), ("r1", []), ("r2", ["pub1"])):
        changed = recorder.record_if_changed(
            request, "dropped", ["pub1"], turn, once_per_correlation=True
        )
        assert changed == recorded
    assert _reasons(world, "pub1") == ["r1 for its turn", "r2 for its turn"]


def test_it_is_recorded_each_time_for_nodes_that_are_not_repeated(world: World) -> None:
    recorder, nodes, turn = world.site.recorder, ("pub1", "pub2"), Quoted(text="for its turn")
    recorder.record("r1", "ended", nodes, turn)
    changed = recorder.record_if_changed("r2", "ended", nodes, turn, repeated=["pub1"])
    assert changed == ["pub2"]
    assert _reasons(world, "pub1") == ["r1 for its turn"]
    assert _reasons(world, "pub2") == ["r1 for its turn", "r2 for its turn"]


def bought(*machines: tuple[str, Market, float], among: int = 0) -> str:
    made = [
        instance(f"i-{n}", f"n{n}", bought=offer(type_=kind, market=market, price=price))
        for n, (kind, market, price) in enumerate(machines)
    ]
    others = tuple(offer(type_=f"t{n}") for n in range(among))
    return provision.describe_purchase(replace(spec(), alternatives=others), made)


def test_what_was_bought_is_told_in_words() -> None:
    spot, plain = ("small", Market.SPOT, 0.03), ("large", Market.ON_DEMAND, 0.1)
    one = "small in eu-west-1a, spot, $0.03/h"
    other = "large in eu-west-1a, on-demand, $0.10/h"
    assert str(bought(spot)) == str(bought(spot, spot)) == one
    assert str(bought(plain, spot, spot)) == f"{one} (2); {other} (1)"
    assert str(bought(spot, among=2)) == f"{one}, chosen by the cloud among 3 offers"


def test_what_a_launch_took_is_no_longer_free() -> None:
    first, second, unknown = (
        replace(offer(type_=kind), free=free) for kind, free in (("a", 5), ("b", 5), ("c", None))
    )
    left = provision.subtract_launched((first, second, unknown), first, 3)
    assert [(o.free, o.free_reason) for o in left] == [
        (2, "this request took 3"), (5, second.free_reason), (None, unknown.free_reason)
    ]  # fmt: skip
    assert provision.subtract_launched((first,), first, 7)[0].free == 0
    assert provision.subtract_launched((first,), first, 0) == (first,)
    assert provision.subtract_launched((unknown,), unknown, 3) == (unknown,)


@pytest.mark.parametrize(("since", "waits"), [(59.0, True), (60.0, False)])
def test_nodes_wait_a_minute_for_a_ledger_that_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch, since: float, waits: bool
) -> None:
    world.slurm.submit(1, ("pub1",))
    condition = SimpleNamespace(end_only="the disk is full", since=world.now - since)
    monkeypatch.setattr(type(world.ledger), "condition", condition)
    left = provision.provision(world.site, "pub", "r1", ["pub1"], {1: ["pub1"]})
    assert left == (("pub1",) if waits else ())
    assert ("refused" in world.kinds("pub1")) is not waits
    assert world.alive() == []


# launches


def test_the_addresses_of_no_machine_are_not_told(world: World) -> None:
    assign_addresses(world.site, {})
    assert world.slurm.calls["set_addresses"] == 0


def test_an_offer_that_gave_some_rests_for_the_usual_time(world: World) -> None:
    made = spec("g1", ("pub1", "pub2"), bought=offer(cloud="pub"))
    cool_down_partial(world.site, made, 1)
    (rests,) = world.ledger.exclusions.cool_downs(world.now)
    assert rests.until - world.now == world.config.timings.capacity_cooldown
    assert "1 of 2" in str(rests.cause)


def test_a_launch_is_named_by_its_time_and_after_the_requests_that_came() -> None:
    plain = new_generation(T0 + 0.5)
    assert plain.startswith("g1800000000500-")
    assert plain.count("-") == 1
    assert generation_time(plain) == generation_order(plain) == T0 + 0.5
    assert new_generation(T0, T0).count("-") == 1
    behind = new_generation(T0, T0 + 10)
    assert generation_time(behind) == T0
    assert generation_order(behind) == pytest.approx(T0 + 10.001)
    assert len({new_generation(T0) for _ in range(100)}) == 100


def test_an_end_that_fails_again_in_the_same_way_is_told_once(world: World) -> None:
    world.ledger.machines.adopt(
        instance("i-1", "pub1", bought=offer(cloud="pub")), "burst", world.now
    )
    for _ in range(3):
        world.clouds["pub"].fail_next(TransientError, 1, "terminate")
        terminate(world.site, "pub", world.ledger.machines.live(), Quoted(text="idle"), "r1")
    assert world.kinds("pub1") == ["terminate-failed"]


# doubts and strays


def doubted(world: World, *about: str) -> None:
    row = Exclusion(
        kind=DOUBT,
        scope="pub",
        until=inf,
        cause=Quoted(text="it lists nothing."),
        since=world.now,
        about=about,
    )
    world.ledger.exclusions.add(row)


def test_a_doubt_keeps_a_hundred_machines_and_nodes_of_what_a_list_lacks(world: World) -> None:
    found = InventoryReport(
        states={}, running={}, gone=frozenset(), doubt="it lists nothing.",
        lacked=frozenset(f"i-{n:03}" for n in range(150)),
        unserved=tuple(f"n{n:03}" for n in range(150)),
    )  # fmt: skip
    view = take_snapshot(world.site, build_terms(world.site, "pub"), {})
    keep_doubt(world.site, view, found)
    keep_doubt(world.site, take_snapshot(world.site, build_terms(world.site, "pub"), {}), found)
    (kept,) = [x for x in world.ledger.exclusions.all() if x.kind == DOUBT]
    assert kept.about == (
        *(f"i-{n:03}" for n in range(100)), *(f"node:n{n:03}" for n in range(100))
    )  # fmt: skip
    assert (kept.since, kept.until, kept.scope) == (world.now, inf, "pub")
    (told,) = world.ledger.decisions.about("list:pub")
    assert (told.kind, str(told.reason)) == ("list-doubted", "it lists nothing.")


@pytest.mark.parametrize(
    ("shown", "ends"),
    [
        (("i-1", "pub9", -10.0), True),
        (("i-7", "pub2", -10.0), True),
        (("i-7", "pub2", 0.0), False),
        (("i-7", "pub9", -10.0), False),
    ],
    ids=["the machine", "a machine of the node", "a newer one", "another"],
)
def test_a_doubt_ends_when_the_list_shows_what_it_lacked(
    world: World, shown: tuple[str, str, float], ends: bool
) -> None:
    doubted(world, "i-1", "node:pub2")
    ident, node, age = shown
    one = instance(ident, node, new_generation(world.now + age), bought=offer(cloud="pub"))
    view = take_snapshot(world.site, build_terms(world.site, "pub"), {}, (one,))
    left = review_lasting_doubt(world.site, view)
    assert (left is None) is ends
    assert (world.ledger.exclusions.all() == ()) is ends
    if ends:
        assert str(last(world, "list:pub").reason) == f"the list has {ident} again"
    else:
        assert left == (
            "it lists nothing. It has shown none of them since; `clear pub` if they are gone"
        )


@pytest.mark.parametrize(("count", "more"), [(5, ""), (7, "; and 2 more")])
def test_five_of_the_machines_that_serve_nobody_are_told_one_by_one(count: int, more: str) -> None:
    found = {("pub", f"i-{n}"): "why" for n in range(count)}
    health = strays.make_health(found, T0)
    told = "; ".join(f"i-{n}: why" for n in range(5))
    assert health.error == f"{count} serve no node: {told}{more}"
    assert strays.make_health({}, T0).error is None


# what a round reads


@pytest.mark.parametrize(
    ("idle", "reconcile_", "served"), [(90, 30, 90.0), (10, 30, 30.0), (5000, 30, 600.0)]
)
def test_a_machine_proves_its_pool_in_ten_minutes_or_the_time_that_it_may_be_idle(
    world: World, idle: float, reconcile_: float, served: float
) -> None:
    timings = replace(world.config.timings, suspend_time=idle, reconcile_interval=reconcile_)
    config = replace(world.config, timings=timings)
    site = Site.of(config, world.slurm, world.ledger, world.clouds, lambda: world.now)
    assert build_terms(site, "pub").proven_after_s == served
    assert (build_terms(site, "onp").is_first_cloud, build_terms(site, "pub").is_first_cloud) == (
        True,
        False,
    )


def test_what_ended_within_a_day_is_read_where_a_pool_is_sick(world: World) -> None:
    for ident, ago in (("i-1", 86_400), ("i-2", 86_401)):
        one: Instance = instance(ident, "pub1", ident, bought=offer(cloud="pub"))
        world.ledger.machines.adopt(one, "burst", T0)
        world.ledger.machines.record_end("pub", [ident], Quoted(text="gone"), world.now - ago)
    terms = build_terms(world.site, "pub")
    assert take_snapshot(world.site, terms, {}).recent == ()
    world.ledger.exclusions.add(
        Exclusion(kind="breaker", scope="burst", count=3, cause=BootsFailed(node_reason="x"))
    )
    assert [m.instance.id for m in take_snapshot(world.site, terms, {}).recent] == ["i-1"]


def test_machines_that_a_list_lacked_are_looked_for_among_the_launches_of_their_cloud(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    monkeypatch.setattr(
        world.ledger.launches, "finish_times", lambda some: asked.append(set(some)) or {}
    )
    one = instance("i-1", "pub1", "g1", bought=offer(cloud="pub"))
    world.ledger.machines.adopt(one, "burst", world.now)
    terms = build_terms(world.site, "pub")
    take_snapshot(world.site, terms, {})
    assert asked == []
    for _ in range(2):
        world.ledger.machines.observe("pub", (), world.now + 1, world.site.pool_of)
    take_snapshot(world.site, terms, {})
    take_snapshot(world.site, build_terms(world.site, "onp"), {})
    assert asked == [{"g1"}]
