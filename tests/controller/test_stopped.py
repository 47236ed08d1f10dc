"""Pools that keep stopped machines: idle machines are stopped, and started again for their
nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.hostlist import compress
from slurm_elastic.cli.orders.clear_gone import gone
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.sections.joining import Join, Ssh
from slurm_elastic.config.sections.policies import PoolPolicies
from slurm_elastic.config.sections.timings import Timings
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.launching import provision
from slurm_elastic.controller.launching.awaited_nodes import AwaitedNodes
from slurm_elastic.controller.snapshot import build_terms, take_snapshot
from slurm_elastic.features.money.books import charges, read_books, report
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.power import starting, stopping
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.machine_ends import JobNotWhole
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Limits,
    Market,
    NodeRequest,
    Offer,
    Pool,
)
from slurm_elastic.model.directive import Departure, Directive
from slurm_elastic.model.memory import generation_order
from slurm_elastic.policies.actions import EndStopped, RunsAgain, StartAgain
from slurm_elastic.policies.launch.gang import Gang
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Condition, Ledger
from slurm_elastic.watch.door import metrics
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view import status_view
from tests.controller.world import ONP, PUB, Killed, World, make_config

DISK = 0.01


def pools(**changes: Any) -> tuple[PoolSettings, ...]:
    own: dict[str, Any] = {"max_stopped": 1, "stopped_price": DISK, "markets": (Market.ON_DEMAND,)}
    return (
        PoolSettings(name="rack", cloud="onp", nodes=compress(ONP), cpus=2, memory=4096),
        PoolSettings(
            name="burst", cloud="pub", nodes=compress(PUB), cpus=2, memory=4096, **own | changes
        ),
    )


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def build(**changes: Any) -> World:
        made.append(World(tmp_path, pools=pools(**changes)))
        return made[-1]

    yield build
    for world in made:
        world.close()


@pytest.fixture
def world(open_world: Callable[..., World]) -> World:
    return open_world()


def run(world: World, job: int, *nodes: str) -> None:
    for number, node in enumerate(nodes):
        world.slurm.submit(10 * job + number, (node,))
    world.advance(40)
    assert all(phase(world.slurm.node(n)) is Phase.UP for n in nodes)


def idle(world: World, seconds: float = 400) -> None:
    for job in world.slurm.queue():
        world.slurm.finish(job)
    world.advance(seconds)


def eventually_in(world: World, holds: Callable[[], bool], seconds: float = 900) -> bool:
    """Let time pass until ``holds``; False if it never does."""
    for _ in range(int(seconds / 5)):
        if holds():
            return True
        world.advance(5)
    return False


def stopped(world: World) -> dict[str, str]:
    """By machine, its node."""
    return {m.instance.id: m.instance.node for m in world.ledger.stops.machines()}


def states(world: World) -> dict[str, str]:
    return {i.id: str(i.state) for i in world.alive()}


def test_an_idle_machine_is_stopped_and_started_for_the_next_job(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(world, 1, "pub1")
    (machine,) = world.machines_of("pub1")
    idle(world)
    assert states(world) == {machine: "stopped"}
    assert stopped(world) == {machine: "pub1"}
    assert world.ledger.machines.live() == ()
    assert world.site.usage().nodes.get("", 0) == 0
    assert world.site.usage().dollars_per_hour[""] == DISK
    run(world, 2, "pub1")
    assert states(world) == {machine: "running"}
    (row,) = world.ledger.machines.live()
    assert (row.instance.id, row.jobs, row.instance.price) == (machine, (20,), 0.10)
    assert stopped(world) == {}
    assert [k for k in world.kinds("pub1") if k in ("stopped", "started", "launched")] == [
        "launched", "stopped", "started",
    ]  # fmt: skip
    assert f"nodes=pub1 reason={stopping._IDLE}" in caplog.text
    assert f"node=pub1 id={machine}" in caplog.text
    (told,) = (d for d in world.ledger.decisions.about("job:20") if d.kind == "started")
    assert str(told.reason) == f"{machine}, which was stopped: small in zone-1, $0.10/h"


def test_without_the_setting_it_ends(open_world: Callable[..., World]) -> None:
    world = open_world(max_stopped=0)
    run(world, 1, "pub1")
    idle(world)
    assert world.alive() == []
    assert not {"stop", "recipe"} & {call.name for call in world.clouds["pub"].calls}


def test_what_a_stopped_machine_costs_is_its_disk(world: World) -> None:
    begin = world.now
    run(world, 1, "pub1")
    idle(world, 4000)
    run(world, 2, "pub1")
    idle(world)
    books = read_books(world.config, world.ledger, begin, None, world.now)
    parts = {c.machine.instance.id.partition("@")[2]: c for c in charges(books)}
    assert sorted(parts) == ["", "1", "2", "3"]
    assert [p.machine.instance.price for p in parts.values()].count(DISK) == 2
    costs = report(books, By.JOB)
    assert not costs.problems
    paid = next(line.micro for line in costs.lines if line.key == "stopped")
    hours = sum(
        ((m.ended_at or world.now) - m.instance.launched) / 3600 for m in books.machines if m.is_off
    )
    assert paid == pytest.approx(hours * DISK * 1e6, rel=1e-3)
    assert world.ledger.books.dollars("pub", begin, world.now) * 1e6 == pytest.approx(
        costs.micro, rel=1e-3
    )


def test_so_many_and_no_more_are_kept(world: World) -> None:
    run(world, 1, "pub1", "pub2")
    idle(world)
    assert len(stopped(world)) == 1
    assert list(states(world).values()) == ["stopped"]


def test_spot_machines_end(open_world: Callable[..., World]) -> None:
    world = open_world(markets=(Market.SPOT, Market.ON_DEMAND))
    run(world, 1, "pub1")
    idle(world)
    assert world.alive() == []


@pytest.mark.parametrize(
    ("states", "kept"), [({"IDLE"}, 1), ({"IDLE", "DRAIN"}, 0), ({"DOWN"}, 0), (None, 0)]
)
def test_what_was_taken_out_of_service_is_not_kept(
    world: World, states: set[str] | None, kept: int
) -> None:
    run(world, 1, "pub1")
    node = world.slurm.node("pub1")
    view = {"pub1": replace(node, states=frozenset({"CLOUD", "POWERING_DOWN", *(states or ())}))}
    machines = world.ledger.machines.live()
    found = stopping.choose(world.site, "pub", machines, view if states else {})
    assert found == list(machines[:kept])


def test_a_refused_start_gives_the_node_a_fresh_machine(world: World) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].fail_next(CapacityError, call="start")
    run(world, 2, "pub1")
    (new,) = world.machines_of("pub1")
    assert new != old
    assert stopped(world) == {}
    assert "start-refused" in world.kinds("pub1")
    rows = world.ledger.machines.live(ended_since=0, stopped=True)
    never = [m for m in rows if m.instance.id == old]
    assert [m.instance.price for m in never] == [DISK]


@pytest.mark.parametrize("error", [AuthError, DeniedError])
def test_a_denied_start_gives_the_node_a_fresh_machine_and_ends_none(
    world: World, error: type[AuthError]
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].fail_next(error, call="start")
    run(world, 2, "pub1")
    states = {i.id: i.state for i in world.alive()}
    assert states.pop(old) is InstanceState.STOPPED
    assert list(states.values()) == [InstanceState.RUNNING]
    assert [m.instance.price for m in world.ledger.stops.machines()] == [DISK]
    assert "start-refused" in world.kinds("pub1")
    world.advance(60)
    assert {i.id for i in world.alive()} == {old, *states}


@pytest.mark.parametrize("error", [QuotaError, InstanceNotFound])
def test_whatever_the_cloud_refuses_it_for_the_node_gets_a_fresh_machine(
    world: World, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].fail_next(error, call="start")
    run(world, 2, "pub1")
    (new,) = world.machines_of("pub1")
    assert new != old
    assert f"start refused node=pub1 id={old} error=" in caplog.text
    rows = world.ledger.machines.live(ended_since=0, stopped=True)
    never = [m for m in rows if m.instance.id == old]
    assert [(m.instance.price, m.worst_price) for m in never] == [(DISK, DISK)], "it never ran"


def offered(world: World) -> tuple[Offer, ...]:
    return tuple(world.clouds["pub"].offers(world.site.pools["burst"]))


def start(world: World, *nodes: str, caps: starting.Caps = (), **changes: Any) -> set[str]:
    """The nodes that need no other machine."""
    pool = world.site.pools["burst"]
    request = NodeRequest(id="r-1", pool=pool, nodes=nodes, jobs=(7,))
    given = {"todo": [Gang(nodes=nodes)], "offers": offered(world)} | changes
    awaited = AwaitedNodes(world.site, "pub", nodes, world.now)
    return starting.start_stopped(world.site, request, caps=caps, awaited=awaited, **given)


def test_only_what_is_offered_for_the_nodes_that_are_asked_for_is_started(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    assert start(world, "pub2") == set()
    assert start(world, "pub1", offers=()) == set()
    assert len(stopped(world)) == 1
    assert start(world, "pub1") == {"pub1"}
    assert stopped(world) == {}


def test_without_offers_of_spot_a_stopped_machine_serves_all_the_same(
    open_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while EC2 tells no spot prices."""
    world = open_world(markets=(Market.SPOT, Market.ON_DEMAND))
    cloud = world.clouds["pub"]
    real = cloud.offers

    def on_demand(pool: Pool) -> list[Offer]:
        return [offer for offer in real(pool) if offer.market is Market.ON_DEMAND]

    monkeypatch.setattr(cloud, "offers", on_demand)
    run(world, 1, "pub1")
    idle(world)
    (machine,) = stopped(world)
    run(world, 2, "pub1")
    assert world.machines_of("pub1") == [machine]


