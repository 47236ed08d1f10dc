"""A pass over a cloud: which rule says what by one snapshot of Slurm, the ledger and the cloud."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_cases import T0, instance, offer, pool
from machine_cases import changed
from msgspec.structs import replace

from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.machine_ends import OutOfService, SuspendedBySlurm
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.causes.repairs import (
    AlreadyServed,
    HoldNotInLedger,
    MachineThere,
    NameLookedUp,
    NodeUp,
    OfferAvailable,
    PoolWorks,
)
from slurm_elastic.model.cluster import InstanceState, Limits, Market
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.memory import (
    Drained,
    Launch,
    Machine,
    decided_at,
)
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.actions import (
    Action,
    HideName,
    Hold,
    NoteDrain,
    Register,
    Release,
    ReopenPool,
    SetAddress,
)
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.policies.nodes.out_of_service import DrainTerms
from slurm_elastic.policies.repair.cloud_view import Thresholds
from slurm_elastic.policies.repair.cluster import cloud_view, decide
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot, RoundRule, Terms
from slurm_elastic.policies.repair.hold_rules import due_holds, holds

NOW = T0 + 10_000
AWS, OTHER = pool(), pool("own", "gcp", 2, "own")
UP, OFF, BOOTS, GOES = (
    frozenset({"IDLE", "CLOUD", *more})
    for more in ((), ("POWERED_DOWN",), ("POWERING_UP", "NOT_RESPONDING"), ("POWERING_DOWN",))
)
DRAINED = UP | {"DRAIN"}
HELD = f"{HOLD_MARK} no offer has room"
TERMS = Terms(
    cloud="aws", clouds=frozenset({"aws", "gcp"}), pools={p.name: p for p in (AWS, OTHER)},
    pool_of={n: p for p in (AWS, OTHER) for n in p.nodes}, resume_timeout=600.0, suspend_timeout=30.0,
    thresholds=Thresholds(), proven_after_s=300.0, drain_terms=DrainTerms(),
)  # fmt: skip
OPTED = replace(TERMS, tells_addresses=True)
SLOW = replace(TERMS, resume_timeouts={"aws": 600.0, "gcp": 900.0})
NAMED = replace(TERMS, looks_names_up=True)


def node(name: str = "pub1", states: frozenset[str] = UP, **fields: Any) -> SlurmNode:
    return SlurmNode(name=name, states=states, **fields)


def machine(name: str = "pub1", age: float = 1000.0, **fields: Any) -> Machine:
    """Launched ``age`` seconds ago."""
    own = {key: fields.pop(key) for key in ("address", "id_") if key in fields}
    generation = f"g{int((NOW - age) * 1000):013d}-0a"
    one = instance(**{"id_": f"i-{name}", "node": name, "generation": generation, **own})
    if name.startswith("own"):
        one = replace(one, cloud="gcp")
    return changed(Machine(instance=one, pool="burst"), **fields)


def launch(cloud: str, *nodes: str, age: float = 10.0) -> Launch:
    return Launch(
        generation="g7", request="r", pool="burst", cloud=cloud, nodes=nodes, jobs=(),
        offer=offer(), created=NOW - age,
    )  # fmt: skip


def snapshot(
    *machines: Machine, nodes: tuple[SlurmNode, ...] = (), **fields: Any
) -> ClusterSnapshot:
    base = ClusterSnapshot(
        now=NOW, terms=TERMS, nodes={n.name: n for n in nodes}, machines=machines, launches=(),
        exclusions=(),
    )  # fmt: skip
    return replace(base, **fields)


def asked(rule: RoundRule, world: ClusterSnapshot) -> list[Action]:
    return list(decide(world, [rule]))


# the list


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        ({}, True),
        ({"read_whole": True}, False),
        ({"listed": None}, False),
        ({"machines": ()}, False),
        ({"listed": (instance("i-pub1"), instance("i-new"))}, False),
        ({"machines": (), "listed": (instance(state=InstanceState.TERMINATED),)}, True),
        ({"machines": (), "listed": (instance(state=InstanceState.STOPPING),)}, True),
        ({"machines": (), "listed": (instance(generation="g7"),),
          "launches": (launch("aws", "pub1"),)}, True),
        ({"machines": (replace(machine(), instance=replace(instance("i-pub1"), cloud="gcp")),)},
         False),
    ],
)  # fmt: skip
def test_a_list_is_taken_in_once_the_ledger_has_all_that_may_cost(
    change: dict[str, object], *, noted: bool
) -> None:
    world = snapshot(machine(), listed=(instance("i-pub1"),), read_whole=False)
    found = asked(RoundRule.READ, replace(world, **change))
    assert [(a.kind, a.subject) for a in found] == ([("note-read", "aws")] if noted else [])


# addresses


@pytest.mark.parametrize(
    ("one", "at", "terms", "told"),
    [
        (machine(address="10.0.0.7"), node(states=BOOTS), OPTED, True),
        (machine(address="10.0.0.7"), node(states=BOOTS), TERMS, False),
        (machine(address="10.0.0.7"), node(states=BOOTS, address="10.0.0.7"), OPTED, False),
        (machine(address="10.0.0.7"), node(states=BOOTS, address="10.0.0.6"), OPTED, True),
        (machine(address="10.0.0.7"), node(states=UP), OPTED, False),
        (machine(address="10.0.0.7"), node(states=OFF), OPTED, False),
        (machine(address="10.0.0.7"), node("pub2", BOOTS), OPTED, False),
        (machine(address="10.0.0.7", suspending=NOW), node(states=BOOTS), OPTED, False),
        (machine(), node(states=BOOTS), OPTED, False),
    ],
)
def test_slurm_is_told_the_address_of_a_machine_that_boots(
    one: Machine, at: SlurmNode, terms: Terms, *, told: bool
) -> None:
    """Where its cloud learns it after the launch only; a node that is up has its own."""
    found = asked(RoundRule.ADDRESSES, snapshot(one, nodes=(at,), terms=terms))
    wanted = SetAddress(node="pub1", address="10.0.0.7", cause=MachineThere(machine="i-pub1"))
    assert found == ([wanted] if told else [])


@pytest.mark.parametrize(
    ("at", "terms", "hidden"),
    [
        (node(states=OFF, address="pub1"), NAMED, True),
        (node(states=OFF, address="pub1"), TERMS, False),
        (node(states=OFF, address="233.252.0.1"), NAMED, False),
        (node(states=OFF), NAMED, False),
        (node(states=BOOTS, address="pub1"), NAMED, False),
        (node(states=UP, address="pub1"), NAMED, False),
        (node("own1", OFF, address="own1"), NAMED, False),
    ],
)
def test_a_node_that_is_off_has_an_address_that_needs_no_look_up(
    at: SlurmNode, terms: Terms, *, hidden: bool
) -> None:
    """One that boots may register at any moment, and would lose its address."""
    found = asked(RoundRule.NAMES, snapshot(nodes=(at,), terms=terms))
    wanted = HideName(node="pub1", cause=NameLookedUp())
    assert found == ([wanted] if hidden else [])


# registrations


@pytest.mark.parametrize(
    ("one", "at", "noted"),
    [
        (machine(), node(), True),
        (machine(), node(states=UP | {"NOT_RESPONDING"}), True),
        (machine(), node(states=BOOTS), False),
        (machine(), node(states=OFF), False),
        (machine(), node(states=UP | {"DOWN"}, reason="broken fan", reason_user="ann"), False),
        (machine(), node("pub2"), False),
        (machine(registered=NOW - 5), node(), False),
        (machine(suspending=NOW - 5), node(), False),
        (machine("own1"), node("own1"), False),
    ],
)
def test_a_machine_has_registered_once_its_node_is_up(
    one: Machine, at: SlurmNode, *, noted: bool
) -> None:
    found = asked(RoundRule.REGISTRATIONS, snapshot(one, nodes=(at,)))
    wanted = Register(machine="i-pub1", cause=NodeUp(node="pub1"))
    assert found == ([wanted] if noted else [])


def breaker(cause: AnyCause, scope: str = "burst") -> Exclusion:
    return Exclusion(kind=BREAKER, scope=scope, until=NOW + 900, cause=cause)


def test_a_machine_that_registers_ends_the_pause_of_its_pool_alone() -> None:
    world = snapshot(machine(), machine("pub2"), nodes=(node(), node("pub2")))
    shut = (breaker(BootsFailed()), breaker(BootsFailed(), "own"))
    found = asked(RoundRule.REGISTRATIONS, replace(world, exclusions=shut))
    assert [a for a in found if isinstance(a, ReopenPool)] == [
        ReopenPool(
            pool="burst", nodes=("pub1", "pub2"),
            cause=PoolWorks(pool="burst"),
        )
    ]  # fmt: skip
    held = (Exclusion(kind=CAPACITY, scope="burst"),)
    found = asked(RoundRule.REGISTRATIONS, replace(world, exclusions=held))
    assert {a.kind for a in found} == {"register"}, "it was not paused"


FAILED = machine(
    "pub2", age=2000.0, cause=OutOfService(node_reason="Prolog error"), ended=NOW - 1500
)


@pytest.mark.parametrize(
    ("one", "proves"),
    [
        (machine(registered=NOW - 300), True),
        (machine(registered=NOW - 299), False),
        (machine(), False),
        (machine(age=2000.0, registered=NOW - 300), False),
        (machine(age=1999.0, registered=NOW - 300), True),
        (machine(registered=NOW - 900, suspending=NOW - 600, cause=SuspendedBySlurm()), True),
        (machine(registered=NOW - 900, suspending=NOW - 601, cause=SuspendedBySlurm()), False),
        (machine(registered=NOW - 900, suspending=NOW - 600, cause=Quoted(text="too old")), True),
        (
            machine("pub3", registered=NOW - 900, suspending=NOW - 600, cause=SuspendedBySlurm()),
            True,
        ),
        (
            machine(
                "pub3", registered=NOW - 900, suspending=NOW - 600, cause=Quoted(text="too old")
            ),
            False,
        ),
        (machine("pub3", registered=NOW - 900, ended=NOW - 600, cause=SuspendedBySlurm()), False),
        (machine("pub3", registered=NOW - 900), False),
        (machine(registered=NOW - 300, pool="other"), False),
        (replace(machine("own1", registered=NOW - 300), pool="burst"), False),
    ],
)
def test_a_pool_whose_machines_slurm_took_out_is_proved_by_one_that_serves_for_a_while(
    one: Machine, *, proves: bool
) -> None:
    """One decided on before the last failure proves nothing: Prolog fails at the first job only."""
    world = snapshot(
        nodes=(node(), node("pub3", OFF), node("own1")), recent=(one, FAILED),
        exclusions=(breaker(BootsFailed(node_reason="Prolog error")),),
    )  # fmt: skip
    found = asked(RoundRule.REGISTRATIONS, world)
    assert [a.kind for a in found] == (["reopen-pool"] if proves else [])


def test_one_that_came_before_the_last_that_failed_proves_nothing() -> None:
    first = replace(FAILED, instance=machine("pub4", age=3000.0).instance)
    between = machine(age=2500.0, registered=NOW - 300)
    world = snapshot(
        nodes=(node(),), recent=(first, between, FAILED),
        exclusions=(breaker(BootsFailed(node_reason="Prolog error")),),
    )  # fmt: skip
    assert asked(RoundRule.REGISTRATIONS, world) == []


def test_a_machine_that_registers_proves_nothing_where_slurm_took_out_the_last_ones() -> None:
    shut = (breaker(BootsFailed(node_reason="Prolog error")),)
    found = asked(RoundRule.REGISTRATIONS, snapshot(machine(), nodes=(node(),), exclusions=shut))
    assert [a.kind for a in found] == ["register"]


# drains


@pytest.mark.parametrize(
    ("one", "states", "opened", "span"),
    [
        (machine(), DRAINED, (), Drained(node="pub1", begin=NOW)),
        (machine(), UP, (), None),
        (machine(suspending=NOW), DRAINED, (), None),
        (machine("own1"), DRAINED, (), None),
        (machine(), DRAINED, ("pub1",), None),
        (machine(), UP, ("pub1",), Drained(node="pub1", begin=T0, end=NOW)),
        (machine(suspending=NOW), DRAINED, ("pub1",), Drained(node="pub1", begin=T0, end=NOW)),
        (machine(), UP, ("own1",), None),
        (machine(), UP, ("left",), Drained(node="left", begin=T0, end=NOW)),
    ],
)
def test_the_time_in_which_a_machine_takes_no_jobs_is_written_down(
    one: Machine, states: frozenset[str], opened: tuple[str, ...], span: Drained | None
) -> None:
    """Each cloud's pass sees to its own nodes, and to those that no pool has any more."""
    world = snapshot(
        one, nodes=(node(states=states), node("own1", states)),
        drains=tuple(Drained(node=n, begin=T0) for n in opened),
    )  # fmt: skip
    found = asked(RoundRule.DRAINS, world)
    assert [a.span for a in found if isinstance(a, NoteDrain)] == ([] if span is None else [span])


