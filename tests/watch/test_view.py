from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import T0, instance, offer
from machine_cases import changed, machine_with
from msgspec.structs import replace
from rich.console import Console
from status_cases import NOW, busy_ledger, busy_slurm, config, job, node

from slurm_elastic.base.errors import UnopenedError
from slurm_elastic.base.units import money
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.config.sections.policies import Budget, CloudPolicies, SitePolicies
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.causes.refusals import CloudSilent
from slurm_elastic.model.cluster import InstanceState, Limits, Market
from slurm_elastic.model.directive import Directive, LimitChange, Pause, stop_reason
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, OPERATOR, POLICY, Exclusion
from slurm_elastic.model.memory import REFUSED, UNREADABLE, PurchaseTerms, UnhelpedJob, code_of
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.verdict import PoolBar
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.state.heartbeat import ServiceTrouble
from slurm_elastic.state.ledger import Health, Machine
from slurm_elastic.watch.causes import LEDGER, UNHELPED
from slurm_elastic.watch.view import DAY_S, Facts, StatusView, status_view
from slurm_elastic.watch.view.attention import attention, reason_or_reference, sentence
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.next_action import Outlook, node_note, node_state
from slurm_elastic.watch.view.queue import MAX_WAITING_ROWS
from slurm_elastic.watch.view.rows import AttentionLevel


@pytest.fixture
def view(tmp_path: Path) -> StatusView:
    ledger = busy_ledger(tmp_path / "ledger.db")
    slurm = busy_slurm()
    facts = Facts(
        now=NOW,
        nodes=slurm.nodes(),
        jobs=slurm.jobs(),
        machines=ledger.machines.live(ended_since=NOW - DAY_S),
        open_launches=ledger.launches.open(),
        cool_downs=ledger.exclusions.cool_downs(NOW),
        holds=ledger.exclusions.holds(),
        health=ledger.health.all(),
        heartbeat=(NOW - 3, 99),
        process_found=True,
        pending=2,
    )
    ledger.close()
    return status_view(config(tmp_path), facts)


# the joined view


def test_a_cloud_counts_its_nodes_machines_and_money(view: StatusView) -> None:
    onprem, aws = view.clouds
    assert (onprem.partition, onprem.provider, onprem.limit) == ("onprem", "local", 4)
    assert onprem.states == {"in use": 1, "idle": 1}
    assert (aws.partition, aws.provider, aws.nodes, aws.limit) == ("burst", "aws", 8, 16)
    assert aws.states == {
        "in use": 1,
        "booting": 2,
        "held": 2,
        "down": 1,
        "powered down": 1,
        "powering down": 1,
    }
    assert aws.machines == 5, "four live ones and the open launch"
    assert aws.price_now == pytest.approx(3 * 0.04 + 0.12)
    assert aws.price_worst == pytest.approx(5 * 0.12)
    assert (aws.problem, aws.checked) == ("UnauthorizedOperation: no", NOW - 8)
    assert (aws.blocked, onprem.blocked, onprem.problem) == (None, None, None)


def test_pools_have_their_own_counts(view: StatusView) -> None:
    rack, general = view.pools
    assert (rack.nodes, rack.count, rack.machines, rack.limit) == ("op[1-2]", 2, 2, None)
    assert (general.nodes, general.machines, general.limit) == ("pub[1-8]", 5, 8)
    assert general.markets == ("spot", "on-demand")


def test_nodes_are_grouped_and_powered_down_ones_left_out(view: StatusView) -> None:
    groups = {(g.state, g.cloud): (g.nodes, g.note) for g in view.nodes}
    assert groups == {
        ("in use", "onprem"): ("op1", ""),
        ("idle", "onprem"): ("op2", ""),
        ("in use", "aws"): ("pub1", ""),
        ("down", "aws"): ("pub2", "Not responding"),
        ("booting", "aws"): ("pub[3,6]", ""),
        ("powering down", "aws"): ("pub4", ""),
        ("held", "aws"): ("pub[7-8]", "no offer left; released in 2m"),
    }


def test_an_instance_has_owner_cost_and_next_action(view: StatusView) -> None:
    assert [i.node for i in view.instances] == ["op1", "op2", "pub1", "pub2", "pub3", "pub4"]
    by_node = {i.node: i for i in view.instances}
    pub1 = by_node["pub1"]
    assert [(j.id, j.user) for j in pub1.jobs] == [(42, "bob"), (43, "carol")]
    assert (pub1.age, pub1.cost) == (3600, pytest.approx(0.04))
    assert {name: i.next for name, i in by_node.items()} == {
        "op1": "in use",
        "op2": "suspends in 3m 20s unless used",
        "pub1": "in use",
        "pub2": "down: Not responding",
        "pub3": "booting: times out in 3m 10s",
        "pub4": "terminating: suspended by Slurm",
    }


def test_open_launches_cool_downs_and_holds_are_shown(view: StatusView) -> None:
    (launch,) = view.launches
    assert (launch.generation, launch.nodes, launch.age) == ("g5", "pub6", 5)
    (cool_down,) = view.cool_downs
    assert (cool_down.left, cool_down.strikes) == (100, 2)
    (hold,) = view.holds
    assert (hold.nodes, hold.count, hold.left) == ("pub[7-8]", 2, 120)


