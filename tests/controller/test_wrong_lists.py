"""A cloud's list that is read without an error and is wrong: no job pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.cli.orders import clear
from slurm_elastic.model.cluster import Instance, InstanceState, Limits
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.world import World, make_config

MANY = 40


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def large(tmp_path: Path) -> Iterator[World]:
    """A world with forty nodes in the public cloud."""
    usual = make_config(tmp_path)
    rack, burst = usual.pools
    onp, pub = usual.clouds
    made = World(
        tmp_path,
        pools=(rack, replace(burst, nodes=f"pub[1-{MANY}]")),
        clouds=(onp, replace(pub, limits=Limits(dollars_per_hour=100.0))),
        limits=Limits(nodes=100),
    )
    yield made
    made.close()


def run_jobs(world: World, count: int, *, requeue: bool = True) -> list[Instance]:
    for number in range(1, count + 1):
        world.slurm.submit(number, (f"pub{number}",), requeue=requeue)
    world.advance(60)
    assert running(world) == count
    return world.alive()


def running(world: World) -> int:
    return sum("RUNNING" in job.states for job in world.slurm.queue().values())


def live_rows(world: World) -> set[str]:
    return {m.instance.id for m in world.ledger.machines.live()}


def told(world: World, cloud: str = "pub") -> str | None:
    return next(h.error for h in world.ledger.health.all() if h.name == cloud)


def hide(world: World, *machines: Instance) -> None:
    for machine in machines:
        world.accounts["pub"].machines[machine.id].visible_from = float("inf")


def show(world: World) -> None:
    for machine in world.accounts["pub"].machines.values():
        machine.visible_from = 0.0


@pytest.mark.parametrize(
    ("timeout", "says"),
    [
        (300.0, "pub: it lists 0 of 40 machines that were there"),
        (0.0, "slurmctld has up, without a ping, the nodes"),
    ],
    ids=["hears", "pings nobody"],
)
def test_an_empty_list_ends_nothing_that_slurmctld_has_up(
    large: World, timeout: float, says: str
) -> None:
    """As with the credentials of another account."""
    large.slurm.timeout = timeout
    machines = run_jobs(large, MANY, requeue=False)
    hide(large, *machines)
    large.advance(1200, step=10)
    assert running(large) == MANY
    assert live_rows(large) == {i.id for i in machines}
    assert says in (told(large) or "")
    show(large)
    large.advance(60)
    assert told(large) is None
    assert {i.id for i in large.alive()} == {i.id for i in machines}


def test_a_doubt_does_not_end_by_a_gap_in_the_pings(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is paid: somebody has to hear of it until the list is right."""
    world.slurmd_timeout = 1e9
    (machine,) = run_jobs(world, 1)
    hide(world, machine)
    world.advance(600)
    with monkeypatch.context() as silent:
        silent.setattr(world, "_answers", lambda _: False)
        world.advance(60)
    assert live_rows(world) == {machine.id}, "the cloud has it by its id"
    world.restart()
    world.slurmd_timeout = 0.0  # pings prove nothing any more
    world.advance(60)
    assert "It has shown none of them since; `clear pub` if they are gone" in (told(world) or "")
    show(world)
    world.advance(60)
    assert told(world) is None
    world.slurm.finish(1)
    world.advance(900)
    assert world.alive() == []


def test_a_machine_that_a_wrong_list_lacks_ends_with_its_node(world: World) -> None:
    """Its row is not given up, and so the cloud is asked for its end by its id."""
    (machine,) = run_jobs(world, 1)
    hide(world, machine)
    world.advance(600)
    world.slurm.finish(1)
    world.advance(900)
    assert world.alive() == []
    assert phase(world.slurm.node("pub1")) is Phase.POWERED_DOWN


def test_a_doubt_ends_when_a_person_says_so(world: World) -> None:
    (machine,) = run_jobs(world, 1)
    hide(world, machine)
    world.advance(600)
    world.slurm.finish(1)
    world.clouds["pub"].take(machine.id)
    world.advance(600)
    assert "clear pub" in (told(world) or "")
    lines = clear.clear(world.config, world.ledger, ["pub"], world.now, "root")
    assert lines == ("doubt about the list of cloud pub",)
    world.advance(60)
    assert told(world) is None
    assert clear.clear(world.config, world.ledger, None, world.now, "root") == ()