# holds


def hold(name: str = "pub1", until: float = NOW, kind: str = CAPACITY) -> Exclusion:
    return Exclusion(
        kind=kind, scope=name, until=until, cause=Quoted(text="aws has 0 free"), pool="burst"
    )


def test_the_holds_of_a_pool_are_looked_at_together_when_the_first_is_due() -> None:
    late = snapshot(exclusions=(hold(until=NOW + 1), hold("pub2"), hold("own1"), hold("left"),
                                hold("pub3", kind=POLICY)))  # fmt: skip
    assert {n: [h.scope for h in some] for n, some in due_holds(late).items()} == {
        "burst": ["pub1", "pub2"]
    }
    assert due_holds(snapshot(exclusions=(hold(until=NOW + 1),))) == {}


BUYS = {"offers": {"burst": (offer(market=Market.ON_DEMAND),)}, "scopes": {"burst": Scope()}}


def test_a_node_without_spot_stays_held_while_only_spot_has_room() -> None:
    mixed = replace(AWS, markets=tuple(Market), on_demand_nodes=1)
    terms = replace(TERMS, pools={"burst": mixed}, pool_of=dict.fromkeys(AWS.nodes, mixed))
    first, *_, last = AWS.nodes
    spot = offer(market=Market.SPOT)
    held = snapshot(
        exclusions=(hold(first), hold(last)), terms=terms,
        offers={"burst": (spot,)}, scopes={"burst": Scope()},
    )  # fmt: skip
    assert list(holds(held)) == [
        Hold(node=last, pool="burst", cause=hold().cause),
        Release(node=first, hold=CAPACITY, cause=OfferAvailable(offer=spot.key)),
    ]