def test_totals_are_by_market_with_the_ended_of_a_day(view: StatusView) -> None:
    totals = {t.market: t for t in view.totals}
    assert list(totals) == ["on-demand", "reserved", "spot"]
    spot = totals["spot"]
    assert (spot.machines, spot.ended) == (3, 1)
    assert spot.cost_ended == pytest.approx(0.04 * 1800 / 3600)
    assert spot.cost_live == pytest.approx(0.04 * (3600 + 3600 + 3500) / 3600)


def test_the_document_is_stable(view: StatusView) -> None:
    again = msgspec.json.decode(msgspec.json.encode(view), type=StatusView)
    assert again == view
    document = msgspec.json.decode(msgspec.json.encode(view))
    assert document["version"] == 1
    assert list(document) == [
        *("at", "cluster", "daemon", "slurm_error", "ledger_error", "clouds", "pools", "nodes"),
        *("instances", "launches", "cool_downs", "holds", "totals", "breakers"),
        *(
            "checkpoints",
            "budgets",
            "directives",
            "private",
            "site",
            "clock",
            "queue",
            "part",
            "attention",
            "head",
            "kept",
            "unhelped",
            "site_nodes",
            "reserved",
            "other_clusters",
            "checkpoints_error",
            "version",
        ),
    ]


# what is missing


def test_without_slurm_the_ledgers_part_is_shown(tmp_path: Path) -> None:
    machine = Machine(instance=instance("i-1"), pool="general")
    leaving = changed(
        machine, instance=instance("i-2", "pub2"), suspending=NOW, cause=Quoted(text="idle")
    )
    facts = Facts(now=NOW, slurm_error="scontrol: timed out", machines=[machine, leaving])
    view = status_view(config(tmp_path), facts)
    assert view.slurm_error == "scontrol: timed out"
    assert view.nodes == ()
    assert view.clouds[1].states == {}
    assert [i.next for i in view.instances] == [
        "unknown: Slurm does not answer",
        "terminating: idle",
    ]


def test_without_a_ledger_slurms_part_is_shown(tmp_path: Path) -> None:
    facts = Facts(now=NOW, nodes=busy_slurm().nodes(), ledger_error="there is none")
    view = status_view(config(tmp_path), facts)
    assert view.ledger_error == "there is none"
    states = {g.state: g.nodes for g in view.nodes if g.cloud == "onprem"}
    assert states == {"in use": "op1", "idle": "op2"}, "whether it has a machine is not known"
    assert (view.daemon.alive, view.daemon.age, view.instances, view.totals) == (
        False,
        None,
        (),
        (),
    )


def test_a_blocked_cloud_says_why(tmp_path: Path) -> None:
    view = status_view(config(tmp_path, allowed=False), Facts(now=NOW))
    assert "nobody is allowed" in (view.clouds[1].blocked or "")


def test_a_cap_that_an_operator_orders_opens_no_cloud(tmp_path: Path) -> None:
    uncapped = config(tmp_path)
    clouds = tuple(replace(cloud, limits=Limits()) for cloud in uncapped.clouds)
    cap = LimitChange(scope="", key="dollars_per_hour", value=5.0)
    order = Directive(word=cap, who="root", since=NOW - 60, starts=NOW - 60)
    view = status_view(replace(uncapped, clouds=clouds), Facts(now=NOW, directives=(order,)))
    assert "no spending cap" in (view.clouds[1].blocked or "")


@pytest.mark.parametrize(
    ("age", "found", "alive"),
    [(3, True, True), (3, None, True), (120, True, True), (121, True, False), (3, False, False)],
)
def test_the_daemon_lives_by_heartbeat_and_process(
    tmp_path: Path, age: float, found: bool | None, alive: bool
) -> None:
    facts = Facts(now=NOW, heartbeat=(NOW - age, 99), process_found=found)
    daemon = status_view(config(tmp_path), facts).daemon
    assert (daemon.alive, daemon.age, daemon.pid) == (alive, age, 99)
    told = CheckpointFacts(heartbeat=(NOW - age, 99), process_found=found)
    checkpoints = status_view(config(tmp_path), Facts(now=NOW, checkpoints=told)).checkpoints
    assert checkpoints is not None
    assert (checkpoints.alive, checkpoints.age) == (alive, age)


def test_errors_of_others_than_clouds_stand_with_the_daemon(tmp_path: Path) -> None:
    health = [
        Health(name="slurm", checked=NOW, error="sinfo: timed out"),
        Health(name="x", checked=1),
    ]
    view = status_view(config(tmp_path), Facts(now=NOW, health=health))
    assert view.daemon.problems == ("slurm: sinfo: timed out (0s ago)",)
    (old,) = [replace(one, checked=NOW - 7200) for one in health[:1]]
    told = attention(status_view(config(tmp_path), Facts(now=NOW, health=[old], nodes={})))
    assert "Last error of slurm: sinfo: timed out (2h ago)" in [one.text for one in told]