def test_no_more_start_than_may_boot_the_cheapest_first(open_world: Callable[..., World]) -> None:
    world = open_world(max_stopped=3)
    run(world, 1, "pub1", "pub2")
    idle(world)
    assert sorted(stopped(world).values()) == ["pub1", "pub2"]
    assert start(world, "pub1", "pub2", caps=(("pool:burst", 1),)) == {"pub1"}
    assert list(stopped(world).values()) == ["pub2"]
    (row,) = world.ledger.machines.live()
    assert world.ledger.launches.get(row.instance.generation) is not None


def test_none_starts_for_a_job_that_cannot_get_all_its_nodes(
    open_world: Callable[..., World],
) -> None:
    """The limit of the cloud has room for two machines."""
    world = open_world(max_stopped=3)
    run(world, 1, "pub1", "pub2")
    idle(world)
    kept = stopped(world)
    assert sorted(kept.values()) == ["pub1", "pub2"]
    world.slurm.submit(60, PUB, 3, node_count=3)
    world.advance(60)
    assert "PENDING" in world.slurm.queue()[60].states
    assert stopped(world) == kept
    assert {i.id for i in world.alive()} == set(kept)
    assert "started" not in world.kinds("pub1")


def let_spend(world: World, dollars_per_hour: float) -> None:
    clouds = tuple(
        replace(c, limits=replace(c.limits, dollars_per_hour=dollars_per_hour))
        for c in world.config.clouds
    )
    world.config = replace(world.config, clouds=clouds)
    world.restart()


def is_powered_down(world: World, *nodes: str) -> bool:
    return all(phase(world.slurm.node(n)) is Phase.POWERED_DOWN for n in nodes)


def test_machines_stop_again_if_their_job_is_refused(open_world: Callable[..., World]) -> None:
    """The cloud has no machine for the third node."""
    world = open_world(max_stopped=3)
    let_spend(world, 1.0)
    run(world, 1, "pub1", "pub2")
    idle(world)
    kept = stopped(world)
    world.clouds["pub"].fail_next(CapacityError, times=20, call="launch")
    world.slurm.submit(60, PUB, 3, node_count=3)
    world.advance(120)
    assert "started" in world.kinds("pub1")
    assert "PENDING" in world.slurm.queue()[60].states
    assert stopped(world) == kept
    assert states(world) == dict.fromkeys(kept, "stopped")
    assert is_powered_down(world, "pub1", "pub2")
    assert "terminated" not in world.kinds("pub1")
    world.slurm.remove_job(60)
    world.clouds["pub"].heal()
    world.advance(600)
    run(world, 7, "pub1", "pub2")
    assert states(world) == dict.fromkeys(kept, "running"), "they serve the next job"


