"""Nodes that Slurm itself takes out of service: told, counted, given another machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.cli.operate.doctor import diagnose
from slurm_elastic.config import Timings
from slurm_elastic.controller.recycling import recycle
from slurm_elastic.controller.snapshot import PROOF_AGE_S
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import COOL_DOWN
from slurm_elastic.policies.actions import Recycle
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.controller.world import BOOT, World

LOW = "Low RealMemory (reported:2987 < 90.00% of configured:4096)"
REMEDY = "set `real_memory: 2900` in the pool (slurmd reports 2987 MiB)"
LIMIT = 3


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    timings = Timings(
        suspend_time=90_000, suspend_timeout=30, resume_timeout=100, reconcile_interval=10,
        max_boot_failures=LIMIT, boot_cooldown=7200, capacity_cooldown=20,
    )  # fmt: skip
    made = World(tmp_path, timings=timings)
    yield made
    made.close()


def up(world: World, node: str, job: int) -> str:
    """A job's machine is there; its id."""
    world.slurm.submit(job, (node,))
    world.advance(BOOT + 20, step=1)
    assert phase(world.slurm.node(node)) is Phase.UP
    (machine,) = world.machines_of(node)
    return machine


def take_out(world: World, node: str, reason: str, *states: str, user: str = "slurm") -> None:
    """As slurmctld does: its jobs are requeued, unless it only drains."""
    if "ALLOCATED" not in states:
        world.slurm.requeue_jobs_of(node)
    world.slurm.set_node(node, *states, "CLOUD", reason=reason, reason_user=user)


def reasons(world: World, subject: str) -> str:
    return "\n".join(f"{d.kind}: {d.reason}" for d in world.ledger.decisions.about(subject))


def failures(world: World, pool: str = "burst") -> int:
    return next((b.count for b in world.ledger.exclusions.breakers() if b.scope == pool), 0)


def test_a_rebooted_machine_is_replaced_and_counts_against_nobody(world: World) -> None:
    machine = up(world, "pub1", 1)
    take_out(world, "pub1", "Node unexpectedly rebooted", "DOWN")
    world.advance(30, step=1)
    assert machine not in world.machines_of("pub1")
    told = reasons(world, "pub1")
    assert f"node-failed: {machine}: Node unexpectedly rebooted: the machine rebooted" in told
    assert told.count("node-failed") == 1
    assert failures(world) == 0
    world.advance(200)
    assert "RUNNING" in world.slurm.queue()[1].states, "its job has another machine"
    assert "DOWN" not in world.slurm.node("pub1").states
    assert "node-failed" in reasons(world, "job:1")


@pytest.mark.parametrize("reason", ["Kill task failed", "Epilog error", "Duplicate jobid"])
def test_the_jobs_of_a_draining_node_end_before_its_machine(world: World, reason: str) -> None:
    machine = up(world, "pub1", 1)
    take_out(world, "pub1", reason, "ALLOCATED", "DRAIN", user="root")
    world.advance(300)
    assert world.machines_of("pub1") == [machine]
    world.slurm.finish(1)
    world.slurm.set_node("pub1", "IDLE", "DRAIN", "CLOUD")
    world.advance(30, step=1)
    assert machine not in world.machines_of("pub1")
    world.advance(100)
    assert "DRAIN" not in world.slurm.node("pub1").states


@pytest.mark.parametrize(("reason", "user"), [(LOW, "ann"), ("my own drain", "root")])
def test_a_persons_drain_stays(world: World, reason: str, user: str) -> None:
    machine = up(world, "pub1", 1)
    world.slurm.finish(1)
    take_out(world, "pub1", reason, "IDLE", "DRAIN", user=user)
    world.advance(900)
    assert world.machines_of("pub1") == [machine]
    node = world.slurm.node("pub1")
    assert ("DRAIN" in node.states, node.reason) == (True, reason)
    assert "node-failed" not in reasons(world, "pub1")


def refuse_all(world: World) -> None:
    """slurmctld drains each machine of pool ``burst`` as it registers, and requeues its job."""
    register = world.slurm.register

    def refused(name: str, address: str) -> bool:
        done = register(name, address)
        if done and name.startswith("pub"):
            take_out(world, name, LOW, "IDLE", "DRAIN", "INVALID_REG")
        return done

    world.slurm.register = refused  # type: ignore[method-assign]