@pytest.mark.parametrize("until", [0.0, NOW + 600])
def test_machines_that_do_not_register_have_their_price_and_the_next_step(
    tmp_path: Path, until: float
) -> None:
    machines = [
        machine_with(
            instance=instance(f"i-{n}", f"pub{n}", launched=NOW - 3600), pool="general", ended=NOW
        )
        for n in (1, 2, 3)
    ]
    facts = Facts(
        now=NOW, nodes={}, machines=machines,
        breakers=[Exclusion(kind=BREAKER, scope="general", count=2, until=until)],
    )  # fmt: skip
    view = status_view(config(tmp_path), facts)
    (paused,) = (one for one in view.attention if one.cause == "pool:general")
    paid = sum(machine.lease.cost(NOW) for machine in machines[:2])
    assert f"booted but never registered ({money(paid)} paid); " in paused.text
    assert paused.do.startswith("slurm-elastic clear general; slurm-elastic try general (it starts")


def test_a_pool_whose_machines_others_end_has_the_remedy_once(tmp_path: Path) -> None:
    cause = BootsFailed(ended_by_others=True, remedy="ask who ends them")
    breakers = [Exclusion(kind=BREAKER, scope="general", count=1, until=0.0, cause=cause)]
    view = status_view(config(tmp_path), Facts(now=NOW, nodes={}, breakers=breakers))
    (paused,) = (one for one in view.attention if one.cause == "pool:general")
    text = "Pool general: 1 machine was ended in the cloud by others, minutes after the start; "
    assert paused.text.startswith(f"{text}it is paused at ")
    assert paused.do == "ask who ends them"


def test_costs_are_billed_in_the_unit_of_the_purchase_as_in_cost(tmp_path: Path) -> None:
    for unit, dollars in ((1, 0.04 / 6), (3600, 0.04)):
        machines = [
            machine_with(
                instance=instance(f"i-{n}", f"pub{n}", launched=NOW - 600), pool="general",
                ended=end, terms=PurchaseTerms(billing_increment_s=unit),
            )
            for n, end in ((1, None), (2, NOW))
        ]  # fmt: skip
        view = status_view(config(tmp_path), Facts(now=NOW, nodes={}, machines=machines))
        (total,), (row,) = view.totals, view.instances
        found = (row.cost, total.cost_live, total.cost_ended)
        assert found == pytest.approx((dollars, dollars, dollars))


@pytest.mark.parametrize(
    ("code", "level", "sentence", "remedy"),
    [
        (
            REFUSED,
            AttentionLevel.LOUD,
            "cannot be ended until the credentials work",
            "cloud's console",
        ),
        (
            UNREADABLE,
            AttentionLevel.BAD,
            "may not end until the cloud answers",
            "look at the endpoint",
        ),
    ],
)
def test_paid_machines_that_cannot_be_ended_are_said_first(
    tmp_path: Path, code: str, level: AttentionLevel, sentence: str, remedy: str
) -> None:
    machines = [
        Machine(instance=instance(f"i-{n}", f"pub{n}" if n > 1 else ""), pool="x")
        for n in range(1, 11)
    ]
    health = [Health(name="aws", checked=NOW, error="aws: ExpiredToken: no", code=code)]
    facts = Facts(now=NOW, nodes={}, machines=machines, health=health)
    order = Directive(word=Pause(scope=""), who="ann", since=NOW, starts=NOW)
    view = status_view(config(tmp_path), replace(facts, directives=[order]))
    (problem,) = (one for one in view.attention if one.cause == "cloud:aws")
    assert problem.level is level
    assert problem.text.startswith("10 machines of cloud aws ($")
    assert f"/h) {sentence}: i-1, pub2 (i-2), " in problem.text
    assert " and 2 more; cloud aws " in problem.text
    assert remedy in problem.do
    loudest = [one for one in view.attention if one.level is AttentionLevel.LOUD]
    assert code == UNREADABLE or loudest[0] == problem


def test_refused_credentials_of_a_cloud_without_machines_have_their_remedy(tmp_path: Path) -> None:
    health = [Health(name="aws", checked=NOW, error="aws: ExpiredToken: no", code=REFUSED)]
    view = status_view(config(tmp_path), Facts(now=NOW, nodes={}, health=health))
    (problem,) = (one for one in view.attention if one.cause == "cloud:aws")
    assert problem.text == "Cloud aws refuses the credentials (0s ago): ExpiredToken: no"
    assert problem.do.startswith("renew the credentials")
    assert "console" not in problem.do


