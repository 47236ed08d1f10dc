"""Multi-node jobs: all of their nodes or none, and what is left over serves others or ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ledger_cases import instance, offer
from msgspec.structs import replace

from slurm_elastic.base.errors import CapacityError, DeniedError
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.sections.telling import NotifyEvent
from slurm_elastic.controller.launching import provision, shortfall
from slurm_elastic.features.news.telling import all_occasions
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, LaunchSpec, Limits, Location, Market
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.policies.launch.exclusions import DENIED
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.world import SHAPE, World, make_config

SPOT = "small/zone-1/spot"
MANY = tuple(f"m{i}" for i in range(1, 9))


def build(directory: Path, **pool: Any) -> World:
    """One public cloud that does not say how much it has, as most do."""
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=9.0)
    )
    fields: dict[str, Any] = {
        "name": "many", "cloud": "pub", "nodes": "m[1-8]", "cpus": 2, "memory": 4096,
        "markets": (Market.SPOT,),
    }  # fmt: skip
    pools = (PoolSettings(**(fields | pool)),)
    world = World(directory, clouds=(cloud,), pools=pools, limits=Limits())
    mute(world)
    return world


def mute(world: World) -> None:
    cloud = world.clouds["pub"]
    offers = cloud.offers
    cloud.offers = lambda pool: tuple(replace(o, free=None) for o in offers(pool))  # type: ignore[method-assign]


@pytest.fixture
def many(tmp_path: Path) -> Any:
    world = build(tmp_path)
    yield world
    world.close()


def together(
    world: World, *jobs: Sequence[str], fields: Mapping[int, Mapping[str, Any]] = {}
) -> None:
    """These jobs in one request, as slurmctld asks for all that it has just allocated. ``fields``:
    more fields of a job, by its number.
    """
    for number, nodes in enumerate(jobs, 1):
        world.slurm.submit(number, nodes, len(nodes), **fields.get(number, {}))
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()
    world.program("resume", [n for of in jobs for n in of], dict(enumerate(jobs, 1)))


def nodes_of(machines: Sequence[Instance]) -> list[str]:
    return sorted(i.node for i in machines)


def test_the_intent_has_the_terms_of_the_purchase(many: World) -> None:
    """The configuration may change before the machines are in the ledger."""
    together(many, MANY[:1])
    many.tick()
    (machine,) = many.ledger.machines.live()
    launch = many.ledger.launches.get(machine.instance.generation)
    assert launch is not None
    assert launch.terms == {"small": machine.terms}
    assert machine.terms.on_demand_price == SHAPE["small"].price


def test_a_job_that_cannot_be_had_whole_keeps_no_machine(many: World) -> None:
    many.clouds["pub"].limit(SPOT, 3)
    together(many, MANY[:4])
    many.tick()
    assert many.alive() == [], "in the same round"
    assert all(phase(many.slurm.node(n)) is Phase.POWERING_DOWN for n in MANY[:4])
    assert "PENDING" in many.slurm.queue()[1].states
    (refused,) = [d for d in many.ledger.decisions.about("job:1") if d.kind == "refused"]
    assert set(MANY[:4]) <= set(refused.subjects), "all with one reason"
    ended = [d for d in many.ledger.decisions.about("m1") if d.kind == "terminated"]
    assert [str(d.reason) for d in ended] == ["its job could not get all its nodes"]
    many.advance(60)
    assert many.alive() == []


def test_an_offer_that_gives_too_few_machines_again_rests_longer_each_time(many: World) -> None:
    many.clouds["pub"].limit(SPOT, 3)
    many.slurm.submit(1, MANY, 4)
    many.advance(3600)
    (cool_down,) = [c for c in many.ledger.exclusions.all() if c.scope == f"pub/{SPOT}"]
    assert cool_down.code == "Partial"
    assert cool_down.count > 2
    bought = many.ledger.machines.live(ended_since=0)
    assert len(bought) == 3 * cool_down.count, "three machines each time"
    assert cool_down.count < 6, "an hour has room for 20 cool-downs of the first length"


@pytest.mark.parametrize("strikes", [1000, 1023, 1024, 5000])
def test_spot_that_was_sold_out_for_weeks_leaves_on_demand(tmp_path: Path, strikes: int) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND))
    world.tick()
    world.ledger.exclusions.add(
        Exclusion(kind=COOL_DOWN, scope=f"pub/{SPOT}", until=world.now - 60, code="NoCapacity",
                  cause=Quoted(text="sold out"), count=strikes)
    )  # fmt: skip
    world.clouds["pub"].limit(SPOT, 0)
    together(world, ["m1"])
    world.tick()
    assert [(i.node, i.market) for i in world.alive()] == [("m1", Market.ON_DEMAND)]
    assert world.ledger.launches.open() == ()
    world.close()


def test_where_the_pool_says_so_the_machines_stay(tmp_path: Path) -> None:
    world = build(tmp_path, partial_jobs=True)
    world.clouds["pub"].limit(SPOT, 3)
    together(world, MANY[:4])
    world.tick()
    assert nodes_of(world.alive()) == ["m1", "m2", "m3"]
    world.advance(20)
    assert phase(world.slurm.node("m1")) is Phase.UP
    world.close()


def test_a_job_that_is_known_not_to_fit_buys_nothing(tmp_path: Path) -> None:
    world = build(tmp_path, max_nodes=5)
    together(world, MANY[:4], MANY[4:6])
    world.tick()
    assert nodes_of(world.alive()) == list(MANY[:4]), "the other job is served"
    (refused,) = [d for d in world.ledger.decisions.about("job:2") if d.kind == "refused"]
    assert "wanted: 2 nodes of pool many, available: 1 (" in str(refused.reason)
    assert "pool many is limited to 5 nodes, 4 are in use" in str(refused.reason)
    assert world.ledger.decisions.about("job:1")[-1].kind == "launched"
    world.close()


def build_two_pools(directory: Path, **pool_b: Any) -> World:
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=SHAPE,
        limits=Limits(dollars_per_hour=9.0, nodes=5),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "cloud": "pub", "cpus": 2, "memory": 4096, "markets": (Market.SPOT,),
    }  # fmt: skip
    pools = (
        PoolSettings(name="pa", nodes="a[1-4]", **fields),
        PoolSettings(name="pb", nodes="b[1-4]", **fields | pool_b),
    )
    world = World(directory, clouds=(cloud,), pools=pools, limits=Limits())
    mute(world)
    return world


@pytest.mark.parametrize("pool_b", [{}, {"max_nodes": 1}])
def test_a_job_of_two_pools_buys_nothing_if_one_pool_lacks_room(
    tmp_path: Path, pool_b: dict[str, int]
) -> None:
    world = build_two_pools(tmp_path, **pool_b)
    wide = ["a1", "a2", "a3", "a4", "b2"]
    together(world, ["b1"], wide)
    world.tick()
    bought = [m.instance.node for m in world.ledger.machines.live(ended_since=0)]
    assert bought == ["b1"], "the other job is served"
    assert "PENDING" in world.slurm.queue()[2].states
    (refused,) = [d for d in world.ledger.decisions.about("a1") if d.kind == "refused"]
    assert "limited to" in str(refused.reason)
    held = {row.scope for row in world.ledger.exclusions.holds()}
    free = {*wide, "b3", "b4"} - held
    assert len(free) < len(wide), "Slurm cannot allocate as many nodes again"
    world.close()


def test_a_job_of_two_pools_with_room_gets_all_its_machines(tmp_path: Path) -> None:
    world = build_two_pools(tmp_path)
    together(world, ["a1", "a2", "a3", "b1"], ["b2", "a4"])
    world.tick()
    assert nodes_of(world.alive()) == ["a1", "a2", "a3", "b1"]
    assert "PENDING" in world.slurm.queue()[2].states
    world.close()


def test_a_job_that_slurm_requests_in_two_calls_is_judged_as_a_whole(tmp_path: Path) -> None:
    world = build(tmp_path, max_nodes=5)
    world.slurm.submit(1, MANY[:6], 6)
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()
    world.program("resume", MANY[:3], {1: MANY[:3]})
    world.tick()
    world.program("resume", MANY[3:6], {1: MANY[3:6]})
    world.tick()
    assert world.ledger.machines.live(ended_since=0) == ()
    assert all(phase(world.slurm.node(n)) is Phase.POWERING_DOWN for n in MANY[:6])
    world.close()


def test_what_could_be_had_is_not_held_for_the_job_that_is_too_large(tmp_path: Path) -> None:
    world = build(tmp_path)
    world.clouds["pub"].limit(SPOT, 2)
    del world.clouds["pub"].offers  # type: ignore[attr-defined]  # which say what there is
    together(world, MANY[:4])
    world.advance(30)
    held = {row.scope for row in world.ledger.exclusions.holds()}
    assert len(set(MANY) - held) == 2
    world.slurm.submit(9, MANY, 2)
    world.advance(30)
    assert "RUNNING" in world.slurm.queue()[9].states
    world.close()


def test_the_smaller_job_gets_what_the_larger_one_leaves(many: World) -> None:
    many.clouds["pub"].limit(SPOT, 3)
    together(many, MANY[:4], MANY[4:6])
    many.tick()
    assert nodes_of(many.alive()) == ["m1", "m2"], "for the second job; the third is ended"
    assert [d.kind for d in many.ledger.decisions.about("m1")][-1] == "reassigned"
    assert {j: "PENDING" in many.slurm.queue()[j].states for j in (1, 2)} == {1: True, 2: True}
    many.slurm.set_wish(2, MANY[:2], 2)  # Slurm gives a job the nodes that are up or booting
    many.advance(20)
    assert "RUNNING" in many.slurm.queue()[2].states
    assert set(many.slurm.queue()[2].nodes) == {"m1", "m2"}


def test_what_a_launch_leaves_of_a_clouds_room_is_for_those_that_wait_for_their_turn(
    tmp_path: Path,
) -> None:
    world = build(tmp_path, max_booting=2)
    world.clouds["pub"].limit(SPOT, 5)
    del world.clouds["pub"].offers  # type: ignore[attr-defined]  # which say what there is
    together(world, *[(n,) for n in MANY[:5]])
    world.tick()
    assert nodes_of(world.alive()) == ["m1", "m2"]
    world.advance(60)
    assert nodes_of(world.alive()) == list(MANY[:5])
    assert world.ledger.exclusions.holds() == (), "nobody was sent away meanwhile"
    world.close()


def test_an_offer_whose_cool_down_fails_is_asked_once_in_a_request(
    many: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UnnamedError(CapacityError):
        """Has no attributes of its base class, so no cool-down can be made of it."""

        def __init__(self) -> None:
            Exception.__init__(self, "no room")

    asked: list[str] = []

    def launch(spec: LaunchSpec) -> Sequence[Instance]:
        asked.append(spec.offer.key)
        assert len(asked) < 50, "the request asks without end"
        raise UnnamedError

    monkeypatch.setattr(many.clouds["pub"], "launch", launch)
    many.slurm.submit(1, ["m1"])
    many.advance(5)
    assert many.spool.count() == 0
    assert asked == [f"pub/{SPOT}"]


def test_single_node_jobs_are_one_call_and_take_what_there_is(many: World) -> None:
    many.clouds["pub"].limit(SPOT, 3)
    together(many, *[(n,) for n in MANY[:5]])
    many.tick()
    assert nodes_of(many.alive()) == ["m1", "m2", "m3"]
    launches = [c.size for c in many.clouds["pub"].calls if c.name == "launch"]
    assert launches == [5]


def test_nodes_without_a_job_are_served_as_far_as_it_goes(many: World) -> None:
    many.clouds["pub"].limit(SPOT, 1)
    together(many, MANY[:2])
    for file in (many.dir / "requests").glob("*.json"):
        file.unlink()
    many.program("resume", MANY[:2], {})
    many.tick()
    assert nodes_of(many.alive()) == ["m1"]


def test_a_job_may_be_served_by_several_offers(tmp_path: Path) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND))
    world.clouds["pub"].limit(SPOT, 3)
    together(world, MANY[:4])
    world.tick()
    assert sorted(str(i.market) for i in world.alive()) == ["on-demand", "spot", "spot", "spot"]
    world.close()


def test_where_spot_is_denied_the_same_request_buys_on_demand(tmp_path: Path) -> None:
    """As by a policy of the organisation: the credentials are good."""
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND))
    world.clouds["pub"].fail_next(DeniedError, 1, "launch")
    together(world, MANY[:2])
    world.tick()
    assert [str(i.market) for i in world.alive()] == ["on-demand", "on-demand"]
    (denied,) = world.ledger.exclusions.cool_downs(world.now)
    assert (denied.scope, denied.code) == (f"pub/{SPOT}", DENIED)
    (told,) = [one for one in all_occasions(world.site) if one.event is NotifyEvent.CREDENTIALS]
    assert told.text.startswith(f"cloud pub denies launches of pub/{SPOT}: ")
    world.close()


def two_pools(tmp_path: Path) -> World:
    """Two pools of one cloud: a has spot machines, b on-demand ones."""
    pools = tuple(
        PoolSettings(name=n, cloud="pub", nodes=f"{n}[1-3]", cpus=2, memory=4096,
                     markets=(market,))
        for n, market in (("a", Market.SPOT), ("b", Market.ON_DEMAND))
    )  # fmt: skip
    cloud = make_config(tmp_path).clouds[1]
    world = World(
        tmp_path, clouds=(replace(cloud, limits=Limits(dollars_per_hour=9.0)),), pools=pools,
        limits=Limits(),
    )  # fmt: skip
    mute(world)
    return world


def test_of_two_pools_neither_keeps_machines_for_half_a_job(tmp_path: Path) -> None:
    world = two_pools(tmp_path)
    world.clouds["pub"].limit("small/zone-1/on-demand", 1)
    world.slurm.submit(1, ("a1", "a2", "b1", "b2"), 4)
    world.tick()
    assert world.alive() == []
    assert {row.pool for row in world.ledger.exclusions.holds()} == {"b"}, (
        "the other one has capacity"
    )
    refused = {
        node: [str(d.reason) for d in world.ledger.decisions.about(node) if d.kind == "refused"]
        for node in ("a1", "a2", "b1", "b2")
    }
    assert all(len(reasons) == 1 for reasons in refused.values()), "each node is told of once"
    assert len({str(reasons) for reasons in refused.values()}) == 1, "all with one reason"
    world.close()


def test_a_job_whose_last_node_is_refused_later_gives_up_the_others(many: World) -> None:
    """The first answer was lost; when the call is repeated, there is no capacity any more."""
    cloud = many.clouds["pub"]
    cloud.limit(SPOT, 3)
    together(many, MANY[:3])
    many.tick()
    assert nodes_of(many.alive()) == list(MANY[:3])
    many.slurm.submit(2, MANY[3:5], 2)
    for file in (many.dir / "requests").glob("*.json"):
        file.unlink()
    # One of its nodes is in the request, the other one has got a machine before.
    cloud.limit(SPOT, 4)
    many.program("resume", ["m4"], {2: MANY[3:5]})
    many.tick()
    assert nodes_of(many.alive()) == list(MANY[:4])
    many.program("resume", ["m5"], {2: MANY[3:5]})
    many.tick()
    assert nodes_of(many.alive()) == list(MANY[:3]), "m4 is of no use without m5"
    many.advance(120)
    assert nodes_of(many.alive()) == list(MANY[:3])


def test_a_node_that_is_up_is_slurms_to_give_back(many: World) -> None:
    """It has no power-up to take back; Slurm suspends it when it is idle."""
    cloud = many.clouds["pub"]
    cloud.limit(SPOT, 1)
    together(many, MANY[:1])
    many.advance(20)
    assert phase(many.slurm.node("m1")) is Phase.UP
    many.slurm.finish(1)
    many.slurm.submit(2, MANY[:2], 2)
    many.advance(10)
    assert nodes_of(many.alive()) == ["m1"]
    assert "PENDING" in many.slurm.queue()[2].states


def test_a_request_that_would_pass_the_spending_limit_is_cut_with_that_reason(
    tmp_path: Path,
) -> None:
    """Spot at $0.03 counts with the $0.10 that it may come to: $0.25 an hour are two machines."""
    world = World(tmp_path)
    for number, node in enumerate(("pub1", "pub2", "pub3"), 1):
        world.slurm.submit(number, (node,))
    for file in (world.dir / "requests").glob("*.json"):
        file.unlink()
    world.program("resume", ["pub1", "pub2", "pub3"], {1: ["pub1"], 2: ["pub2"], 3: ["pub3"]})
    world.tick()
    assert nodes_of(world.alive()) == ["pub1", "pub2"]
    assert [i.price for i in world.alive()] == pytest.approx([0.03, 0.03])
    (refused,) = [
        str(d.reason) for d in world.ledger.decisions.about("job:3") if d.kind == "refused"
    ]
    assert "cloud pub may spend $0.25/h, spends $0.20/h and this costs up to $0.10/h" in refused
    world.close()


def test_a_type_whose_typed_price_is_below_the_clouds_own_is_never_bought(many: World) -> None:
    """The cap would hold at the typed price and let hundreds of dear machines start."""
    many.clouds["pub"].tell_price("small", 11.2)
    many.slurm.submit(1, ("m1",))
    many.advance(30)
    assert many.alive() == []
    (refused,) = [d for d in many.ledger.decisions.about("job:1") if d.kind == "refused"]
    assert "clouds[pub].types[small].price of the configuration is $0.10/h" in str(refused.reason)
    assert "the cloud itself asks $11.20/h (its catalogue)" in str(refused.reason)


def test_machines_bought_at_too_low_a_price_count_at_the_one_that_is_learnt(many: World) -> None:
    many.slurm.submit(1, ("m1",))
    many.advance(30)
    assert many.site.usage().dollars_per_hour["cloud:pub"] == pytest.approx(0.1)
    many.clouds["pub"].tell_price("small", 11.2)
    many.slurm.submit(2, ("m2",))
    many.advance(30)
    assert len(many.alive()) == 1
    assert many.site.usage().dollars_per_hour["cloud:pub"] == pytest.approx(11.2)


# the pools of a cloud


@pytest.mark.parametrize(
    ("cloud", "pools", "looks"),
    [(None, (None, None), 0), (None, (None, 2), 1), (2, (None, None), 1)],
)
def test_who_has_come_up_is_looked_for_where_only_so_many_may_boot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cloud: int | None,
    pools: tuple[int | None, ...],
    looks: int,
) -> None:
    fields: dict[str, Any] = {"cloud": "pub", "cpus": 2, "memory": 4096}
    settings = tuple(
        PoolSettings(name=name, nodes=f"{name}[1-3]", max_booting=most, **fields)
        for name, most in zip("ab", pools, strict=True)
    )
    pub = FakeCloud(name="pub", location=Location.PUBLIC, types=SHAPE, max_booting=cloud)
    world = World(tmp_path, clouds=(pub,), pools=settings, limits=Limits())
    world.advance(1)
    looked: list[str] = []
    monkeypatch.setattr(provision, "record_registrations", lambda _, name: looked.append(name))
    for node in ("a1", "b1"):
        world.slurm.set_node(node, "IDLE", "CLOUD", "POWERING_UP")
    provision.provision(world.site, "pub", "r1", ["a1", "b1"], {})
    assert looked == ["pub"] * looks
    world.close()


def test_for_a_job_that_one_pool_cannot_serve_the_other_one_buys_nothing(tmp_path: Path) -> None:
    world = two_pools(tmp_path)
    world.clouds["pub"].limit("*/*/spot", 0)
    world.slurm.submit(1, ("a1", "a2", "b1", "b2"), 4)
    world.tick()
    assert len(world.accounts["pub"].machines) == 0
    assert {row.scope for row in world.ledger.exclusions.holds()} == {"a1", "a2", "a3", "b1", "b2"}
    world.close()


def test_for_a_trouble_no_offer_is_ranked_and_the_whole_pool_is_held(many: World) -> None:
    many.slurm.submit(1, ("m1",))
    many.tick()
    many.clouds["pub"].calls.clear()
    many.slurm.set_node("m2", "ALLOCATED", "CLOUD", "POWERING_UP")
    provision.provision(
        many.site, "pub", "r1", ["m2"], {2: ["m2"]}, trouble=Quoted(text="nobody has read it")
    )
    assert [d.kind for d in many.ledger.decisions.about("m2")] == ["refused"]
    assert {row.scope for row in many.ledger.exclusions.holds()} == {*MANY} - {"m1"}
    assert [call.name for call in many.clouds["pub"].calls] == []


def test_while_nodes_wait_for_their_turn_no_ranking_of_them_is_kept(tmp_path: Path) -> None:
    """They are looked at every few seconds."""
    world = build(tmp_path, max_booting=1)
    together(world, ("m1",), ("m2",))
    world.tick()
    before = [d.kind for d in world.ledger.decisions.about("m2")]
    assert before.count("ranked") == 1
    for _ in range(3):
        left = provision.provision(world.site, "pub", "r9", ["m2"], {2: ["m2"]}, world.now)
        assert left == ("m2",)
    assert [d.kind for d in world.ledger.decisions.about("m2")] == [*before, "waiting"]
    world.close()


def test_of_one_request_the_first_ranking_is_kept_alone(tmp_path: Path) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND))
    world.clouds["pub"].limit(SPOT, 1)
    together(world, ("m1",), ("m2",))
    world.tick()
    assert nodes_of(world.alive()) == ["m1", "m2"]
    for node in ("m1", "m2"):
        assert [d.kind for d in world.ledger.decisions.about(node)].count("ranked") == 1
    world.close()


def test_what_machines_are_made_of_is_asked_where_some_are_kept_stopped(many: World) -> None:
    many.slurm.submit(1, ("m1",))
    many.tick()
    (made,) = many.alive()
    assert many.ledger.launches.recipes([made.generation]) == {}


def test_only_jobs_that_lack_a_node_of_this_round_fail(many: World) -> None:
    """m3 is asked for in another request, m4 serves a job that has all of its nodes."""
    for node in ("m2", "m4"):
        made = instance(f"i-{node}", node, f"g-{node}", bought=offer(cloud="pub"))
        many.ledger.machines.adopt(made, "many", many.now)
    pool = many.site.pools["many"]
    short = shortfall.Shortfall(
        request=provision.request_for("r1", pool, ["m1"], {1: ["m1"]}),
        nodes=("m1",),
        cause=Quoted(text="full"),
        spare_nodes=0,
    )
    jobs = {1: ["m1"], 2: ["m2", "m3"], 3: ["m4"]}
    found = shortfall.resolve_gangs(many.site, "pub", [short], ["m1", "m2"], jobs)
    assert (found.failed, found.refused) == ((1,), ("m1",))
    assert found.serving == ("m2",)


def test_a_job_that_never_fits_is_not_hurried_back(
    many: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried: list[bool] = []
    expect = many.site.requeues.expect

    def noted(*args: Any, hurry: bool) -> None:
        hurried.append(hurry)
        expect(*args, hurry=hurry)

    monkeypatch.setattr(many.site.requeues, "expect", noted)
    for number, node in ((1, "m1"), (2, "m2")):
        many.slurm.set_node(node, "ALLOCATED", "CLOUD", "POWERING_UP")
        many.slurm.set_job(number, "CONFIGURING", nodes=(node,))
    jobs = {1: ["m1", "m2"]}
    forced = shortfall.turn_away_jobs(many.site, "pub", "r1", {1: "too large"}, jobs, {"m1"}, {})
    assert forced == {"m1"}
    assert hurried == [False]


def test_a_job_that_must_not_be_requeued_gets_its_machine_on_demand(tmp_path: Path) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND), on_demand_nodes=1)
    try:
        once: dict[str, Any] = {"requeue": False}
        fields = {2: once, 3: once | {"comment": "spot=ok"}}
        together(world, ["m1"], ["m2"], ["m3"], ["m8"], fields=fields)
        world.tick()
        markets = {i.node: i.market for i in world.alive()}
        assert markets == {
            "m1": Market.SPOT, "m2": Market.ON_DEMAND, "m3": Market.SPOT, "m8": Market.ON_DEMAND,
        }  # fmt: skip
    finally:
        world.close()


def test_a_job_whose_setting_was_lifted_before_it_ran_stays_off_spot_machines(
    tmp_path: Path,
) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND))
    try:
        together(world, ["m1"])
        world.ledger.requeues.lift(1, 0, world.now)
        world.tick()
        assert [i.market for i in world.alive()] == [Market.ON_DEMAND]
    finally:
        world.close()


def test_nodes_without_spot_that_get_no_machine_hold_no_spot_nodes(tmp_path: Path) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND), on_demand_nodes=3)
    try:
        world.clouds["pub"].limit("*/on-demand", 0)
        together(world, ["m6", "m7"], fields={1: {"requeue": False}})
        world.tick()
        assert {row.scope for row in world.ledger.exclusions.holds()} == {"m6", "m7", "m8"}
        world.slurm.submit(2, ["m1"], 1)
        world.tick()
        assert [(i.node, i.market) for i in world.alive()] == [("m1", Market.SPOT)]
    finally:
        world.close()


def test_the_parts_of_a_pool_with_and_without_spot_hold_their_own_nodes(tmp_path: Path) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND), on_demand_nodes=2)
    try:
        world.clouds["pub"].limit("*", 0)
        together(world, ["m7"], ["m1"])
        world.tick()
        assert {row.scope for row in world.ledger.exclusions.holds()} == {*MANY}
    finally:
        world.close()


@pytest.mark.parametrize("partitions", [("pub",), ("pub", "debug")])
def test_a_job_kept_off_spot_machines_waits_for_other_machines_and_closes_no_node(
    tmp_path: Path, partitions: tuple[str, ...]
) -> None:
    """With holds slurmctld gives it one node of the pool after the other."""
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND))
    try:
        world.clouds["pub"].limit("*/on-demand", 0)
        world.slurm.submit(1, MANY, 1, requeue=False, partitions=partitions)
        world.advance(300)
        assert not world.ledger.exclusions.holds()
        job = world.slurm.job(1)
        assert job is not None
        assert "PENDING" in job.states
        cool_downs = [row.until for row in world.ledger.exclusions.cool_downs(world.now)]
        # A begin time would keep it from its other partitions, too, and with its list Slurm would
        # give it a node of the cloud after each cool-down and never one of the others.
        assert (job.begin in cool_downs) == (len(partitions) == 1)
        assert job.partitions == (partitions if len(partitions) == 1 else ("debug",))
        about = world.ledger.decisions.about("job:1")
        *earlier, reported = [str(row.cause) for row in about if row.kind == "set-aside"]
        if len(partitions) == 1:
            assert "requeue=1 starttime=now" in reported
        else:
            assert "until then the job may start in debug" in reported
            assert not earlier, "it comes back every few minutes"
        world.slurm.submit(2, ["m1"], 1)
        world.advance(60)
        assert [(i.node, i.market) for i in world.alive()] == [("m1", Market.SPOT)]
    finally:
        world.close()


def test_later_nodes_of_a_job_may_have_spot_machines_beside_nodes_that_never_do(
    tmp_path: Path,
) -> None:
    world = build(tmp_path, markets=(Market.SPOT, Market.ON_DEMAND), on_demand_nodes=2)
    try:
        del world.clouds["pub"].offers  # The cloud says how much it has.
        world.clouds["pub"].limit("*/on-demand", 2)
        together(world, ["m1", "m2", "m7", "m8"])
        for file in (world.dir / "requests").glob("*.json"):
            file.unlink()
        world.program("resume", ["m7", "m8"], {1: ["m1", "m2", "m7", "m8"]})
        world.tick()
        assert {i.node: i.market for i in world.alive()} == {
            "m7": Market.ON_DEMAND, "m8": Market.ON_DEMAND,
        }  # fmt: skip
        assert not world.ledger.exclusions.holds()
    finally:
        world.close()