@pytest.mark.parametrize("fault", ["no answer", "stop.after-intent", "stop.after-call"])
def test_a_machine_of_a_refused_job_stops_if_its_stop_had_no_answer(
    open_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Slurm's own request to end the machine comes while its stop is decided and not confirmed."""
    world = open_world(max_stopped=3)
    let_spend(world, 1.0)
    run(world, 1, "pub1", "pub2")
    idle(world)
    kept, cloud = stopped(world), world.clouds["pub"]
    struck: list[str] = []

    def reach(reached: str) -> None:
        if reached == fault and not struck:
            struck.append(fault)
            raise Killed

    if fault == "no answer":
        cloud.fail_next(TransientError, times=1, call="stop")
    else:
        monkeypatch.setattr(stopping, "reach", reach)
    cloud.fail_next(CapacityError, times=20, call="launch")
    world.slurm.submit(60, PUB, 3, node_count=3)
    world.advance(120)
    if fault != "no answer":
        assert struck == [fault]
        assert world.daemon is None
        world.start()
    world.advance(200)
    assert "started" in world.kinds("pub1")
    assert "terminated" not in world.kinds("pub1")
    assert stopped(world) == kept
    assert states(world) == dict.fromkeys(kept, "stopped")
    first, *later = (d for d in world.ledger.decisions.about("pub1") if d.kind == "stopped")
    assert first.cause == stopping._IDLE
    assert {d.cause for d in later} == {JobNotWhole()}


def test_a_machine_that_the_cloud_does_not_stop_again_ends(
    open_world: Callable[..., World],
) -> None:
    """EC2 stops no machine that is still pending."""
    world = open_world(max_stopped=3)
    let_spend(world, 1.0)
    run(world, 1, "pub1", "pub2")
    idle(world)
    world.clouds["pub"].fail_next(CapacityError, times=20, call="launch")
    world.clouds["pub"].fail_next(QuotaError, call="stop", times=20)
    world.slurm.submit(60, PUB, 3, node_count=3)
    world.advance(120)
    assert "started" in world.kinds("pub1")
    assert world.alive() == []
    assert "stop-refused" in world.kinds("pub1")


def test_a_machine_that_has_never_come_up_is_not_stopped_with_its_job(
    open_world: Callable[..., World],
) -> None:
    world = open_world(max_stopped=3)
    run(world, 1, "pub1")
    idle(world)
    kept = stopped(world)
    assert start(world, "pub1") == {"pub1"}
    (row,) = world.ledger.machines.live()
    fresh = replace(row, first_launched_at=None)
    view = {"pub1": replace(world.slurm.node("pub1"), states=frozenset({"CLOUD", "POWERING_UP"}))}
    assert stopping.spare_started(world.site, "pub", [fresh], view, "r-1") == []
    assert stopping.spare_started(world.site, "pub", [row], view, "r-1") == [row]
    assert stopped(world) == kept


def test_all_start_for_a_job_whose_other_nodes_can_be_bought(
    open_world: Callable[..., World],
) -> None:
    world = open_world(max_stopped=3)
    run(world, 1, "pub1")
    idle(world)
    (machine,) = stopped(world)
    world.slurm.submit(60, PUB[:2], 2, node_count=2)
    world.advance(60)
    assert "RUNNING" in world.slurm.queue()[60].states
    assert world.machines_of("pub1") == [machine]
    assert len(world.alive()) == 2


def test_a_start_replaces_the_price_of_the_disk(open_world: Callable[..., World]) -> None:
    """Two disks of $0.09/h leave no room for a machine of $0.10/h within $0.21/h."""
    world = open_world(max_stopped=3)
    clouds = tuple(
        replace(c, limits=replace(c.limits, dollars_per_hour=0.21)) if c.name == "pub" else c
        for c in world.config.clouds
    )
    world.config = replace(
        world.config, clouds=clouds, pools=pools(max_stopped=3, stopped_price=0.09)
    )
    world.restart()
    run(world, 1, "pub1", "pub2")
    idle(world)
    assert start(world, "pub1", "pub2") == {"pub1", "pub2"}


def test_a_pool_that_serves_jobs_in_part_starts_those_that_fit(
    open_world: Callable[..., World],
) -> None:
    world = open_world(max_stopped=3, partial_jobs=True)
    run(world, 1, "pub1", "pub2")
    idle(world)
    kept = stopped(world)
    world.slurm.submit(60, PUB, 3, node_count=3)
    world.advance(20)
    assert {m.instance.id for m in world.ledger.machines.live()} >= set(kept)


def test_a_start_comes_after_the_requests_that_wait_though_the_clock_is_set_back(
    world: World,
) -> None:
    """One to end the node's machine, from before, must not end it."""
    run(world, 1, "pub1")
    idle(world)
    later = world.now + 1000
    world.program("suspend", ["pub1"], {}, received=later)
    start(world, "pub1")
    (row,) = world.ledger.machines.live()
    assert generation_order(row.instance.generation) > later


def test_where_the_cloud_tells_the_address_it_is_slurms_before_the_node_is_up(
    open_world: Callable[..., World],
) -> None:
    world = open_world()
    clouds = tuple(replace(c, node_address="provider") for c in world.config.clouds)
    world.config = replace(world.config, clouds=clouds)
    world.restart()
    run(world, 1, "pub1")
    (one,) = world.alive()
    idle(world)
    start(world, "pub1")
    assert world.slurm.node("pub1").address == one.address


def test_a_start_that_fails_in_an_unknown_way_is_in_doubt(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].fail_next(RuntimeError, call="start")  # type: ignore[arg-type]
    run(world, 2, "pub1")
    assert f"start failed in an unknown way node=pub1 id={old}" in caplog.text
    assert states(world) == {old: "running"}
    assert [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "started"][
        -1
    ] == ("it was to be started and is still stopped")


def test_a_start_is_repeated_for_half_of_the_boot_time_of_its_own_cloud(tmp_path: Path) -> None:
    onp, pub = make_config(tmp_path).clouds
    clouds = (replace(onp, resume_timeout=20.0), replace(pub, resume_timeout=600.0))
    world = World(tmp_path, clouds=clouds, pools=pools())
    run(world, 1, "pub1")
    idle(world)
    (machine,) = world.ledger.stops.machines()
    world.clouds["pub"].fail_next(TransientError, 6, "start")
    assert starting._call(world.site, machine.instance).error is None
    world.close()


def test_of_a_cloud_that_starts_no_machines_none_is_started(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    (machine,) = world.ledger.stops.machines()
    site = dataclasses.replace(world.site, providers={"pub": object()})  # type: ignore[dict-item]
    answer = starting._call(site, machine.instance)
    assert answer.error == "its cloud starts no stopped machines"


def begun(world: World) -> str:
    """A machine whose start was decided, and the call was lost; its id."""
    run(world, 1, "pub1")
    idle(world)
    world.clouds["pub"].fail_next(RuntimeError, call="start")  # type: ignore[arg-type]
    assert start(world, "pub1") == {"pub1"}
    (row,) = world.ledger.machines.live()
    return row.instance.id


def snapshot_of(
    world: World, cloud: str = "pub", listed: Sequence[Instance] = ()
) -> ClusterSnapshot:
    return take_snapshot(
        world.site, build_terms(world.site, cloud), world.slurm.nodes(), tuple(listed)
    )


def again(world: World, machine: str, cloud: str = "pub", **site: Any) -> None:
    todo = [StartAgain(machine=machine, cause=Quoted(text="still stopped"))]
    starting.start_again(dataclasses.replace(world.site, **site), snapshot_of(world, cloud), todo)


@pytest.mark.parametrize("error", [CapacityError, QuotaError])
@pytest.mark.parametrize(("pool", "price"), [(True, DISK), (False, 0.0)])
def test_what_cannot_be_started_then_either_ends_and_was_paid_as_stopped(
    world: World, error: type[CapacityError], *, pool: bool, price: float
) -> None:
    """For nothing, where no pool has its node any more."""
    old = begun(world)
    world.clouds["pub"].fail_next(error, call="start")
    again(world, old, **({} if pool else {"pool_of": {}}))
    assert world.alive() == []
    told = [d for d in world.ledger.decisions.about("pub1") if d.kind == "start-refused"][-1]
    assert str(told.reason).startswith("still stopped: ")
    assert "as it was asked to" in str(told.reason)
    rows = world.ledger.machines.live(ended_since=0, stopped=True)
    assert [m.instance.price for m in rows if m.instance.id == old] == [price]


def test_what_is_in_doubt_once_more_is_told_and_stays(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    old = begun(world)
    world.clouds["pub"].fail_next(AuthError, call="start")
    again(world, old)
    assert states(world) == {old: "stopped"}
    told = [d for d in world.ledger.decisions.about("pub1") if d.kind == "start-refused"][-1]
    assert str(told.reason) == "still stopped: in doubt"
    assert f"start in doubt node=pub1 id={old} error=" in caplog.text


def test_only_the_machine_that_is_meant_is_started_again(world: World) -> None:
    old = begun(world)
    again(world, "another")
    again(world, old, cloud="onp")
    world.ledger.machines.record_ending("pub", [old], Quoted(text="idle"), world.now)
    again(world, old)
    assert states(world) == {old: "stopped"}


def test_while_nothing_can_be_written_down_none_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = begun(world)
    monkeypatch.setattr(Ledger, "condition", Condition(end_only="the disk is full"))
    again(world, old)
    assert states(world) == {old: "stopped"}
    monkeypatch.undo()
    again(world, old)
    assert states(world) == {old: "running"}


def test_one_that_somebody_started_for_a_node_that_is_up_is_paid_at_work(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    (old,) = stopped(world)
    world.clouds["pub"].start(old)
    for machine in ("another", old):
        todo = [RunsAgain(machine=machine, cause=Quoted(text="somebody has started it"))]
        listed = world.clouds["pub"].instances()
        starting.runs_again(world.site, snapshot_of(world, listed=listed), todo)
        assert (stopped(world) == {}) is (machine == old)
    (row,) = world.ledger.machines.live()
    assert (row.instance.price, row.registered_at) == (0.10, world.now)
    told = [d for d in world.ledger.decisions.about("pub1") if d.kind == "runs-again"]
    assert [str(d.reason) for d in told] == ["somebody has started it"]


@pytest.mark.parametrize("hidden", [1, 2])
def test_a_stopped_machine_that_lists_lacked_for_long_is_kept_and_paid_once_they_have_it(
    world: World, hidden: int
) -> None:
    """Also one that was to be stopped, and whose stop had no answer."""
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    if hidden == 2:
        world.clouds["pub"].lose_answer_next(10**6)
    idle(world, 330)
    world.ledger.machines.record_end("pub", [old], Quoted(text="not listed"), world.now)
    assert (stopped(world), world.machines_of("pub1")) == ({}, [old])
    world.clouds["pub"].heal()
    world.advance(60)
    assert stopped(world) == {old: "pub1"}
    assert states(world) == {old: "stopped"}
    lives = world.ledger.machines.live(ended_since=0, stopped=True)
    parts = sorted(
        (m for m in lives if m.instance.node == "pub1"), key=lambda m: m.instance.launched
    )
    assert [m.ended_at for m in parts] == [*(m.instance.launched for m in parts[1:]), None]


def test_stopped_machines_end_each_for_its_own_reason(open_world: Callable[..., World]) -> None:
    world = open_world(max_stopped=3)
    run(world, 1, "pub1", "pub2")
    idle(world)
    todo = [
        EndStopped(machine=i, cause=Quoted(text=f"no {node}")) for i, node in stopped(world).items()
    ]
    starting.end_stopped(world.site, snapshot_of(world, "onp"), todo)
    assert len(stopped(world)) == 2, "another cloud's"
    assert "terminated" not in world.kinds("pub1")
    todo.append(EndStopped(machine="another", cause=Quoted(text="no pub1")))
    starting.end_stopped(world.site, snapshot_of(world), todo)
    assert (world.alive(), stopped(world)) == ([], {})
    for node in ("pub1", "pub2"):
        (told,) = (d for d in world.ledger.decisions.about(node) if d.kind == "terminated")
        assert str(told.reason) == f"no {node}"


def lose_next_start(cloud: Any, after: Callable[[str], object]) -> None:
    """The cloud starts a machine, nobody hears of it, and then something happens to it."""
    real = cloud.start

    def start(instance: str) -> None:
        cloud.start = real
        try:
            real(instance)
        finally:
            after(instance)

    cloud.start = start
    cloud.lose_answer_next(1)


@pytest.mark.parametrize("other", ["aa", "zz"], ids=["its start first", "the purchases first"])
def test_a_stopped_machine_takes_the_room_that_its_job_lacks_in_two_pools(
    tmp_path: Path, other: str
) -> None:
    node = f"{other[0]}1"
    own: dict[str, Any] = {
        "cloud": "pub",
        "cpus": 2,
        "memory": 4096,
        "markets": (Market.ON_DEMAND,),
    }
    keeps = PoolSettings(name=other, nodes=node, max_stopped=1, stopped_price=DISK, **own)
    pools = (PoolSettings(name="mm", nodes="m[1-3]", **own), keeps)
    onp, pub = make_config(tmp_path).clouds
    clouds = onp, replace(pub, limits=Limits(dollars_per_hour=1))
    limits = Limits(nodes=3)
    made = World(tmp_path, clouds=clouds, pools=pools, limits=limits)
    with contextlib.closing(made) as world:
        run(world, 1, node)
        idle(world)
        assert list(stopped(world).values()) == [node]
        world.slurm.submit(2, ("m3",))
        world.advance(60)
        before = len(world.accounts["pub"].machines)
        world.slurm.submit(3, ("m1", "m2", node), 3)
        world.advance(900)
        assert len(world.accounts["pub"].machines) == before, "nothing is bought in vain"
        assert "started" not in world.kinds(node)
        assert list(stopped(world).values()) == [node]
        world.slurm.finish(2)
        assert eventually_in(world, lambda: "RUNNING" in world.slurm.queue()[3].states, 1800)
        assert not stopped(world)


def test_where_a_stopped_machine_serves_no_offer_is_ranked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world, 1, "pub1")
    idle(world)
    ranked: list[object] = []
    monkeypatch.setattr(provision, "next_launch", lambda *of, **_: ranked.append(of))
    run(world, 2, "pub1")
    assert ranked == []


def test_a_start_whose_answer_is_lost_is_no_second_machine(world: World) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].lose_answer_next(1)
    run(world, 2, "pub1")
    assert states(world) == {old: "running"}


def test_a_refusal_after_a_lost_answer_ends_no_machine_that_may_run(world: World) -> None:
    """The clouds' words about our credentials say nothing of the call before."""
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    cloud = world.clouds["pub"]
    lose_next_start(cloud, lambda _: cloud.fail_next(AuthError, call="start"))
    run(world, 2, "pub1")
    assert states(world) == {old: "running"}
    assert "start-refused" not in world.kinds("pub1")


def test_one_that_ran_and_died_before_its_start_is_answered_is_paid_as_one_that_ran(
    world: World,
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    cloud = world.clouds["pub"]
    lose_next_start(cloud, cloud.account.machines.pop)
    world.slurm.submit(2, ("pub1",))
    world.advance(100)
    assert [one.node for one in world.alive()] == ["pub1"]
    assert phase(world.slurm.node("pub1")) is Phase.UP
    rows = world.ledger.machines.live(ended_since=0, stopped=True)
    last = [m for m in rows if m.instance.id == old]
    assert [m.instance.price for m in last] == [world.alive()[0].price]


def test_a_start_in_doubt_is_repeated_until_the_machine_runs(world: World) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].fail_next(TransientError, 40, call="start")
    world.slurm.submit(2, ("pub1",))
    world.advance(130)
    assert states(world) == {old: "stopped"}
    world.clouds["pub"].heal()
    world.advance(60)
    assert states(world) == {old: "running"}
    assert phase(world.slurm.node("pub1")) is Phase.UP


@pytest.mark.parametrize(
    ("error", "told"), [(TransientError, "stop fails"), (RuntimeError, "stop fails in an unknown")]
)
def test_a_stop_that_fails_for_a_moment_is_repeated(
    world: World, caplog: pytest.LogCaptureFixture, error: Any, told: str
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    world.clouds["pub"].fail_next(error, call="stop")
    idle(world)
    assert stopped(world) == {old: "pub1"}
    assert states(world) == {old: "stopped"}
    assert told in caplog.text
    assert "nodes=pub1" in caplog.text


@pytest.mark.parametrize("error", [AuthError, CapacityError])
def test_what_cannot_be_stopped_ends(
    world: World, caplog: pytest.LogCaptureFixture, error: type[AuthError]
) -> None:
    run(world, 1, "pub1")
    world.clouds["pub"].fail_next(error, call="stop")
    idle(world)
    assert world.alive() == []
    assert stopped(world) == {}
    assert world.kinds("pub1")[-2:] == ["stop-refused", "terminated"]
    assert "not stopped nodes=pub1 error=" in caplog.text


def test_a_machine_that_is_not_ours_any_more_is_no_stopped_machine_and_a_person_reads_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run(world, 1, "pub1")
    (machine,) = world.machines_of("pub1")
    world.accounts["pub"].machines[machine].owner = "somebody-else"
    (ending,) = stopping.stop(world.site, "pub", world.ledger.machines.live(), "r-1")
    assert stopped(world) == {}, "it runs and is paid"
    terminate(world.site, "pub", [ending], Quoted(text="idle"), "r-1")
    assert world.kinds("pub1")[-2:] == ["stop-refused", "terminate-failed"]
    assert "machine not ended cloud=pub" in caplog.text
    assert [m.instance.id for m in world.ledger.machines.live()] == [machine]


def test_a_machine_that_cannot_be_stopped_leaves_the_others_of_its_call_stopped(
    open_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 stops no machine of a call with a machine that it cannot stop."""
    world = open_world(max_stopped=3)
    let_spend(world, 1.0)
    run(world, 1, "pub1", "pub2", "pub3")
    (refused,) = world.machines_of("pub2")
    cloud = world.clouds["pub"]
    really = cloud.stop

    def stop(ids: Sequence[str]) -> Sequence[str]:
        if refused in ids:
            raise ProviderError("pub", "IncorrectInstanceState", "not in a state to be stopped")
        return really(ids)

    monkeypatch.setattr(cloud, "stop", stop)
    machines = world.ledger.machines.live()
    (ending,) = stopping.stop(world.site, "pub", machines, "r-1")
    assert ending.instance.id == refused
    assert sorted(stopped(world).values()) == ["pub1", "pub3"]
    assert sorted(states(world).values()) == ["running", "stopped", "stopped"]
    assert [k for n in ("pub1", "pub2", "pub3") for k in world.kinds(n)[-1:]] == [
        "stopped", "stop-refused", "stopped"
    ]  # fmt: skip


def test_a_cloud_that_stops_no_machines_is_told_and_they_are_left_to_end(world: World) -> None:
    run(world, 1, "pub1")
    machines = world.ledger.machines.live()
    site = dataclasses.replace(world.site, providers={"pub": object()})  # type: ignore[dict-item]
    assert stopping.stop(site, "pub", [], "r-1") == []
    assert stopping.stop(site, "pub", machines, "r-1") == list(machines)
    (row,) = world.ledger.machines.live()
    assert (row.is_stopping, row.retired_at) == (False, world.now)
    (told,) = (d for d in world.ledger.decisions.about("pub1") if d.kind == "stop-refused")
    assert str(told.reason).startswith("it cannot be stopped: ")
    assert str(told.reason).endswith("its machines cannot be stopped")


def test_one_of_no_pool_any_more_stops_at_no_price(world: World) -> None:
    """The pool left the configuration between the call and its answer."""
    run(world, 1, "pub1")
    (machine,) = world.ledger.machines.live()
    world.ledger.stops.record_stopping(
        "pub", [machine.instance.id], Quoted(text=str(stopping._IDLE)), world.now
    )
    site = dataclasses.replace(world.site, pools={})
    stopping.has_stopped(site, "pub", [machine], "r-1", stopping._IDLE)
    (row,) = world.ledger.stops.machines()
    assert row.instance.price == 0.0


def test_a_stopped_machine_ends_at_its_maximum_age(open_world: Callable[..., World]) -> None:
    world = open_world(max_age=3600.0)
    run(world, 1, "pub1")
    idle(world)
    (old,) = stopped(world)
    world.advance(1500)
    run(world, 2, "pub1")  # its age is that of its first launch
    assert states(world) == {old: "running"}
    idle(world, 330)
    world.advance(1500)
    assert world.alive() == []


def test_another_image_ends_what_is_stopped(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    world.clouds["pub"].image = "image-2"
    world.advance(200)
    assert world.alive() == []
    (why,) = [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == "terminated"]
    assert "another image" in why


def test_one_of_a_call_that_was_repeated_after_a_change_of_the_image_is_of_neither(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the two calls made it is not known, so it is not kept for either image."""

    def die(_: object) -> None:
        raise Killed

    monkeypatch.setattr(world.clouds["pub"], "launch", die)
    world.slurm.submit(1, ("pub1",))
    world.advance(20)
    assert world.daemon is None
    world.start()
    first, world.clouds["pub"].image = world.clouds["pub"].image, "image-2"
    world.advance(60)
    assert len(world.alive()) == 1
    world.clouds["pub"].image = first
    idle(world)
    assert world.alive() == []


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "found in the list"])
def test_one_whose_image_changed_during_its_call_is_of_neither(
    world: World, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    cloud = world.clouds["pub"]
    launch, first = cloud.launch, cloud.image

    def slowly(spec: LaunchSpec) -> Sequence[Instance]:
        cloud.image = "image-2"
        made = launch(spec)
        if lost:
            raise TransientError("pub", "Lost", "the answer is lost")
        return made

    monkeypatch.setattr(cloud, "launch", slowly)
    world.slurm.submit(1, ("pub1",))
    world.advance(200)
    assert len(world.alive()) == 1
    cloud.image = first
    idle(world)
    assert world.alive() == []


def test_a_machine_of_an_older_image_is_not_stopped(world: World) -> None:
    run(world, 1, "pub1")
    world.clouds["pub"].image = "image-2"
    idle(world)
    assert world.alive() == []


def test_while_the_cloud_does_not_tell_the_image_all_stay(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    world.clouds["pub"].image = "image-2"
    world.clouds["pub"].fail_next(AuthError, 10_000, call="recipe")
    world.advance(400)
    assert len(stopped(world)) == 1


@pytest.mark.parametrize("change", [{"max_stopped": 0}, {"instance_types": ("large",)}])
def test_a_changed_configuration_ends_what_it_does_not_keep(
    world: World, change: dict[str, Any]
) -> None:
    run(world, 1, "pub1")
    idle(world)
    config = replace(world.config, pools=pools(**change))
    world.config = config
    world.restart()
    world.advance(200)
    assert world.alive() == []


def test_one_of_a_pool_that_is_no_more_ends(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    world.config = replace(world.config, pools=world.config.pools[:1])
    world.restart()
    world.advance(200)
    assert world.alive() == []


def test_with_another_secret_a_fresh_machine_is_another(world: World, tmp_path: Path) -> None:
    """One of before would boot with a secret that nobody takes any more."""
    secret, draft = tmp_path / "munge.key", tmp_path / "draft"
    ssh = Ssh(key="", munge_key=str(secret))
    config = replace(world.config, join=Join(head="h", ssh=ssh))
    site = dataclasses.replace(world.site, config=config)

    def recipe() -> str:
        return stopping.recipe(site, site.pools["burst"])

    secret.write_bytes(b"one")
    first = recipe()
    assert first == recipe() != stopping.recipe(world.site, site.pools["burst"]) != ""
    draft.write_bytes(b"two")
    draft.replace(secret)
    second = recipe()
    os.utime(secret, ns=(0, 1))
    assert recipe() == second != first, "a restored file has another inode and time"
    # Each of two heads has its own file with the same secret, and they share the state.
    other = tmp_path / "munge.key of the other head"
    other.write_bytes(b"two")
    other_ssh = Ssh(key="", munge_key=str(other))
    other_join = Join(head="h", ssh=other_ssh)
    other_site = dataclasses.replace(world.site, config=replace(world.config, join=other_join))
    assert stopping.recipe(other_site, site.pools["burst"]) == second
    assert b"two" not in second.encode()
    secret.unlink()
    assert recipe() == "", "nothing is known, and nothing ends for it"


def test_what_is_wrong_with_a_recipe_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pool, cloud = world.site.pools["burst"], world.clouds["pub"]
    cloud.fail_next(AuthError, call="recipe")
    assert stopping.recipe(world.site, pool) == ""
    assert "recipe not known pool=burst error=" in caplog.text
    caplog.clear()
    cloud.fail_next(RuntimeError, call="recipe")  # type: ignore[arg-type]
    assert stopping.recipe(world.site, pool) == ""
    assert "recipe not known pool=burst" in caplog.text
    site = dataclasses.replace(world.site, providers={})
    assert stopping.recipe(site, pool) == ""


def test_an_operators_replacement_ends_what_is_stopped(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    word = Departure(verb="replace", about="pool burst", nodes=PUB)
    world.ledger.directives.give(
        Directive(word=word, who="root", since=world.now, starts=world.now, reason="old")
    )
    world.advance(200)
    assert world.alive() == []
    assert world.ledger.directives.all() == ()


def test_an_operators_replacement_starts_no_old_machine_and_takes_no_new_one_away(
    world: World,
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    word = Departure(verb="replace", about="pool burst", nodes=PUB, aggressive=True)
    world.ledger.directives.give(
        Directive(word=word, who="root", since=world.now, starts=world.now, reason="old")
    )
    run(world, 2, "pub1")
    assert old in stopped(world), "it waits for its end"
    (fresh,) = (i for i in world.machines_of("pub1") if i != old)
    assert eventually_in(world, lambda: not world.ledger.directives.all())
    world.advance(60)
    assert states(world) == {fresh: "running"}
    job = world.slurm.queue()[20]
    assert "RUNNING" in job.states
    assert job.restarts == 0


def test_a_stopped_machine_that_is_gone_ends_in_the_books(world: World) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].take(old)
    world.advance(150)
    assert stopped(world) == {}
    run(world, 2, "pub1")
    assert len(world.machines_of("pub1")) == 1


@pytest.mark.parametrize("by_cloud", [True, False])
def test_an_operator_says_that_a_stopped_machine_of_a_former_cloud_is_gone(
    world: World, *, by_cloud: bool
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    assert stopped(world) == {old: "pub1"}
    with pytest.raises(ConfigError, match="belongs to a configured cloud"):
        gone(world.config, world.ledger, [old], world.now, 0)
    former = replace(world.config, clouds=world.config.clouds[:1], pools=world.config.pools[:1])
    lines = gone(former, world.ledger, ["pub" if by_cloud else old], world.now, 0)
    assert lines == (f"machine {old} of cloud pub, node pub1",)
    assert stopped(world) == {}
    assert world.kinds("pub1")[-1] == "cleared"


def test_a_lost_ledger_ends_what_nobody_knows_as_stopped_on_purpose(world: World) -> None:
    run(world, 1, "pub1", "pub2")
    idle(world, 330)
    run(world, 2, "pub3")
    world.lose_ledger()
    world.advance(400)
    assert [i.node for i in world.alive()] == ["pub3"]


def test_a_stopped_machine_that_somebody_starts_ends_as_nobody_needs_it(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    (old,) = stopped(world)
    world.clouds["pub"].start(old)
    world.advance(200)
    assert world.alive() == []


def test_a_machine_that_somebody_started_is_paid_as_it_runs_if_its_cloud_does_not_end_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world, 1, "pub1")
    idle(world)
    (old,) = stopped(world)
    world.clouds["pub"].start(old)

    def deny(_ids: Sequence[str]) -> None:
        raise DeniedError("pub", "Denied", "you may not end it")

    monkeypatch.setattr(world.clouds["pub"], "terminate", deny)
    assert eventually_in(world, lambda: not stopped(world))
    before = world.ledger.books.dollars("pub", 0.0, world.now)
    world.advance(3600)
    paid = world.ledger.books.dollars("pub", 0.0, world.now) - before
    assert paid == pytest.approx(0.10, abs=0.01)
    assert world.site.usage().dollars_per_hour["cloud:pub"] == pytest.approx(0.10)
    assert states(world) == {old: "running"}


def test_a_stop_without_effect_is_paid_as_a_running_machine_until_it_ends_beside_the_fresh_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest ignores ACPI, and the next job comes before the repair's grace is over."""
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    monkeypatch.setattr(world.clouds["pub"], "stop", lambda _ids: ())
    for job in world.slurm.queue():
        world.slurm.finish(job)
    assert eventually_in(
        world, lambda: is_powered_down(world, "pub1") and stopped(world) == {old: "pub1"}
    )
    world.slurm.submit(20, ("pub1",))
    world.advance(40)
    assert len(world.machines_of("pub1")) == 2
    assert eventually_in(world, lambda: world.site.usage().nodes.get("", 0) == 2), "both count"
    assert world.site.usage().dollars_per_hour[""] == pytest.approx(0.2)
    assert "runs-again" in world.kinds("pub1")
    assert eventually_in(world, lambda: old not in states(world))
    assert len(world.machines_of("pub1")) == 1
    assert world.site.usage().dollars_per_hour[""] == pytest.approx(0.1)


def test_a_machine_started_in_the_console_beside_another_of_its_node_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    with monkeypatch.context() as patch:
        patch.setattr(starting, "to_start", lambda *_args, **_kwargs: [])
        run(world, 2, "pub1")
    (fresh,) = (i for i in states(world) if i != old)
    world.clouds["pub"].start(old)
    assert eventually_in(world, lambda: states(world) == {fresh: "running"})
    assert stopped(world) == {}


def test_while_its_offer_cools_down_a_fresh_machine_is_taken(world: World) -> None:
    """Nothing is known against the disk: the stopped machine stays."""
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    account = world.accounts["pub"]
    machine = account.machines[old].instance
    other = replace(machine, id="pub-other", state=InstanceState.RUNNING, node="")
    account.add_foreign(other)
    world.clouds["pub"].limit("*", 1)
    world.slurm.submit(2, ("pub1",))
    world.advance(40)
    assert old not in states(world)  # refused: it ends, and the node is given back
    assert phase(world.slurm.node("pub1")) is not Phase.UP


def test_status_metrics_and_explain_tell_of_it(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    view = status_view(world.config, read_facts(world.config, world.now))
    found = {p.name: (p.machines, p.stopped) for p in view.pools}
    assert found == {"rack": (0, 0), "burst": (0, 1)}
    told = metrics.text(world.config, world.now).decode()
    assert 'slurm_elastic_machines_stopped{cloud="pub",pool="burst"} 1.0' in told


POINTS = [
    f"{verb}.{step}" for verb in ("stop", "start")
    for step in ("before-intent", "after-intent", "after-call", "after-result")
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_between_any_two_steps_is_repaired(
    world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[str] = []

    def reach(reached: str) -> None:
        if reached == point and not struck:
            struck.append(point)
            raise Killed

    monkeypatch.setattr(stopping, "reach", reach)
    monkeypatch.setattr(starting, "reach", reach)
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    if world.daemon is None:
        world.start()
        world.advance(200)
    assert stopped(world) == {old: "pub1"}
    world.slurm.submit(2, ("pub1",))
    world.advance(40)
    if world.daemon is None:
        world.start()
    world.advance(120)
    assert struck == [point]
    assert states(world) == {old: "running"}
    assert phase(world.slurm.node("pub1")) is Phase.UP
    assert stopped(world) == {}
    idle(world, 330)
    assert states(world) == {old: "stopped"}
    parts = world.ledger.machines.live(ended_since=0, stopped=True)
    spans = sorted((m.instance.launched, m.ended_at) for m in parts if m.ended_at is not None)
    assert all(a[1] <= b[0] for a, b in pairwise(spans)), "paid twice"


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_what_had_no_answer_before_a_crash_is_known_before_the_cloud_is_read(
    world: World, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world, 1, "pub1")
    (machine,) = world.machines_of("pub1")
    if verb == "start":
        idle(world)
        assert stopped(world) == {machine: "pub1"}
    call = getattr(world.clouds["pub"], verb)

    def die(what: object) -> None:
        call(what)
        raise Killed

    monkeypatch.setattr(world.clouds["pub"], verb, die)
    if verb == "start":
        world.slurm.submit(2, ("pub1",))
        world.advance(20, step=1)
    else:
        idle(world)
    assert world.daemon is None
    world.start()
    (row,) = world.ledger.machines.live()
    assert row.instance.id == machine
    assert row.is_stopping == (verb == "stop")
    assert (row.first_launched_at is not None) == (verb == "start")


def test_what_machines_were_made_of_is_told_of_the_clouds_own_pools(world: World) -> None:
    run(world, 1, "pub1")
    run(world, 2, "op1")
    rows = {m.instance.node: m for m in world.ledger.machines.live()}
    some = [*rows.values(), replace(rows["pub1"], pool="gone")]
    found = stopping.recipes_of(world.site, "pub", some)
    assert found.fresh.keys() == {"burst"}
    assert stopping.recipes_of(world.site, "pub", [rows["op1"]]) == stopping.NO_RECIPES


def test_machines_of_a_pool_that_keeps_none_stopped_are_not_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(world, 1, "pub1")
    rows = [replace(m, pool="rack") for m in world.ledger.machines.live()]
    looked: list[Any] = []
    monkeypatch.setattr(stopping, "to_stop", lambda fit, *_: looked.append(fit))
    assert stopping.choose(world.site, "pub", rows, world.slurm.nodes(["pub1"])) == []
    assert looked == []


def test_of_two_machines_at_one_price_the_first_node_gets_its_own(
    open_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = open_world(max_stopped=3)
    run(world, 1, "pub1", "pub2")
    idle(world)
    monkeypatch.setattr(starting, "to_start", lambda mine, *_: list(reversed(mine)))
    assert start(world, "pub1", "pub2", caps=(("pool:burst", 1),)) == {"pub1"}


def test_where_machines_tell_their_address_themselves_a_start_tells_none(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    before = world.slurm.calls["set_addresses"]
    start(world, "pub1")
    assert world.slurm.calls["set_addresses"] == before


@pytest.mark.parametrize("growth", [None, "on_demand"])
def test_a_burst_starts_the_stopped_machines_first_wherever_they_are(growth: str | None) -> None:
    """The first nodes of a pool were taken. So stopped machines of others never started, and
    filled the pool's share of stopped machines for ever.
    """
    plain = make_config(Path("/x"))
    names = tuple(f"pub{number}" for number in range(1, 9))
    pool = replace(
        pools(max_stopped=4)[1], nodes=compress(names), policies=PoolPolicies(growth=growth)
    )
    cloud = replace(plain.clouds[1], limits=Limits(dollars_per_hour=10))
    world = World(
        clouds=(cloud,), pools=(pool,), limits=Limits(),
        timings=Timings(suspend_time=120, suspend_timeout=30, resume_timeout=600),
    )  # fmt: skip

    def burst(*jobs: int) -> None:
        for job in jobs:
            world.slurm.submit(
                job, names, account="physics", partitions=("pub",), limit=7200, node_count=1
            )

    for name in names:
        world.slurm.set_node(name, partitions=("pub",))
    burst(*range(1, 9))
    world.advance(120)
    late = [job.id for job in world.slurm.queue().values() if set(job.nodes) & set(names[4:])]
    for job in late:
        world.slurm.finish(job)
    world.advance(600)
    assert {m.instance.node for m in world.ledger.stops.machines()} == set(names[4:])
    for job in {*range(1, 9)}.difference(late):
        world.slurm.finish(job)
    world.advance(600)
    weight_of = {name: node.weight for name, node in world.slurm.nodes().items()}
    assert max(weight_of[n] for n in names[4:]) < min(weight_of[n] for n in names[:4])
    burst(*range(11, 15))
    world.advance(300)
    assert {m.instance.node for m in world.ledger.machines.live()} == set(names[4:])
    assert not world.ledger.stops.machines()
    world.close()