@pytest.mark.parametrize("count", [0, 2])
def test_a_cloud_that_cannot_be_opened_is_no_matter_of_credentials(
    tmp_path: Path, count: int
) -> None:
    missing = "aws: Unusable: Python module 'boto3' is missing; do: install it"
    error = UnopenedError("aws", "Unusable", "Python module 'boto3' is missing; do: install it")
    health = [Health(name="aws", checked=NOW, error=missing, code=code_of(error))]
    machines = [
        Machine(instance=instance(f"i-{n}", f"pub{n}"), pool="x") for n in range(1, count + 1)
    ]
    facts = Facts(now=NOW, nodes={}, machines=machines, health=health)
    view = status_view(config(tmp_path), facts)
    (problem,) = (one for one in view.attention if one.cause == "cloud:aws")
    how = "cannot be opened on this host (0s ago): Unusable: Python module 'boto3' is missing"
    assert f"loud aws {how}" in problem.text
    assert "credentials" not in f"{problem.text} {problem.do}"
    assert ("cannot be ended until the cloud can be opened" in problem.text) == bool(count)
    assert ("console" in problem.do) == bool(count)


def test_two_machines_of_one_node_are_told_apart(tmp_path: Path) -> None:
    machines = [
        Machine(instance=instance("i-old", "pub1", "g1"), pool="general"),
        Machine(instance=instance("i-new", "pub1", "g2"), pool="general"),
    ]
    nodes = {"pub1": node("pub1", "ALLOCATED")}
    view = status_view(config(tmp_path), Facts(now=NOW, nodes=nodes, machines=machines))
    nexts = {i.id: i.next for i in view.instances}
    assert nexts == {"i-old": "double of i-new: one of them will be deleted", "i-new": "in use"}


def test_a_machine_that_its_cloud_does_not_end_is_shown_as_such(tmp_path: Path) -> None:
    ending = [
        machine_with(
            instance=instance("i-1", "pub1"),
            pool="x",
            suspending=NOW - 60,
            cause=Quoted(text="idle"),
        ),
        machine_with(
            instance=instance("i-2", "pub2"),
            pool="x",
            suspending=NOW - 3600,
            cause=Quoted(text="idle"),
        ),
    ]
    view = status_view(config(tmp_path), Facts(now=NOW, nodes={}, machines=ending))
    assert {i.id: i.next for i in view.instances} == {
        "i-1": "terminating: idle",
        "i-2": "stray: its end was decided over 15m ago, and its cloud has not confirmed it",
    }


def test_a_machine_that_serves_nobody_is_shown_with_why(tmp_path: Path) -> None:
    machines = [
        Machine(instance=instance("i-1", ""), pool=""),
        Machine(instance=instance("i-2", ""), pool=""),
        Machine(instance=instance("i-3", "x1", bought=offer(cloud="former")), pool="x"),
    ]
    health = [Health(name="paid machines", checked=NOW, error="3 serve no node: i-1: ...")]
    facts = Facts(now=NOW, nodes={}, machines=machines, health=health)
    view = status_view(config(tmp_path), facts)
    assert {i.id: i.next for i in view.instances} == {
        "i-1": "stray: its tags name no node",
        "i-2": "stray: its tags name no node",
        "i-3": "stray: the configuration no longer has cloud former",
    }
    assert view.daemon.problems == ("paid machines: 3 serve no node: i-1: ... (0s ago)",)


# words


@pytest.mark.parametrize(
    ("states", "held", "has_machine", "word"),
    [
        ("IDLE POWERED_DOWN", False, False, "powered down"),
        ("IDLE POWERED_DOWN DRAIN", True, False, "held"),
        ("IDLE POWERED_DOWN DRAIN", False, False, "drained"),
        ("IDLE POWERING_DOWN DRAIN", True, False, "powering down"),
        ("ALLOCATED POWERING_UP", False, True, "booting"),
        ("DOWN POWERING_UP", False, True, "down"),
        ("IDLE", False, True, "idle"),
        ("IDLE", False, False, "no machine"),
        ("IDLE DRAIN", False, True, "drained"),
        ("MIXED DRAIN", False, True, "in use"),
        ("IDLE COMPLETING", False, True, "in use"),
        ("DOWN", False, True, "down"),
    ],
)
def test_node_words(states: str, held: bool, has_machine: bool, word: str) -> None:
    hold = (
        Exclusion(kind=CAPACITY, scope="pub1", pool="p", cause=Quoted(text="r"), since=T0, until=T0)
        if held
        else None
    )
    slurm_node = node("pub1", *states.split())
    assert node_state(slurm_node, hold, has_machine=has_machine) == word


def test_a_hold_is_known_by_slurms_reason_too() -> None:
    slurm_node = node("pub1", "IDLE", "DRAIN", "POWERED_DOWN", reason="slurm-elastic:hold:why")
    assert node_state(slurm_node, None, has_machine=False) == "held"
    assert node_note("held", slurm_node, None, NOW) == "slurm-elastic:hold:why"


def test_a_hold_is_known_by_the_mark_that_the_daemon_sets() -> None:
    assert (
        node_state(node("pub1", "IDLE", "DRAIN", reason=f"{HOLD_MARK}x"), None, has_machine=False)
        == "held"
    )


def test_a_node_slurm_does_not_list_is_said_so() -> None:
    assert node_state(None, None, has_machine=False) == "unknown to Slurm"
    assert "fragment" in node_note("unknown to Slurm", None, None, NOW)


