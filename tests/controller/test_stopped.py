"""Pools that keep stopped machines: idle machines are stopped, and started again for their nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.books import By, charges, read_books, report
from slurm_elastic.config import PoolSettings
from slurm_elastic.controller import starting, stopping
from slurm_elastic.directive import Departure, Directive
from slurm_elastic.door import metrics
from slurm_elastic.door.records import read_facts
from slurm_elastic.errors import AuthError, CapacityError, TransientError
from slurm_elastic.hostlist import compress
from slurm_elastic.model import InstanceState, Market
from slurm_elastic.policies.node_state import Phase, phase
from slurm_elastic.view import status_view
from tests.controller.world import ONP, PUB, Killed, World

DISK = 0.01


def pools(**changes: Any) -> tuple[PoolSettings, ...]:
    own: dict[str, Any] = {"stopped": 1, "stopped_price": DISK, "markets": (Market.ON_DEMAND,)}
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


def stopped(world: World) -> dict[str, str]:
    """By machine, its node."""
    return {m.instance.id: m.instance.node for m in world.ledger.stopped()}


def states(world: World) -> dict[str, str]:
    return {i.id: str(i.state) for i in world.alive()}


def test_an_idle_machine_is_stopped_and_started_for_the_next_job(world: World) -> None:
    run(world, 1, "pub1")
    (machine,) = world.machines_of("pub1")
    idle(world)
    assert states(world) == {machine: "stopped"}
    assert stopped(world) == {machine: "pub1"}
    assert world.ledger.machines() == ()
    assert world.site.usage().nodes.get("", 0) == 0
    assert world.site.usage().dollars_per_hour[""] == DISK
    run(world, 2, "pub1")
    assert states(world) == {machine: "running"}
    (row,) = world.ledger.machines()
    assert (row.instance.id, row.jobs, row.instance.price) == (machine, (20,), 0.10)
    assert stopped(world) == {}
    assert [k for k in world.kinds("pub1") if k in ("stopped", "started", "launched")] == [
        "launched", "stopped", "started",
    ]  # fmt: skip


def test_without_the_setting_it_ends(open_world: Callable[..., World]) -> None:
    world = open_world(stopped=0)
    run(world, 1, "pub1")
    idle(world)
    assert world.alive() == []


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
        ((m.ended or world.now) - m.instance.launched) / 3600
        for m in books.machines
        if m.stopped is not None
    )
    assert paid == pytest.approx(hours * DISK * 1e6, rel=1e-3)
    assert world.ledger.dollars("pub", begin, world.now, 1) * 1e6 == pytest.approx(
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
    machines = world.ledger.machines()
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
    rows = world.ledger.machines(ended_since=0, stopped=True)
    never = [m for m in rows if m.instance.id == old]
    assert [m.instance.price for m in never] == [DISK]


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
    real = cloud.start

    def start(instance: str) -> None:
        cloud.start = real  # type: ignore[method-assign]
        try:
            real(instance)
        finally:
            cloud.fail_next(AuthError, call="start")

    cloud.start = start  # type: ignore[method-assign]
    cloud.lose_answer_next(1)
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
    real = cloud.start

    def start(instance: str) -> None:
        cloud.start = real  # type: ignore[method-assign]
        try:
            real(instance)
        finally:
            del cloud.account.machines[instance]

    cloud.start = start  # type: ignore[method-assign]
    cloud.lose_answer_next(1)
    world.slurm.submit(2, ("pub1",))
    world.advance(100)
    assert [one.node for one in world.alive()] == ["pub1"]
    assert phase(world.slurm.node("pub1")) is Phase.UP
    rows = world.ledger.machines(ended_since=0, stopped=True)
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


def test_a_stop_that_fails_for_a_moment_is_repeated(world: World) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    world.clouds["pub"].fail_next(TransientError, call="stop")
    idle(world)
    assert stopped(world) == {old: "pub1"}
    assert states(world) == {old: "stopped"}


@pytest.mark.parametrize("error", [AuthError, CapacityError])
def test_what_cannot_be_stopped_ends(world: World, error: type[AuthError]) -> None:
    run(world, 1, "pub1")
    world.clouds["pub"].fail_next(error, call="stop")
    idle(world)
    assert world.alive() == []
    assert stopped(world) == {}
    assert world.kinds("pub1")[-2:] == ["stop-refused", "terminated"]


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
    (why,) = [d.reason for d in world.ledger.decisions("pub1") if d.kind == "terminated"]
    assert "another image" in why


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


@pytest.mark.parametrize("change", [{"stopped": 0}, {"instance_types": ("large",)}])
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


def test_an_operators_replacement_ends_what_is_stopped(world: World) -> None:
    run(world, 1, "pub1")
    idle(world)
    word = Departure(verb="replace", about="pool burst", nodes=PUB)
    world.ledger.direct(
        Directive(word=word, who="root", since=world.now, starts=world.now, reason="old")
    )
    world.advance(200)
    assert world.alive() == []
    assert world.ledger.directives() == ()


def test_a_stopped_machine_that_is_gone_ends_in_the_books(world: World) -> None:
    run(world, 1, "pub1")
    (old,) = world.machines_of("pub1")
    idle(world)
    world.clouds["pub"].take(old)
    world.advance(150)
    assert stopped(world) == {}
    run(world, 2, "pub1")
    assert len(world.machines_of("pub1")) == 1


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
    parts = world.ledger.machines(ended_since=0, stopped=True)
    spans = sorted((m.instance.launched, m.ended) for m in parts if m.ended is not None)
    assert all(a[1] <= b[0] for a, b in pairwise(spans)), "paid twice"