def test_a_machine_whose_tags_are_gone_keeps_its_job(world: World) -> None:
    first, second = run_jobs(world, 2)
    hide(world, first)
    world.advance(600)
    assert [j.restarts for j in world.slurm.queue().values()] == [0, 0]
    assert live_rows(world) == {first.id, second.id}
    assert f"slurmctld hears the nodes {first.node}" in (told(world) or "")


def test_with_a_lost_ledger_an_empty_list_fails_no_node(world: World) -> None:
    machines = run_jobs(world, 2)
    hide(world, *machines)
    world.lose_ledger()
    world.advance(600)
    assert [j.restarts for j in world.slurm.queue().values()] == [0, 0]
    assert "it lists 0 of 2 machines" in (told(world) or "")
    show(world)
    world.advance(60)
    assert live_rows(world) == {i.id for i in machines}


def test_a_host_that_takes_most_machines_with_it_is_believed(large: World) -> None:
    """slurmctld does not hear them either: their rows end, no more a round than the cap."""
    large.slurmd_timeout = 300.0
    machines = run_jobs(large, MANY)
    for machine in machines[:30]:
        large.clouds["pub"].take(machine.id)
    ended = [0]
    for _ in range(24):
        large.advance(large.config.timings.reconcile_interval)
        ended.append(30 - len(live_rows(large) & {i.id for i in machines[:30]}))
    assert ended[-1] == 30
    assert max(b - a for a, b in pairwise(ended)) <= 10
    large.advance(900, step=10)
    assert running(large) == MANY
    assert [j.restarts for j in large.slurm.queue().values()].count(0) == 10
    assert told(large) is None


@pytest.mark.parametrize("count", [1, 2])
def test_the_machines_of_a_small_site_are_missed_as_before(world: World, count: int) -> None:
    world.slurmd_timeout = 1e9  # Slurm itself only notes that they do not answer
    machines = run_jobs(world, count)
    for machine in machines:
        world.clouds["pub"].take(machine.id)
    world.advance(900)
    assert running(world) == count
    assert {j.restarts for j in world.slurm.queue().values()} == {1}
    assert live_rows(world) == {i.id for i in world.alive()}
    assert told(world) is None


def test_where_slurmctld_pings_nobody_a_lost_machine_keeps_no_job(world: World) -> None:
    """SlurmdTimeout=0: a node that is up stays so by Slurm, whatever became of its machine."""
    world.slurm.timeout = 0.0
    (machine,) = run_jobs(world, 1)
    world.clouds["pub"].take(machine.id)
    world.advance(600)
    assert running(world) == 1
    assert [j.restarts for j in world.slurm.queue().values()] == [1]
    assert live_rows(world) == {i.id for i in world.alive()}
    assert told(world) is None


def test_a_loss_makes_no_alarm(world: World) -> None:
    """Until slurmctld notices it, too, it looks like a wrong list."""
    seen: set[str | None] = set()
    (machine,) = run_jobs(world, 1)
    world.clouds["pub"].take(machine.id)
    for _ in range(60):
        world.advance(10)
        seen.add(told(world))
    assert seen == {None}


def test_a_machine_that_the_cloud_wrongly_has_as_stopped_keeps_its_job(world: World) -> None:
    """nova has a guest as ERROR that only could not be looked after."""
    (machine,) = run_jobs(world, 1, requeue=False)
    record = world.accounts["pub"].machines[machine.id]
    world.really_running.add(machine.id)
    record.instance = replace(machine, state=InstanceState.STOPPING)
    world.advance(900)
    assert running(world) == 1
    assert world.alive() == [record.instance]
    world.slurm.finish(1)
    world.advance(300)
    assert world.alive() == []
    assert phase(world.slurm.node("pub1")) is not Phase.UP


def test_that_a_list_is_right_again_is_no_error(
    large: World, caplog: pytest.LogCaptureFixture
) -> None:
    machines = run_jobs(large, MANY)
    hide(large, *machines)
    large.advance(300)
    assert sum("list is not believed" in r.getMessage() for r in caplog.records) == 1
    show(large)
    large.advance(60)
    assert told(large) is None
    assert sum("list is not believed" in r.getMessage() for r in caplog.records) == 1