def outlook(tmp_path: Path, machine: Machine, slurm_node: SlurmNode | None, **how: object) -> str:
    made = config(tmp_path)
    cloud = replace(made.cloud("aws"), suspend_time=how.get("suspend_time"))  # type: ignore[type-var]
    max_age = how.get("max_age")
    jobs = [job(1, "u", "pub1")] if how.get("busy") else []
    return Outlook(made, cloud, NOW).of(machine, slurm_node, jobs, max_age)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "states", "how", "phrase"),
    [
        ({"suspending": NOW}, "IDLE", {}, "terminating"),
        ({"missed_listings": 2}, "IDLE", {}, "not listed by the cloud (2 of 3 reads): then gone"),
        (
            {"missed_listings": 9},
            "IDLE",
            {},
            "not listed by the cloud, but slurmctld hears it: stays",
        ),
        (
            {"missed_listings": 3},
            "IDLE NOT_RESPONDING",
            {},
            "not listed by the cloud (3 of 3 reads): then gone",
        ),
        ({}, None, {}, "orphan: Slurm has no such node; will be deleted"),
        ({}, "IDLE POWERED_DOWN", {}, "orphan: will be deleted"),
        ({}, "IDLE POWERING_DOWN", {}, "powering down: Slurm will ask to end it"),
        ({}, "DOWN", {}, "down"),
        ({}, "ALLOCATED POWERING_UP", {}, "booting: overdue by 55m, it is given up"),
        ({}, "ALLOCATED", {}, "in use"),
        ({}, "IDLE", {"busy": True}, "in use"),
        ({}, "ALLOCATED", {"max_age": 60.0}, "ends after its jobs: over the maximum age"),
        ({}, "IDLE", {"max_age": 60.0}, "powers down: over the maximum age"),
        ({}, "IDLE", {}, "suspends now unless used"),
        ({}, "IDLE", {"suspend_time": 7300.0}, "suspends in 1h unless used"),
        ({}, "IDLE", {"suspend_time": float("inf")}, "idle: is never suspended"),
    ],
)
def test_next_actions(
    tmp_path: Path, changes: dict, states: str | None, how: dict, phrase: str
) -> None:
    machine = machine_with(instance=instance("i-1", "pub1"), pool="general", **changes)
    slurm_node = node("pub1", *states.split()) if states else None
    assert outlook(tmp_path, machine, slurm_node, **how) == phrase


WORDS = ("IDLE", "ALLOCATED", "MIXED", "DOWN", "DRAIN", "POWERED_DOWN", "POWERING_UP", "UNKNOWN")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.frozensets(st.sampled_from(WORDS)))),
    st.lists(
        st.tuples(
            st.integers(1, 12),
            st.sampled_from(list(Market)),
            st.sampled_from(list(InstanceState)),
            st.booleans(),
            st.floats(0, 1e7),
        )
    ),
)
def test_any_pair_of_views_can_be_shown(slurm_nodes: list, bought: list) -> None:
    """Whatever Slurm and the ledger say, the join answers, counts add up, nothing is negative."""
    nodes = {f"pub{n}": SlurmNode(name=f"pub{n}", states=s) for n, s in slurm_nodes}
    machines = [
        machine_with(
            instance=instance(f"i-{k}", f"pub{n}", f"g{k}", s, T0 + at, bought=offer(market=m)),
            pool="general",
            ended=NOW if over else None,
        )
        for k, (n, m, s, over, at) in enumerate(bought)
    ]
    view = status_view(config(Path("/nowhere")), Facts(now=NOW, nodes=nodes, machines=machines))
    assert sum(view.clouds[1].states.values()) == 8
    assert len(view.instances) == view.clouds[1].machines
    assert sum(t.machines for t in view.totals) == len(view.instances)
    assert all(i.age >= 0 and i.cost >= 0 and i.next for i in view.instances)
    msgspec.json.encode(view)


def test_five_thousand_machines_are_joined_quickly(tmp_path: Path) -> None:
    """Not a timing: a quadratic join would not end within the suite's time-out."""
    pools = replace(config(tmp_path).pools[1], nodes="pub[1-5000]")
    big = replace(config(tmp_path), pools=(pools,))
    machines = [
        Machine(instance=instance(f"i-{n}", f"pub{n}", f"g{n}"), pool="general")
        for n in range(1, 5001)
    ]
    nodes = {f"pub{n}": node(f"pub{n}", "IDLE") for n in range(1, 5001)}
    view = status_view(big, Facts(now=NOW, nodes=nodes, machines=machines))
    assert len(view.instances) == 5000
    assert [g.nodes for g in view.nodes] == ["pub[1-5000]"]


def test_what_a_policy_holds_has_no_end_of_its_own(tmp_path: Path) -> None:
    why = "the budget of $5.00 a day is spent"
    rows = [
        Exclusion(
            kind=POLICY,
            scope=f"pub{i}",
            pool="general",
            cause=Quoted(text=why),
            since=T0,
            until=T0 + i,
        )
        for i in (1, 2)
    ]
    (shown,) = status_view(config(tmp_path), Facts(now=NOW, holds=rows)).holds
    assert (shown.nodes, shown.kind, shown.left, shown.reason) == ("pub[1-2]", "policy", 0, why)
    assert node_note("held", node("pub1", "IDLE", "DRAIN"), rows[0], NOW) == why


