"""A node that powers up again while its earlier machine lives: no job waits for that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurm_elastic.base.errors import SlurmError, TransientError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.launching.launch import end_far_exclusions
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.repair.cloud_view import Thresholds
from tests.controller.world import World

STEP_BACK = 7200.0


def up(world: World, node: str = "pub1") -> str:
    """Run a job on the node until its machine is known to have registered; the machine."""
    world.slurm.submit(1, (node,))
    world.advance(60)
    (machine,) = world.machines_of(node)
    assert [m.registered_at is not None for m in world.ledger.machines.live()] == [True]
    return machine


def lose(world: World, *lost: str) -> None:
    """Have slurmctld's programs of these kinds fail from now on."""

    def program(kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]]) -> None:
        if kind not in lost:
            world.program(kind, nodes, jobs)

    world.programs = program


def off(world: World, node: str = "pub1") -> None:
    """Until Slurm has the idle node powered down, and no longer."""
    world.slurm.finish(1)
    for _ in range(200):
        if phase(world.slurm.node(node)) is Phase.POWERED_DOWN:
            return
        world.advance(2, step=2)
    raise AssertionError("it was never powered down")


def until_runs(world: World, job: int, within: float) -> float:
    began = world.now
    while "RUNNING" not in world.slurm.queue()[job].states:
        assert world.now - began < within, world.kinds("pub1")
        world.advance(2, step=2)
    return world.now - began


def reasons(world: World, kind: str) -> list[str]:
    return [str(d.reason) for d in world.ledger.decisions.about("pub1") if d.kind == kind]


def set_back(world: World, seconds: float = STEP_BACK) -> None:
    """The clock of the head shows so much less from now on; monotonic ones do not."""
    clock = lambda: world.now - seconds  # noqa: E731
    for part in (world.site, *world.daemon.rounds.values()):  # type: ignore[union-attr]
        site = getattr(part, "_site", part)
        object.__setattr__(site, "now", clock)

    def program(kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]]) -> None:
        of = [{"job_id": j, "nodes": compress(names)} for j, names in jobs.items()]
        file = {"jobs": of, "all_nodes": compress(nodes)} if kind == "resume" else None
        world.program(kind, nodes, jobs, received=clock(), resume_file=file)

    world.programs = program


@pytest.mark.parametrize("requeue", [True, False])
def test_a_lost_suspend_delays_the_next_job_by_no_more_than_a_boot(
    world: World, requeue: bool
) -> None:
    old = up(world)
    lose(world, "suspend")
    off(world)
    world.slurm.set_job(1, "COMPLETED", nodes=("pub1",))  # as slurmctld shows it for a while
    world.slurm.submit(2, ("pub1",), requeue=requeue)
    until_runs(world, 2, within=30)
    assert world.slurm.queue()[2].restarts == 0
    (new,) = world.machines_of("pub1")
    assert new != old
    (why,) = reasons(world, "terminated")
    assert "waits for a machine that boots after that" in why


def test_where_the_resume_is_lost_as_well_the_repair_does_it(world: World) -> None:
    old = up(world)
    lose(world, "suspend", "resume")
    off(world)
    world.slurm.submit(2, ("pub1",), requeue=False)
    lose(world)
    took = until_runs(world, 2, within=world.config.timings.orphan_timeout + 120)
    assert took >= world.config.timings.orphan_timeout
    (new,) = world.machines_of("pub1")
    assert new != old


@pytest.mark.parametrize("lost", [("suspend",), ("suspend", "resume")])
def test_none_is_bought_where_slurm_gave_the_node_up_while_the_old_one_was_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: Sequence[str]
) -> None:
    up(world)
    lose(world, *lost)
    off(world)
    cloud = world.clouds["pub"]
    terminate = cloud.terminate

    def slow(ids: Sequence[str]) -> None:
        terminate(ids)
        world.slurm.finish(2)
        world.slurm.set_node("pub1", "IDLE", "CLOUD", "POWERED_DOWN")

    monkeypatch.setattr(cloud, "terminate", slow)
    launched = len(world.ledger.decisions.about("pub1"))
    world.slurm.submit(2, ("pub1",))
    world.advance(world.config.timings.orphan_timeout + 120)
    assert world.machines_of("pub1") == []
    kinds = world.kinds("pub1")
    assert kinds.count("launched") == 1, kinds[launched:]


def test_a_cloud_that_does_not_end_it_at_once_keeps_no_job_waiting(world: World) -> None:
    old = up(world)
    lose(world, "suspend")
    off(world)
    world.clouds["pub"].fail_next(TransientError, 3, "terminate")
    world.slurm.submit(2, ("pub1",))
    until_runs(world, 2, within=30)
    world.advance(200)
    (new,) = world.machines_of("pub1")
    assert new != old
    assert "RUNNING" in world.slurm.queue()[2].states


