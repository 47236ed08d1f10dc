"""Nodes that do not register are given up before slurmctld would fail their jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmError, TransientError
from slurm_elastic.config import Timings
from slurm_elastic.controller.launching.boot_timeouts import find_job_peers
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from tests.controller.world import BOOT, ONP, PUB, T0, World

RESUME = 100.0
LATE = given_up_after(RESUME)
ALL = (*ONP, *PUB)
REST = "onp/*/*/*/rack"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    timings = Timings(suspend_time=900, suspend_timeout=30, resume_timeout=RESUME)
    made = World(tmp_path, timings=timings)
    yield made
    made.close()


def mute(world: World, *names: str) -> None:
    """The machines of these nodes boot, but their slurmd cannot reach slurmctld."""
    world.unheard = set(names)


def failed_by_slurm(world: World) -> list[str]:
    return [n for kind, nodes, _ in world.requests if kind == "resume-fail" for n in nodes]


def reasons(world: World, subject: str) -> str:
    return "\n".join(f"{d.kind}: {d.reason}" for d in world.ledger.decisions.about(subject))


def test_jobs_of_both_kinds_and_of_two_nodes_run_elsewhere(world: World) -> None:
    mute(world, *ONP)
    world.slurm.submit(1, ("op1", "pub1"))
    world.slurm.submit(2, ("op2", "pub2"), requeue=False)
    world.advance(LATE - 5, step=1)
    assert all("CONFIGURING" in j.states for j in world.slurm.queue().values())
    world.advance(40, step=1)
    jobs = world.slurm.queue()
    assert [(j.nodes, j.restarts) for j in jobs.values()] == [(("pub1",), 1), (("pub2",), 1)]
    assert all("RUNNING" in j.states for j in jobs.values()), "without the hold of 121 s"
    assert [j.requeue for j in jobs.values()] == [True, False], "the user's own setting is kept"
    assert world.ledger.requeues.lifted() == ()
    assert world.alive("onp") == []
    world.advance(RESUME)
    assert failed_by_slurm(world) == []
    told = reasons(world, "job:2")
    assert "boot-failed: booted but not registered in time" in told
    assert "cooled-down: pool rack cools down until " in told
    assert "op[1-2] did not register within 1m 30s (ResumeTimeout is 1m 40s)" in told


def test_a_two_node_job_is_given_back_as_a_whole(world: World) -> None:
    mute(world, "pub1", "pub2")
    world.slurm.submit(1, PUB, 2)
    world.advance(LATE + 1, step=1)
    assert "PENDING" in world.slurm.queue()[1].states
    assert world.slurm.queue()[1].restarts == 1
    world.advance(30, step=1)
    assert world.alive() == []
    assert failed_by_slurm(world) == []


def test_what_registered_of_a_job_stays(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ONP, 2)
    world.advance(LATE + 3, step=1)
    assert [i.node for i in world.alive()] == ["op2"]
    assert phase(world.slurm.node("op2")) is Phase.UP


def test_the_pool_rests_and_is_used_again_after_that(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ONP)
    world.advance(LATE + 10, step=1)
    assert [c.scope for c in world.ledger.exclusions.cool_downs(world.now)] == [REST]
    assert is_drained(world.slurm.node("op2")), "else its job would walk into it"
    assert "PENDING" in world.slurm.queue()[1].states
    world.advance(260)
    job = world.slurm.queue()[1]
    assert "RUNNING" in job.states or "CONFIGURING" in job.states


def test_where_others_register_only_the_node_is_left_alone(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1",))
    world.slurm.submit(2, ("op2",))
    world.advance(LATE + 10, step=1)
    assert world.ledger.exclusions.cool_downs(world.now) == ()
    assert not world.ledger.exclusions.breakers()[0].until
    assert [row.scope for row in world.ledger.exclusions.holds()] == ["op1"]
    assert "boot-failed" in world.kinds("pool:rack")


def test_one_that_registers_ends_the_rest_of_its_pool(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1",))
    world.advance(LATE - BOOT, step=1)
    world.slurm.submit(2, ("op2",))
    world.advance(6, step=1)
    assert phase(world.slurm.node("op2")) is Phase.POWERING_UP
    world.advance(30, step=1)
    assert "RUNNING" in world.slurm.queue()[2].states
    world.advance(60, step=1)
    assert world.ledger.exclusions.cool_downs(world.now) == ()
    assert world.ledger.exclusions.breakers() == ()


def test_a_machine_that_would_register_late_is_ended_once_and_keeps_its_owner(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1",))
    world.advance(LATE + 2, step=1)
    world.unheard.clear()
    world.advance(60, step=1)
    assert world.alive() == []
    (machine,) = world.ledger.machines.live(ended_since=0.0)
    assert (machine.instance.node, str(machine.cause_text)) == (
        "op1",
        "it did not register in time",
    )
    assert phase(world.slurm.node("op1")) is Phase.POWERED_DOWN


def test_a_cloud_that_does_not_end_it_at_once_is_asked_again(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(LATE - 2, step=1)
    world.clouds["onp"].fail_next(TransientError, 2, call="terminate")
    seen = []
    for _ in range(10):
        world.advance(1, step=1)
        seen += [m for m in world.ledger.machines.live() if not m.is_wanted]
    assert {str(m.cause_text) for m in seen} == {"it did not register in time"}, (
        "its end is decided"
    )
    world.advance(120, step=1)
    assert world.alive("onp") == []
    assert "RUNNING" in world.slurm.queue()[1].states


def test_while_slurm_does_not_answer_it_is_tried_again_and_counted_once(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"), requeue=False)
    world.advance(LATE - 2, step=1)
    update = world.slurm.update_nodes
    refusals = iter(range(3))

    def sick(names: Sequence[str], **fields: str | None) -> None:
        if fields.get("state") == "POWER_DOWN_FORCE" and next(refusals, None) is not None:
            raise SlurmError(("scontrol",), 1, "Unable to contact slurm controller")
        update(names, **fields)

    world.slurm.update_nodes = sick  # type: ignore[method-assign]
    world.advance(30, step=1)
    assert next(refusals, None) is None
    assert [b.count for b in world.ledger.exclusions.breakers()] == [1]
    assert world.slurm.queue()[1].nodes == ("pub1",)


def test_a_failure_is_counted_once_although_no_other_node_can_be_drained(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(LATE - 2, step=1)
    update = world.slurm.update_nodes
    refusals = iter(range(2))

    def sick(names: Sequence[str], **fields: str | None) -> None:
        if fields.get("state") == "DRAIN" and next(refusals, None) is not None:
            raise SlurmError(("scontrol",), None, "no answer in 60 s")
        update(names, **fields)

    world.slurm.update_nodes = sick  # type: ignore[method-assign]
    world.advance(30, step=1)
    assert [b.count for b in world.ledger.exclusions.breakers()] == [1]
    assert world.slurm.queue()[1].nodes == ("pub1",)


def test_a_failure_that_slurm_tells_is_counted_although_its_jobs_cannot_be_read_at_first(
    world: World,
) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(20, step=1)
    world.stop()
    world.advance(RESUME, step=1)
    world.start()
    jobs, refusals = world.slurm.jobs, iter(range(1))

    def sick(**options: bool) -> object:
        if next(refusals, None) is not None:
            raise SlurmError(("squeue",), None, "no answer in 60 s")
        return jobs(**options)

    world.slurm.jobs = sick  # type: ignore[method-assign, assignment]
    world.advance(30, step=1)
    assert next(refusals, None) is None
    assert [b.count for b in world.ledger.exclusions.breakers()] == [1]
    assert world.alive("onp") == []


def test_an_admins_drain_is_left_to_slurm(world: World) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1",))
    world.advance(LATE - 5, step=1)
    world.slurm.update_nodes(["op1"], state="DRAIN", reason="fan is broken")
    world.advance(8, step=1)
    assert phase(world.slurm.node("op1")) is Phase.POWERING_UP
    assert is_drained(world.slurm.node("op1"))
    assert world.ledger.exclusions.breakers() == ()


def test_a_node_whose_launch_never_got_an_answer_is_given_back_too(world: World) -> None:
    world.slurm.submit(1, ("op1", "pub1"), requeue=False)
    (name,) = [n for kind, nodes, _ in world.requests for n in nodes]
    assert name == "op1"
    world.clouds["onp"].visible_after = 10_000.0
    world.clouds["onp"].fail_next(TransientError, 500, call="launch")
    world.advance(LATE + 20, step=1)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert world.slurm.queue()[1].nodes == ("pub1",)
    assert "its launch has no answer" in str(world.ledger.exclusions.holds()[0].cause)
    assert world.ledger.exclusions.breakers() == (), "nothing is known to have booted"


def test_where_slurm_was_first_its_jobs_are_hurried_all_the_same(world: World) -> None:
    """The daemon was away: ResumeFailProgram is the fail-safe."""
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(20, step=1)
    world.stop()
    world.advance(RESUME, step=1)
    assert failed_by_slurm(world) == ["op1"]
    assert world.slurm.queue()[1].reason == "BeginTime"
    world.start()
    world.advance(30, step=1)
    assert "RUNNING" in world.slurm.queue()[1].states
    assert world.alive("onp") == []
    assert "boot-failed" in world.kinds("job:1")
    assert [c.scope for c in world.ledger.exclusions.cool_downs(world.now)] == [REST]


def test_of_a_job_that_waits_for_a_late_node_the_others_that_power_up_are_its_peers(
    world: World,
) -> None:
    for name in ("op2", "pub1", "pub2"):
        world.slurm.set_node(name, "ALLOCATED", "CLOUD", "POWERING_UP")
    world.slurm.set_node("pub3", "IDLE", "CLOUD")
    job = SlurmJob(id=1, states=frozenset({"CONFIGURING"}), nodes=(*ONP, *PUB, "no-pools"))
    assert find_job_peers(world.site, [job], ["op1", "pub1"]) == ("op2", "pub2")
    assert find_job_peers(world.site, [job], job.nodes) == ()


@pytest.mark.parametrize(("away", "back"), [(20, LATE + 1), (LATE - 25, LATE - 1)])
def test_a_boot_is_not_blamed_for_the_time_without_slurmctld(
    world: World, monkeypatch: pytest.MonkeyPatch, away: float, back: float
) -> None:
    """No machine can register while slurmctld is away; this one does four seconds after that."""
    mute(world, "op1")
    world.slurm.submit(1, ("op1",))
    world.advance(away, step=1)

    def silent(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")

    with monkeypatch.context() as patched:
        for name in ("nodes", "jobs", "update_nodes", "slurmctld_started"):
            patched.setattr(world.slurm, name, silent)
        world.advance(back - away, step=1)
    world.advance(4, step=1)
    world.unheard = set()
    world.advance(10, step=1)
    assert "boot-failed" not in world.kinds("op1")
    assert phase(world.slurm.node("op1")) is Phase.UP
    assert "RUNNING" in world.slurm.queue()[1].states
    assert world.ledger.exclusions.breakers() == ()


def test_a_boot_that_fails_is_given_up_after_slurmctld_has_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(LATE - 20, step=1)

    def silent(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), None, "no answer in 60 s")

    with monkeypatch.context() as patched:
        for name in ("nodes", "slurmctld_started"):
            patched.setattr(world.slurm, name, silent)
        world.advance(3, step=1)
    world.advance(LATE, step=1)
    assert world.slurm.queue()[1].nodes == ("pub1",)
    assert "boot-failed" in world.kinds("op1")


def away(world: World, monkeypatch: pytest.MonkeyPatch, until: float) -> None:
    """slurmctld answers nobody until so many seconds after the begin of the test."""

    def silent(*_: object, **__: object) -> None:
        raise SlurmError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")

    with monkeypatch.context() as patched:
        for name in ("nodes", "jobs", "update_nodes", "slurmctld_started"):
            patched.setattr(world.slurm, name, silent)
        world.advance(until - (world.now - T0), step=1)


def test_a_boot_that_lacks_the_time_of_an_absence_is_given_back_and_not_blamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld's own ResumeTimeout went on, and would end a job of --no-requeue."""
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"), requeue=False)
    world.advance(20, step=1)
    away(world, monkeypatch, until=60)
    world.advance(LATE + 1 - 60, step=1)
    assert phase(world.slurm.node("op1")) is Phase.POWERING_UP, "it has time until the last moment"
    world.advance(30, step=1)
    job = world.slurm.queue()[1]
    assert ("RUNNING" in job.states, job.nodes) == (True, ("pub1",))
    assert failed_by_slurm(world) == []
    assert "boot-failed" not in world.kinds("op1")
    assert world.ledger.exclusions.breakers() == ()
    (why,) = [str(d.reason) for d in world.ledger.decisions.about("job:1") if d.kind == "requeued"]
    assert "could not register while slurmctld was away" in why


def test_a_boot_whose_resume_timeout_ended_in_an_absence_is_not_blamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute(world, "op1")
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(20, step=1)
    away(world, monkeypatch, until=RESUME + 20)
    world.unheard = set()
    world.advance(200, step=1)
    assert failed_by_slurm(world) == ["op1"]
    assert "RUNNING" in world.slurm.queue()[1].states
    assert len(world.alive()) == 1
    assert "boot-failed" not in world.kinds("op1")
    assert world.ledger.exclusions.breakers() == ()


def test_an_absence_before_a_boot_does_not_spare_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute(world, "op1")
    world.slurm.submit(2, ("pub2",))
    away(world, monkeypatch, until=30)
    world.slurm.submit(1, ("op1", "pub1"))
    world.advance(LATE + 10, step=1)
    assert world.slurm.queue()[1].nodes == ("pub1",)
    assert "boot-failed" in world.kinds("op1")