def test_next_actions_by_policy(tmp_path: Path) -> None:
    made = config(tmp_path)
    cloud = made.cloud("aws")
    machine = Machine(instance=instance("i-1", "pub1"), pool="general")
    launched = machine.instance.launched

    def told(now: float, release: str) -> str:
        policies = CloudPolicies(release=release, billing_increment=3600.0)
        aws = replace(cloud, policies=policies)
        clouds = tuple(aws if c.name == "aws" else c for c in made.clouds)
        outlook = Outlook(replace(made, clouds=clouds), aws, now)
        return outlook.of(machine, node("pub1", "IDLE"), [], None)

    assert told(launched + 600, "delayed(before_end=180)") == "goes in 47m unless used, by policy"
    assert told(launched + 3500, "delayed(before_end=180)") == "goes now unless used, by policy"
    assert told(launched + 600, "idle(660)") == "goes in 1m unless used, by policy"
    assert told(launched, "flagged") == "idle: goes when the growth policy has too many"


def test_budgets_are_told_with_what_is_spent(tmp_path: Path) -> None:
    made = replace(config(tmp_path), policies=SitePolicies(budget=Budget(per_day=5.0)))
    facts = Facts(now=NOW, spent={"": Spent(day=5.5, month=7.0)})
    (shown,) = status_view(made, facts).budgets
    assert (shown.cloud, shown.day, shown.per_day) == ("", 5.5, 5.0)
    assert (shown.month, shown.per_month) == (7.0, None)


def test_budgets_of_accounts_are_told_with_why_they_stop(tmp_path: Path) -> None:
    budgets = {"physics": Budget(per_day=5.0), "chemistry": Budget(per_month=9.0)}
    made = replace(config(tmp_path), policies=SitePolicies(account_budgets=budgets))
    spent = {
        "account:physics": Spent(day=5.5, month=7.0), "account:chemistry": Spent(day=5.5, month=7.0)
    }  # fmt: skip
    physics, chemistry = status_view(made, Facts(now=NOW, payers=spent)).budgets
    assert (physics.account, physics.day, physics.per_day) == ("physics", 5.5, 5.0)
    assert physics.stop is not None
    assert physics.stop.startswith("account physics has spent $5.50 of $5.00 today; new machines")
    assert (chemistry.account, chemistry.per_month, chemistry.stop) == ("chemistry", 9.0, None)


def test_budgets_of_users_are_told_too(tmp_path: Path) -> None:
    policies = SitePolicies(user_budgets={"alice": Budget(per_day=5.0)})
    made = replace(config(tmp_path), policies=policies)
    facts = Facts(now=NOW, payers={"user:alice": Spent(day=5.5, month=7.0)})
    (alice,) = status_view(made, facts).budgets
    assert (alice.account, alice.user, alice.per_day) == ("", "alice", 5.0)
    assert str(alice.stop).startswith("user alice has spent $5.50 of $5.00 today; new machines")


def test_jobs_that_wait_are_told_the_longest_first(tmp_path: Path) -> None:
    pending = frozenset({"PENDING"})
    jobs = [
        SlurmJob(id=n, states=pending, submit=NOW - n, user="ann", reason="Resources", tasks=2)
        for n in range(1, 2 * MAX_WAITING_ROWS)
    ]
    running = SlurmJob(id=9000, states=frozenset({"RUNNING"}), submit=NOW - 9000)
    queue = status_view(config(tmp_path), Facts(now=NOW, nodes={}, jobs=[running, *jobs])).queue
    assert queue is not None
    assert queue.waiting == 2 * len(jobs)
    assert [one.age for one in queue.jobs] == sorted((one.age for one in queue.jobs), reverse=True)
    assert len(queue.jobs) == MAX_WAITING_ROWS
    assert (queue.jobs[0].id, queue.jobs[0].tasks) == (2 * MAX_WAITING_ROWS - 1, 2)


def test_an_operators_pause_is_no_alarm(tmp_path: Path) -> None:
    order = Directive(word=Pause(scope="cloud:aws"), who="root", since=NOW, starts=NOW)
    view = status_view(config(tmp_path), Facts(now=NOW, nodes={}, directives=[order]))
    told = next(one for one in view.attention if "is paused by root" in one.text)
    assert told.level is AttentionLevel.WARN


def test_services_that_are_away_are_told_with_what_to_do(tmp_path: Path) -> None:
    view = status_view(config(tmp_path), Facts(now=NOW, slurm_error="timed out"))
    told = {one.text.split(":")[0]: one.do for one in view.attention}
    assert told["Slurm does not answer"].startswith("systemctl status slurmctld")
    assert told["Daemon"] == "systemctl start slurm-elasticd"