def test_a_resume_request_that_is_served_again_ends_no_machine_that_has_registered(
    world: World,
) -> None:
    machine = up(world)
    world.advance(600)
    world.program(*world.requests[0], received=world.now - 660)
    world.program(*world.requests[0], received=world.now)
    world.advance(300)
    assert world.machines_of("pub1") == [machine]
    assert "RUNNING" in world.slurm.queue()[1].states


def test_a_view_from_before_a_machine_registered_ends_nothing(world: World) -> None:
    """A node's state that was read before the ledger may be from its own power-up."""
    machine = up(world)
    world.advance(600)
    shown = world.slurm.node("pub1")
    nodes, before = world.slurm.nodes, [1]

    def stale(names: Sequence[str] | None = None) -> Mapping[str, object]:
        found = dict(nodes(names))
        if names is not None and before:
            before.clear()
            found["pub1"] = type(shown)(
                name="pub1", states=frozenset({"ALLOCATED", "CLOUD", "POWERING_UP"})
            )
        return found

    world.slurm.nodes = stale  # type: ignore[method-assign, assignment]
    world.program(*world.requests[0], received=world.now)
    world.advance(10)
    assert not before
    assert world.machines_of("pub1") == [machine]


def test_an_admin_who_powers_up_a_node_that_is_up_changes_nothing(world: World) -> None:
    """slurmctld says that it is powered up already (22.05, measured)."""
    machine = up(world)
    world.slurm.finish(1)
    world.advance(100)
    world.slurm.update_nodes(["pub1"], state="POWER_UP")
    world.program("resume", ["pub1"], {}, received=world.now)
    world.advance(100)
    assert world.machines_of("pub1") == [machine]


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_node_with_a_job_on_it_keeps_its_machine(world: World, state: str) -> None:
    """Whatever Slurm says of the node."""
    machine = up(world)
    world.advance(600)
    world.slurm.set_job(1, state, nodes=("pub1",))
    world.slurm.set_node("pub1", "ALLOCATED", "CLOUD", "POWERING_UP")
    world.slurm.set_since("pub1", world.now)
    world.program("resume", ["pub1"], {1: ["pub1"]}, received=world.now)
    world.advance(300)
    assert world.machines_of("pub1") == [machine]


def test_a_slurmctld_that_forgot_for_a_moment_that_the_node_was_up_costs_nothing(
    world: World,
) -> None:
    """Killed a moment after the node had registered, it shows it as powering up for a while."""
    machine = up(world)
    states = world.slurm.node("pub1").states
    world.slurm.set_node("pub1", "ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")
    world.slurm.set_job(1, "CONFIGURING", nodes=("pub1",))
    registered = world.ledger.machines.live()[0].registered_at
    assert registered is not None
    world.now = registered + world.config.timings.suspend_timeout / 2
    world.program("resume", ["pub1"], {1: ["pub1"]}, received=world.now)
    world.hears = False
    world.advance(60)
    assert world.machines_of("pub1") == [machine]
    world.slurm.set_node("pub1", *states)
    world.advance(300)
    assert world.machines_of("pub1") == [machine]


def test_while_slurm_does_not_tell_its_jobs_nothing_is_ended(world: World) -> None:
    machine = up(world)
    lose(world, "suspend")
    off(world)
    jobs = world.slurm.jobs
    answers = [SlurmError(("squeue",), None, "no answer in 60 s") for _ in range(3)]

    def failing(**options: bool) -> Sequence[object]:
        if answers:
            raise answers.pop()
        return jobs(**options)

    world.slurm.jobs = failing  # type: ignore[method-assign, assignment]
    world.slurm.submit(2, ("pub1",))
    world.advance(2, step=2)
    assert machine in world.machines_of("pub1")
    until_runs(world, 2, within=60)
    assert len(world.machines_of("pub1")) == 1


# a clock that is set back by hours


@pytest.mark.parametrize("requeue", [True, False])
def test_a_suspend_after_the_clock_was_set_back_is_served(world: World, requeue: bool) -> None:
    old = up(world)
    set_back(world)
    off(world)
    world.advance(5)
    assert world.machines_of("pub1") == []
    world.slurm.submit(2, ("pub1",), requeue=requeue)
    until_runs(world, 2, within=30)
    (new,) = world.machines_of("pub1")
    assert new != old


def test_a_suspend_from_before_the_clock_was_set_back_ends_no_machine_that_boots(
    world: World,
) -> None:
    """It bears a later time than the resume that came after it, and is served last."""
    old = up(world)
    off(world)
    world.advance(5)
    set_back(world)
    world.program("suspend", ["pub1"], {}, received=world.now)
    world.slurm.submit(2, ("pub1",))
    assert [request.kind for request in world.spool.pending()] == ["resume", "suspend"]
    until_runs(world, 2, within=30)
    new = {m.instance.id for m in world.ledger.machines.live(ended_since=0.0)} - {old}
    assert new == set(world.machines_of("pub1")), "one was bought, and it came up"


