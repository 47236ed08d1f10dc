"""Steps whose order matters are in one function: what comes between two of them does no harm, and
nobody can swap them unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_cases import instance, offer, pool, spec
from machine_cases import changed
from msgspec.structs import replace

from slurm_elastic.config import PoolSettings
from slurm_elastic.config.sections.policies import PoolPolicies
from slurm_elastic.controller import giving_back, holds
from slurm_elastic.controller.snapshot import CloudReader
from slurm_elastic.features.money import admission
from slurm_elastic.features.orders.departures import Departures
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.directive import Departure, Directive
from slurm_elastic.model.exclusion import CAPACITY, POLICY
from slurm_elastic.model.memory import Machine
from slurm_elastic.slurm.client.commands import node_updates
from tests.controller.world import World, make_config


def changed_after_first_read(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> None:
    """The ledger changes once, after whatever is read of it first."""
    ledger, done = world.ledger, list[bool]()

    def then(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: Any, **kwargs: Any) -> Any:
            found = read(*args, **kwargs)
            if not done:
                done.append(True)
                change()
            return found

        return reading

    for owner, name in (
        (ledger, "state"), (ledger.machines, "live"), (ledger.machines, "clouds_read"),
        (ledger.launches, "open"), (ledger.stops, "machines"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, then(getattr(owner, name)))


@pytest.fixture
def launching(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A launch is open, and answered after the first read."""
    of = pool(cloud="pub")
    world.ledger.launches.record_intent(spec("g1", ("pub1",), of, offer("pub")), "r1", world.now)
    one = replace(instance("i-1", "pub1", generation="g1"), cloud="pub")
    changed_after_first_read(
        world, monkeypatch, lambda: world.ledger.machines.record_launch("g1", [one], world.now)
    )
    return world


def test_a_node_whose_launch_is_answered_meanwhile_is_served(launching: World) -> None:
    assert launching.site.served_nodes() == {"pub1"}


def test_a_machine_whose_launch_is_answered_meanwhile_is_paid(launching: World) -> None:
    assert launching.site.usage().nodes[""] == 1


def test_a_job_whose_launch_is_answered_meanwhile_has_begun(launching: World) -> None:
    assert admission._find_booting_jobs(launching.site, {7: ["pub1", "pub2"], 8: ["pub3"]}) == {7}


def test_a_machine_that_is_started_meanwhile_has_not_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first read it is stopped, at the second one it runs."""
    one = Machine(instance=replace(instance("i-1", "pub1"), cloud="pub"), pool="burst", last_seen=0)
    stopped, now = changed(one, stopped=1.0), [0]
    word = Departure(verb="drain", about="pub1", nodes=("pub1",), scope="")
    order = Directive(
        number=1, word=word, who="alice", since=world.now, starts=world.now + 9, until=None
    )
    state = world.ledger.state

    def read(of: str) -> Any:
        now[0] += 1
        at_first = now[0] == 1
        if of == "state":
            rows = ((), (stopped,)) if at_first else ((one,), ())
            return replace(state(), machines=rows[0], stopped=rows[1])
        return (one,) * (of == "live" and not at_first) + (stopped,) * (of == "stops" and at_first)

    monkeypatch.setattr(world.ledger, "state", lambda: read("state"))
    monkeypatch.setattr(world.ledger.machines, "live", lambda: read("live"))
    monkeypatch.setattr(world.ledger.stops, "machines", lambda: read("stops"))
    Departures(world.site)._advance(order, word)
    assert "departed" not in world.kinds("pub1")


def test_a_list_is_of_the_time_before_the_cloud_was_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, taken = world.now, list[float]()
    steps: list[str] = []

    def instances() -> tuple[Instance, ...]:
        steps.append("list")
        world.now += 30.0  # a slow cloud, in which others are launched meanwhile
        return ()

    def observe(_: str, __: object, at: float, ___: object, *, took_s: float) -> None:
        assert took_s >= 0.0
        steps.append("ledger")
        taken.append(at)

    def nodes() -> Any:
        steps.append("nodes")
        return {}

    monkeypatch.setattr(world.clouds["pub"], "instances", instances)
    monkeypatch.setattr(world.ledger.machines, "observe", observe)
    CloudReader(world.site, "pub").read(nodes)
    assert (taken, steps) == ([begun], ["nodes", "list", "ledger"])


def test_a_released_node_has_its_row_until_slurm_has_it_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """And what a policy keeps back is held for that before the other hold ends."""
    plain: tuple[PoolSettings, ...] = make_config(tmp_path).pools
    pools = (plain[0], replace(plain[1], policies=PoolPolicies(growth="bursts(waste=120)")))
    world = World(tmp_path, pools=pools)
    site, rows = world.site, list[set[tuple[str, str]]]()
    for node in ("pub1", "op1"):
        world.slurm.set_node(node, "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN")
        holds.hold(site, site.pool_of[node], [node], Quoted(text="none left"))
        world.slurm.set_node(
            node,
            "IDLE",
            "CLOUD",
            "POWERED_DOWN",
            "DRAIN",
            reason=holds.hold_reason(Quoted(text="none left")),
        )
    give_back = node_updates.return_to_service

    def held() -> set[tuple[str, str]]:
        return {(row.kind, row.scope) for row in world.ledger.exclusions.holds()}

    def given_back(*args: Any) -> None:
        rows.append(held())
        give_back(*args)

    monkeypatch.setattr(node_updates, "return_to_service", given_back)
    holds.release(site, ["pub1", "op1"], Quoted(text="there is room"))
    assert rows == [{(CAPACITY, "pub1"), (CAPACITY, "op1"), (POLICY, "pub1")}]
    assert held() == {(POLICY, "pub1")}
    world.close()


def test_a_job_is_expected_before_its_requeue_is_allowed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slurm.set_node("pub1", "ALLOCATED", "POWERING_UP", "CLOUD")
    world.slurm.set_job(7, "CONFIGURING", nodes=("pub1",), requeue=False)
    expected: list[bool] = []
    allow = world.slurm.set_requeue

    def allowed(job: int, *, requeue: bool) -> None:
        expected.append(bool(world.site.requeues))
        allow(job, requeue=requeue)

    monkeypatch.setattr(world.slurm, "set_requeue", allowed)
    giving_back.power_down_and_requeue(
        world.site, ["pub1"], world.slurm.nodes(["pub1"]), Quoted(text="x"), "r1"
    )
    assert expected == [True]