def test_nodes_with_and_without_spot_share_the_room_for_on_demand_machines() -> None:
    mixed = replace(AWS, markets=tuple(Market), on_demand_nodes=1)
    terms = replace(TERMS, pools={"burst": mixed}, pool_of=dict.fromkeys(AWS.nodes, mixed))
    first, *_, last = AWS.nodes
    one = replace(offer(market=Market.ON_DEMAND), free=1)
    held = snapshot(
        exclusions=(hold(first), hold(last)), terms=terms,
        offers={"burst": (one,)}, scopes={"burst": Scope()},
    )  # fmt: skip
    released = [action.node for action in holds(held) if isinstance(action, Release)]
    assert released == [last]


@pytest.mark.parametrize(
    ("at", "owner", "free"),
    [
        ((), (), True),
        ((node(states=DRAINED | OFF),), (), True),
        ((node(states=DRAINED | OFF),), (machine(),), False),
        ((node(states=DRAINED | OFF),), (machine(suspending=NOW),), True),
        ((node(states=DRAINED),), (machine(),), True),
        ((node(states=DRAINED | GOES),), (), False),
    ],
)
def test_a_hold_ends_where_an_offer_has_room_and_the_node_may_start(
    at: tuple[SlurmNode, ...], owner: tuple[Machine, ...], *, free: bool
) -> None:
    wide = replace(AWS, markets=tuple(Market))
    terms = replace(TERMS, pools={"burst": wide}, pool_of=dict.fromkeys(AWS.nodes, wide))
    world = snapshot(*owner, nodes=at, exclusions=(hold(),), terms=terms, **BUYS)
    let_go = Release(
        node="pub1", hold=CAPACITY,
        cause=AlreadyServed()
        if any(m.is_wanted for m in owner)
        else OfferAvailable(offer="aws/c6i.xlarge/eu-west-1a/on-demand"),
    )  # fmt: skip
    kept = Hold(node="pub1", pool="burst", cause=Quoted(text="aws has 0 free"))
    assert asked(RoundRule.HOLDS, world) == [let_go if free else kept]