def test_a_lost_suspend_and_a_clock_set_back_cost_a_grace(world: World) -> None:
    old = up(world)
    set_back(world)
    lose(world, "suspend", "resume")
    off(world)
    world.slurm.submit(2, ("pub1",), requeue=False)
    set_back(world)
    until_runs(world, 2, within=world.config.timings.orphan_timeout + 120)
    assert old not in world.machines_of("pub1")


def test_no_node_is_held_for_longer_because_the_clock_was_set_back(world: World) -> None:
    world.clouds["pub"].limit("*", 0)
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    world.slurm.finish(1)
    assert {row.scope for row in world.ledger.exclusions.holds()} == {"pub1", "pub2", "pub3"}
    world.clouds["pub"].limit("*", None)
    set_back(world, 36000.0)
    world.advance(600)
    assert world.ledger.exclusions.holds() == ()
    assert world.ledger.exclusions.cool_downs(world.site.now()) == ()
    assert not [n for n in ("pub1", "pub2", "pub3") if "DRAIN" in world.slurm.node(n).states]


@pytest.mark.parametrize("step", [STEP_BACK, -STEP_BACK])
def test_a_node_is_given_up_in_time_whatever_the_clock_says(world: World, step: float) -> None:
    world.hears = False  # its slurmd never comes up
    world.slurm.submit(1, ("pub1",), requeue=False)
    world.advance(60)
    set_back(world, step)
    limit = given_up_after(world.config.timings.resume_timeout)
    world.advance(limit - 70)
    assert "boot-failed" not in world.kinds("pub1")
    world.advance(20)
    assert "boot-failed" in world.kinds("pub1")
    assert 1 in world.slurm.queue()
    assert not [kind for kind, *_ in world.requests if kind == "resume-fail"]


@pytest.mark.parametrize("step", [0.0, STEP_BACK])
def test_a_machine_that_is_gone_is_missed_whatever_the_clock_says(
    world: World, step: float
) -> None:
    machine = up(world)
    set_back(world, step)
    world.clouds["pub"].take(machine)
    world.hears = False  # SlurmdTimeout is long
    world.slurm.set_node("pub1", "ALLOCATED", "CLOUD", "NOT_RESPONDING")
    timings = world.config.timings
    world.advance((Thresholds().max_missed_listings + 1) * timings.reconcile_interval)
    assert reasons(world, "ended") == ["the cloud did not list it 3 times in a row"]
    assert world.ledger.machines.live() == ()


def test_a_machine_that_cannot_be_ended_does_not_keep_a_lost_request_from_being_made_up(
    world: World,
) -> None:
    old = up(world)
    world.accounts["pub"].protected.add(old)
    off(world)
    lose(world, "resume")
    world.slurm.submit(2, ("pub1",), requeue=False)
    until_runs(world, 2, within=world.config.timings.resume_timeout)
    assert old in world.machines_of("pub1")
    assert len(world.machines_of("pub1")) == 2


def test_a_machine_that_cannot_be_ended_does_not_hide_the_loss_of_the_next(world: World) -> None:
    world.slurmd_timeout = 1e9
    world.clouds["pub"].tells_losses = True
    old = up(world)
    world.accounts["pub"].protected.add(old)
    off(world)
    world.slurm.submit(2, ("pub1",))
    until_runs(world, 2, within=120)
    (new,) = (i for i in world.machines_of("pub1") if i != old)
    world.clouds["pub"].take(new)
    world.advance(2 * world.config.timings.reconcile_interval)
    assert world.slurm.queue()[2].restarts == 1


def test_a_machine_that_does_not_end_is_told_of_whatever_the_clock_says(world: World) -> None:
    world.accounts["pub"].protected.add(up(world))
    off(world)
    world.advance(60)
    set_back(world)
    world.advance(120)
    (told,) = [h.error for h in world.ledger.health.all() if h.name == "paid machines"]
    assert told is not None
    assert "its cloud has not confirmed it" in told


@pytest.mark.parametrize("step", [0.0, 30.0])
def test_the_longest_cool_down_outlives_a_small_step_of_the_clock(
    world: World, step: float
) -> None:
    longest = world.config.timings.max_cooldown
    until = world.site.now() + longest
    world.ledger.exclusions.add(
        Exclusion(
            kind=COOL_DOWN,
            scope="pub/*/*/*",
            until=until,
            code="x",
            cause=Quoted(text="y"),
            count=9,
        )
    )
    set_back(world, step + 0.01)
    end_far_exclusions(world.site, world.ledger.exclusions.all())
    (cool_down,) = world.ledger.exclusions.cool_downs(world.site.now())
    assert cool_down.until == until
    set_back(world, 120.0 + world.config.timings.capacity_cooldown)
    end_far_exclusions(world.site, world.ledger.exclusions.all())
    assert world.ledger.exclusions.cool_downs(world.site.now()) == ()