def test_nodes_that_private_data_hides_are_not_missing_ones(tmp_path: Path) -> None:
    one = Machine(instance=instance("i-1", "pub1"), pool="general")
    view = status_view(
        config(tmp_path), Facts(now=NOW, nodes={}, machines=[one], private=("nodes",))
    )
    assert [pool.states for pool in view.pools] == [{}, {}]
    assert [machine.next for machine in view.instances] == [
        "unknown: Slurm does not show its nodes"
    ]
    assert view.instances[0].calm


def test_what_a_sentence_tells_of_a_cloud_is_only_named_below_it(tmp_path: Path) -> None:
    expired = "aws: ExpiredToken: the token is expired"
    facts = Facts(
        now=NOW,
        nodes={"pub1": node("pub1", "IDLE", "POWERED_DOWN", "DRAIN")},
        health=[Health(name="aws", checked=NOW, error=expired)],
        holds=[
            Exclusion(
                kind=CAPACITY,
                scope="pub1",
                pool="general",
                cause=CloudSilent(cloud="aws", error=expired),
            )
        ],
    )
    view = status_view(config(tmp_path), facts)
    assert [reason_or_reference(hold, view.attention) for hold in view.holds] == [
        "cloud aws, see above"
    ]
    assert [hold.reason for hold in view.holds] == [expired], "programs get all"


def test_one_trouble_with_the_ledger_is_one_sentence(tmp_path: Path) -> None:
    trouble = ServiceTrouble(problem="it is damaged", since=NOW, effect="it ends", remedy="nothing")
    facts = Facts(now=NOW, ledger_error="there is no ledger", end_only=trouble)
    told = [one for one in status_view(config(tmp_path), facts).attention if one.cause == LEDGER]
    assert [(one.text, one.do) for one in told] == [(sentence(trouble.finding), "nothing")]


def test_a_node_that_an_operator_holds_is_held_once(tmp_path: Path) -> None:
    paused = Directive(word=Pause(scope=""), who="ann", since=NOW, starts=NOW, number=1)
    words = stop_reason(paused)
    facts = Facts(
        now=NOW,
        nodes={"pub1": node("pub1", "ALLOCATED"), "pub2": node("pub2", "IDLE", "POWERED_DOWN")},
        machines=[Machine(instance=instance("i-1", "pub1"), pool="general")],
        directives=[paused],
        holds=[
            *(
                Exclusion(kind=OPERATOR, scope=name, pool="general", cause=Quoted(text=words))
                for name in ("pub1", "pub2")
            ),
            Exclusion(
                kind=CAPACITY, scope="pub2", pool="general", cause=Quoted(text=f"8 offers: {words}")
            ),
        ],
    )
    (hold,) = status_view(config(tmp_path), facts).holds
    assert (hold.nodes, hold.reason) == ("pub2", words)


def test_a_pool_that_is_out_of_machines_is_told_with_whom_it_keeps_waiting(tmp_path: Path) -> None:
    why = "8 offers: cooling down until 09:05:05 UTC after ICE: none"
    made = config(tmp_path)
    held = {f"pub{n}": node(f"pub{n}", "IDLE", "POWERED_DOWN", "DRAIN") for n in range(1, 9)}
    waits = SlurmJob(id=7, states=frozenset({"PENDING"}), partitions=("burst",))
    facts = Facts(
        now=NOW,
        nodes=held,
        jobs=[waits, replace(waits, id=8, reason="Dependency")],
        obstacles=Obstacles(held={"general": why}),
        holds=[
            Exclusion(kind=CAPACITY, scope=n, pool="general", cause=Quoted(text=why), until=NOW + 9)
            for n in held
        ],
    )
    view = status_view(made, facts)
    assert f"Pool general gets no machine, and 1 job waits for it: {why}" in [
        one.text for one in view.attention
    ]
    assert view.queue is not None
    assert {job.id: job.why for job in view.queue.jobs} == {
        7: f"aws: 8 of its 8 nodes take no jobs: {why}",
        8: "",
    }
    free = held | {"pub1": node("pub1", "IDLE", "POWERED_DOWN")}
    some = status_view(made, replace(facts, nodes=free, holds=facts.holds[1:]))
    assert some.queue is not None
    assert {job.why for job in some.queue.jobs} == {""}, "one may start"


def test_all_jobs_that_wait_for_a_sold_out_pool_count_however_long_the_queue_is(
    tmp_path: Path,
) -> None:
    names = [f"pub{n}" for n in range(1, 9)]
    waits = SlurmJob(id=7, states=frozenset({"PENDING"}), partitions=("burst",), submit=NOW - 60)
    older = replace(waits, partitions=("batch",), reason="Dependency", submit=NOW - 6000)
    facts = Facts(
        now=NOW,
        nodes={name: node(name, "IDLE", "POWERED_DOWN", "DRAIN") for name in names},
        jobs=[
            *(replace(older, id=number) for number in range(1000, 1000 + MAX_WAITING_ROWS)),
            *(replace(waits, id=number) for number in range(5000, 5300)),
        ],
        obstacles=Obstacles(held={"general": "none left"}),
        holds=[
            Exclusion(kind=CAPACITY, scope=name, pool="general", cause=Quoted(text="none left"))
            for name in names
        ],
    )
    told = [notice.text for notice in status_view(config(tmp_path), facts).attention]
    assert "Pool general gets no machine, and 300 jobs wait for it: none left" in told