def test_only_as_many_are_let_go_as_there_is_room_for() -> None:
    wide = replace(AWS, markets=tuple(Market))
    terms = replace(TERMS, pools={"burst": wide}, pool_of=dict.fromkeys(AWS.nodes, wide))
    scope = Scope(limits=Limits(nodes=2))
    world = snapshot(
        exclusions=tuple(hold(n) for n in ("pub1", "pub2", "pub3")), terms=terms,
        offers=BUYS["offers"], scopes={"burst": scope},
    )  # fmt: skip
    assert [(a.kind, a.subject) for a in asked(RoundRule.HOLDS, world)] == [
        ("release", "pub1"), ("release", "pub2"), ("hold", "pub3"),
    ]  # fmt: skip


def test_a_node_that_has_its_machine_takes_up_no_room() -> None:
    wide = replace(AWS, markets=tuple(Market))
    terms = replace(TERMS, pools={"burst": wide}, pool_of=dict.fromkeys(AWS.nodes, wide))
    world = snapshot(
        machine(), nodes=(node(states=DRAINED),),
        exclusions=tuple(hold(n) for n in ("pub1", "pub2", "pub3")), terms=terms,
        offers=BUYS["offers"], scopes={"burst": Scope(limits=Limits(nodes=1))},
    )  # fmt: skip
    assert [(a.kind, a.subject) for a in asked(RoundRule.HOLDS, world)] == [
        ("release", "pub1"), ("release", "pub2"), ("hold", "pub3"),
    ]  # fmt: skip
    sold_out = replace(world, offers={"burst": ()})
    assert [(a.kind, a.subject) for a in asked(RoundRule.HOLDS, sold_out)][:2] == [
        ("release", "pub1"), ("hold", "pub2"),
    ]  # fmt: skip