def test_a_pool_that_promises_too_much_stops_buying_and_its_jobs_go_elsewhere(
    world: World,
) -> None:
    refuse_all(world)
    for job in (1, 2):
        world.slurm.submit(job, ("pub1", "pub2", "op1", "op2"))
    world.advance(600)
    assert all("RUNNING" in j.states for j in world.slurm.queue().values())
    assert {n for j in world.slurm.queue().values() for n in j.nodes} <= {"op1", "op2"}
    world.slurm.submit(9, ("pub1", "pub2", "pub3"))
    world.advance(900)
    (breaker,) = world.ledger.exclusions.breakers()
    assert breaker.until is not None
    assert REMEDY in str(breaker.cause)
    bought = len(world.ledger.machines.live(ended_since=0.0))
    world.advance(600)
    assert len(world.ledger.machines.live(ended_since=0.0)) == bought, (
        "none is bought while it rests"
    )
    assert bought <= LIMIT + 2 + 2, "as many as its breaker allows, and those of the other pool"
    assert world.alive("pub") == []
    assert REMEDY in reasons(world, "pool:burst")
    assert "PENDING" in world.slurm.queue()[9].states
    findings = [f for p in diagnose(world.config, world.slurm, time.time(), quick=True).parts
                for f in p.findings]  # fmt: skip
    (paused,) = [f for f in findings if f.subject == "pool burst" and f.advice]
    assert paused.advice == f"{REMEDY}; then slurm-elastic clear burst"


def test_a_machine_is_counted_once_also_where_slurm_cannot_be_changed(world: World) -> None:
    up(world, "pub1", 1)
    take_out(world, "pub1", LOW, "IDLE", "DRAIN", "INVALID_REG")
    update = world.slurm.update_nodes
    refused = SlurmError(("scontrol",), None, "no answer")

    def hangs(*_: object, **__: object) -> None:
        raise refused

    world.slurm.update_nodes = hangs  # type: ignore[method-assign]
    world.advance(60)
    world.slurm.update_nodes = update  # type: ignore[method-assign]
    world.advance(60)
    assert world.machines_of("pub1") == []
    assert reasons(world, "pub1").count("node-failed") == 1
    assert failures(world) == 1


def test_machines_whose_prolog_fails_count_though_each_has_registered(world: World) -> None:
    """To register proves nothing then; to stay in service for a while does."""
    for count, node in enumerate(("pub1", "pub2"), 1):
        up(world, node, count)
        take_out(world, node, "Prolog error", "IDLE", "DRAIN")
        world.slurm.remove_job(count)
        world.advance(60)
        assert failures(world) == count
        world.advance(240)
    world.ledger.exclusions.readmit(COOL_DOWN, "pub/*/*/*/burst")
    up(world, "pub3", 7)
    assert failures(world) == 2
    world.advance(PROOF_AGE_S + 60)
    assert failures(world) == 0


def test_machines_that_serve_until_slurm_suspends_them_prove_that_their_pool_works(
    tmp_path: Path,
) -> None:
    """Short jobs and a short SuspendTime: none is ever in service for longer."""
    timings = Timings(
        suspend_time=120, suspend_timeout=30, resume_timeout=100, reconcile_interval=10,
        max_boot_failures=2, boot_cooldown=200, capacity_cooldown=20,
    )  # fmt: skip
    world = World(tmp_path, timings=timings)
    for count, node in enumerate(("pub1", "pub2"), 1):
        up(world, node, count)
        take_out(world, node, "Prolog error", "IDLE", "DRAIN")
        world.slurm.remove_job(count)
        world.advance(60)
        world.ledger.exclusions.readmit(COOL_DOWN, "pub/*/*/*/burst")
    assert failures(world) == 2
    world.advance(300)
    up(world, "pub3", 7)
    assert failures(world) == 2, "to register proves nothing"
    world.slurm.finish(7)
    world.advance(200)
    assert world.machines_of("pub3") == []
    assert failures(world) == 0
    assert "breaker-closed" in reasons(world, "pool:burst")
    world.close()


def test_a_job_that_runs_when_its_node_is_read_once_more_keeps_its_machine(world: World) -> None:
    machine = up(world, "pub1", 1)
    world.slurm.set_node(
        "pub1", "ALLOCATED", "DRAIN", "CLOUD", reason="Kill task failed", reason_user="slurm"
    )
    site = world.site
    recycle(site, "pub", [Recycle(node="pub1", cause=Quoted(text="as of before"))], "reconcile")
    assert world.machines_of("pub1") == [machine]
    assert "POWER_DOWN" not in world.slurm.node("pub1").states