def test_a_pool_that_does_not_fit_the_jobs_is_not_said_to_keep_them_waiting(
    tmp_path: Path,
) -> None:
    made = config(tmp_path)
    big = replace(made.pools[1], name="big", nodes="big[1-4]", cpus=64)
    names = [f"pub{n}" for n in range(1, 9)]
    large = SlurmJob(
        id=7, states=frozenset({"PENDING"}), partitions=("burst",), cpus=64, node_cpus=64
    )
    facts = Facts(
        now=NOW,
        nodes={name: node(name, "IDLE", "POWERED_DOWN", "DRAIN") for name in names},
        jobs=[large],
        obstacles=Obstacles(bars=(PoolBar(pool="big", reason="pool big is paused by root"),)),
        holds=[
            Exclusion(kind=CAPACITY, scope=name, pool="general", cause=Quoted(text="none left"))
            for name in names
        ],
    )
    view = status_view(replace(made, pools=(*made.pools, big)), facts)
    assert view.queue is not None
    assert view.queue.waits_for_pool == {"big": 1}
    assert not any("gets no machine" in notice.text for notice in view.attention)


def test_a_plain_job_shows_that_its_cloud_is_sold_out_though_its_sites_nodes_are_only_busy(
    tmp_path: Path,
) -> None:
    """Slurm's own reason of such a job is that of the last partition at which it looked."""
    why = "8 offers: cooling down until 09:05:05 UTC after ICE: none"
    held = {f"pub{n}": node(f"pub{n}", "IDLE", "POWERED_DOWN", "DRAIN") for n in range(1, 9)}
    busy = {f"op{n}": node(f"op{n}", "ALLOCATED") for n in (1, 2)}
    plain = SlurmJob(
        id=7, states=frozenset({"PENDING"}), partitions=("batch", "onprem", "burst"),
        reason="Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_pa"
        "rtitions",
    )  # fmt: skip
    facts = Facts(
        now=NOW, nodes=held | busy, jobs=[plain], obstacles=Obstacles(held={"general": why}),
        holds=[
            Exclusion(kind=CAPACITY, scope=n, pool="general", cause=Quoted(text=why), until=NOW + 9)
            for n in held
        ],
    )  # fmt: skip
    view = status_view(config(tmp_path), facts)
    assert view.queue is not None
    free = "a node of the site or a running machine starts it as soon as it is free"
    assert [job.why for job in view.queue.jobs] == [
        f"onprem: nodes in use; aws: 8 of its 8 nodes take no jobs: {why}; {free}"
    ]
    warned = [one.text for one in view.attention if one.level is AttentionLevel.WARN]
    assert f"Pool general gets no machine, and 1 job waits for it: {why}" in warned


def test_jobs_that_no_machine_helped_are_in_status(tmp_path: Path) -> None:
    rows = (UnhelpedJob(job=17, asks="", since=NOW - 60, nodes=("pub1",)),)
    view = status_view(config(tmp_path), Facts(now=NOW, obstacles=Obstacles(unhelped=rows)))
    (told,) = (one for one in view.attention if one.cause == UNHELPED)
    assert told.text.startswith("Job 17: machines came up and no job used them")
    assert told.do == "slurm-elastic explain 17; then slurm-elastic clear job:17"
    console = Console(width=200, record=True, file=io.StringIO())
    render(view, console)
    assert "clear job:17" in console.export_text()


def test_no_private_noun_stands_alone_on_the_screen(tmp_path: Path) -> None:
    facts = Facts(
        now=NOW, nodes={"pub1": node("pub1", "IDLE", "CLOUD")}, heartbeat=(NOW - 2, 1), pending=2,
        process_found=True,
        health=[Health(name="plans of Slurm", checked=NOW, error="away", code="slurm")],
    )  # fmt: skip
    console = Console(width=160, file=io.StringIO())
    render(status_view(config(tmp_path), facts), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "2 requests of Slurm wait" in text
    assert "last error of Slurm's reservations and drains: away" in text
    assert "(0s ago, asked again within 1m)" in text
    assert "slurm-elasticd knows no machine for it" in text
    unread = status_view(config(tmp_path), Facts(now=NOW, ledger_error="there is none"))
    (text,) = (one.text for one in unread.attention if one.cause == LEDGER)
    assert "(the ledger)" in text
    assert not any(word in text for word in ("spool", "plans of Slurm"))


def test_records_of_saves_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    facts = Facts(now=NOW, nodes={}, checkpoints_error="the disk of /x is full (disk I/O error)")
    view = status_view(config(tmp_path), facts)
    (told,) = (one for one in view.attention if one.text.startswith("Checkpoints: "))
    assert told.text.endswith("cannot be read: the disk of /x is full (disk I/O error)")
    assert (told.level, told.do) == (AttentionLevel.BAD, "slurm-elastic doctor --quick")
    assert view.checkpoints_error == facts.checkpoints_error