def test_a_node_that_an_operator_holds_takes_up_no_room() -> None:
    wide = replace(AWS, markets=tuple(Market))
    terms = replace(TERMS, pools={"burst": wide}, pool_of=dict.fromkeys(AWS.nodes, wide))
    world = snapshot(
        exclusions=(hold("pub1"), hold("pub2"), hold("pub1", kind=OPERATOR)), terms=terms,
        offers=BUYS["offers"], scopes={"burst": Scope(limits=Limits(nodes=1))},
    )  # fmt: skip
    assert [(a.kind, a.subject) for a in asked(RoundRule.HOLDS, world)] == [
        ("release", "pub2"), ("hold", "pub1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "released"),
    [
        ({}, True),
        ({"writable": False}, False),
        ({"exclusions": (hold(until=NOW + 9),)}, False),
        ({"exclusions": (hold(kind=OPERATOR),)}, False),
        ({"exclusions": (breaker("x", "pub1"),)}, True),
        ({"nodes": {"pub1": node(states=DRAINED, reason="my own drain")}}, False),
        ({"nodes": {"pub1": node(states=UP, reason=HELD)}}, False),
        ({"nodes": {"own1": node("own1", states=DRAINED, reason=HELD)}}, False),
    ],
)
def test_a_hold_that_the_ledger_has_not_is_let_go(
    change: dict[str, object], *, released: bool
) -> None:
    world = snapshot(nodes=(node(states=DRAINED, reason=HELD),))
    found = asked(RoundRule.HOLDS, replace(world, **change))
    wanted = Release(node="pub1", hold=CAPACITY, cause=HoldNotInLedger())
    assert found == ([wanted] if released else [])


def test_holds_of_nodes_that_no_pool_has_any_more_are_forgotten_once_a_round() -> None:
    held = (hold("left", kind=OPERATOR), hold("own1", kind=POLICY), breaker("x", "left"))
    first = snapshot(exclusions=held, terms=replace(TERMS, is_first_cloud=True))
    assert [
        (a.subject, a.hold) for a in asked(RoundRule.HOLDS, first) if isinstance(a, Release)
    ] == [("left", OPERATOR)]
    assert asked(RoundRule.HOLDS, replace(first, terms=TERMS)) == []


# the view that repair compares


@pytest.mark.parametrize(
    ("one", "states", "serves"),
    [
        (machine("own1"), UP, True),
        (machine("own1", suspending=NOW), UP, False),
        (machine("pub1"), UP, False),
        (machine("own1", age=599.0), BOOTS, True),
        (machine("own1", age=600.0), BOOTS, False),
        (machine("own1", age=599.0, registered=NOW), BOOTS, False),
        (machine("own1", age=9000.0), OFF, True),
    ],
)
def test_a_machine_of_another_cloud_serves_its_node_unless_it_never_comes_up(
    one: Machine, states: frozenset[str], *, serves: bool
) -> None:
    nodes = (node(one.instance.node, states),)
    view = cloud_view(snapshot(one, nodes=nodes))
    assert view.elsewhere == ({"own1"} if serves else set())


@pytest.mark.parametrize(("age", "serves"), [(899.0, True), (900.0, False)])
def test_a_boot_in_another_cloud_may_take_the_time_of_that_cloud(
    age: float, *, serves: bool
) -> None:
    nodes = (node("own1", BOOTS),)
    booting = snapshot(machine("own1", age=age), nodes=nodes, terms=SLOW)
    asked_for = snapshot(nodes=nodes, launches=(launch("gcp", "own1", age=age),), terms=SLOW)
    expected = {"own1"} if serves else set()
    assert cloud_view(booting).elsewhere == cloud_view(asked_for).elsewhere == expected


@pytest.mark.parametrize(
    ("row", "states", "serves"),
    [
        (launch("gcp", "own1"), BOOTS, True),
        (launch("gcp", "own1", age=599.0), BOOTS, True),
        (launch("gcp", "own1", age=600.0), BOOTS, False),
        (launch("gcp", "own1", age=600.0), UP, True),
        (launch("aws", "own1"), BOOTS, False),
    ],
)
def test_an_open_launch_of_another_cloud_may_serve_its_nodes_for_as_long_as_a_boot_takes(
    row: Launch, states: frozenset[str], *, serves: bool
) -> None:
    view = cloud_view(snapshot(nodes=(node("own1", states),), launches=(row,)))
    assert view.elsewhere == ({"own1"} if serves else set())
    assert len(view.intents) == (row.cloud == "aws")


@pytest.mark.parametrize(
    ("one", "ages", "most"),
    [
        (machine(), (600.0, 900.0), 600.0),
        (machine(), (None, 900.0), None),
        (machine(pool="left"), (600.0, 900.0), 900.0),
        (machine(pool="left"), (None, 900.0), None),
    ],
)
def test_the_age_of_a_machine_is_bounded_by_its_pool_or_the_longest_of_its_cloud(
    one: Machine, ages: tuple[float | None, ...], most: float | None
) -> None:
    pools = {
        name: replace(pool(name, prefix=name), max_age=age)
        for name, age in zip(("burst", "long"), ages, strict=True)
    }
    (known,) = cloud_view(snapshot(one, terms=replace(TERMS, pools=pools))).tracked
    assert known.max_age == most


@pytest.mark.parametrize(
    ("one", "answered", "shown"),
    [
        (machine(missed_listings=1, last_seen=NOW), NOW, False),
        (machine(missed_listings=1, last_seen=NOW), NOW - 1, True),
        (machine(missed_listings=0, last_seen=NOW), NOW, True),
        (machine(missed_listings=1, last_seen=NOW), None, True),
    ],
)
def test_a_machine_is_shown_once_a_read_after_its_launch_has_had_it(
    one: Machine, answered: float | None, *, shown: bool
) -> None:
    ends = {} if answered is None else {one.instance.generation: answered}
    (known,) = cloud_view(snapshot(one, answered=ends)).tracked
    assert known.was_listed is shown


def test_a_machine_whose_node_went_to_another_cloud_is_a_double_of_the_one_there() -> None:
    old = replace(machine("own1", id_="i-old"), pool="burst")
    old = replace(old, instance=replace(old.instance, cloud="aws"))
    new = machine("own1", address="10.0.0.9")
    at = node("own1", address="10.0.0.9")
    world = snapshot(old, new, nodes=(at,))
    assert [k.double_of for k in cloud_view(world).tracked] == ["i-own1"]
    for other in (
        replace(world, machines=(old, changed(new, suspending=NOW))),
        replace(world, nodes={"own1": replace(at, address="10.0.0.8")}),
        replace(world, nodes={}),
    ):
        assert [k.double_of for k in cloud_view(other).tracked] == [""]
    home = replace(TERMS, cloud="gcp")
    assert [k.double_of for k in cloud_view(replace(world, terms=home)).tracked] == [""]


def test_a_launch_was_decided_by_the_heads_clock_where_its_name_tells() -> None:
    assert decided_at(machine(age=50.0).instance) == NOW - 50
    assert decided_at(instance(generation="adopted", launched=T0 + 3)) == T0 + 3


def test_repair_compares_one_clouds_part_of_slurm_the_ledger_and_its_list() -> None:
    left = replace(machine("left", suspending=NOW), missed_listings=2)
    seen = (instance("i-pub1"),)
    world = snapshot(
        machine(registered=NOW - 5), left, machine("own1"),
        nodes=(node(), node("left"), node("own1"), node("static")), listed=seen,
        exclusions=(hold("pub3"), hold("pub4", kind=POLICY)), slurmd_timeout=300.0,
    )  # fmt: skip
    view = cloud_view(world)
    assert (view.now, view.listed, view.held) == (NOW, seen, frozenset({"pub3"}))
    assert set(view.nodes) == {"pub1", "left"}, "the cloud's, and those of its machines"
    assert [(k.id, k.is_ending, k.has_registered, k.missed_listings) for k in view.tracked] == [
        ("i-pub1", False, True, 0), ("i-left", True, False, 2),
    ]  # fmt: skip
    assert (view.pings, view.drain_terms) == (True, DrainTerms())
    assert not cloud_view(snapshot()).pings, "where SlurmdTimeout is not known"
