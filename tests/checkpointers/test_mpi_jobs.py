"""MPI jobs of several nodes, moved as a whole: their results are those of a run without saves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from needs import ROOT_PART
from slurm_hosts import Hosts, why_not

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.testing.saving import save
from tests.checkpointers.mpi_world import MPIS, NEXT_STEPS, STEPS, MpiWorld, dmtcp

REASON = why_not(*(f"mpicc.{mpi}" for mpi in MPIS))
pytestmark = [
    ROOT_PART, pytest.mark.release, pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(REASON), reason=REASON),
]  # fmt: skip


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    with dmtcp(is_changed=True) as commands:
        yield commands


@pytest.mark.parametrize("mpi", MPIS)
def test_a_job_of_two_nodes_moves_twice_to_two_others(commands: Path, mpi: str) -> None:
    with Hosts(4, commands) as hosts:
        world = MpiWorld(hosts, mpi)
        expected = world.expected(4)
        with world.ckptman():
            job = world.submit(2)
            world.wait(lambda: world.lines() > 10, "the job works")
            first = world.nodes(job)
            world.move(job, first)
            world.withdraw(first)
            world.move(job, world.nodes(job))
            assert world.nodes(job) == first
            hosts.wait_for(job, "COMPLETED", "FAILED")
        check(world, job, expected, ranks=4)


@pytest.mark.parametrize("mpi", MPIS)
def test_a_job_of_four_nodes_moves_twice(commands: Path, mpi: str) -> None:
    with Hosts(5, commands) as hosts:
        world = MpiWorld(hosts, mpi)
        expected = world.expected(8)
        with world.ckptman():
            job = world.submit(4)
            world.wait(lambda: world.lines() > 10, "the job works")
            world.move(job, ["n1"])
            world.withdraw(["n1"])
            world.move(job, ["n3"])
            hosts.wait_for(job, "COMPLETED", "FAILED")
        check(world, job, expected, ranks=8)


def check(world: MpiWorld, job: int, expected: str, *, ranks: int) -> None:
    """Its result is right, and each line of its output is there once."""
    output = (world.hosts.user / f"out-{job}").read_text()
    assert world.hosts.job(job)["JobState"] == "COMPLETED", output
    assert (world.hosts.user / "result").read_text() == expected
    # sudo's where root may not set limits, two at a time perhaps; our own words about the moves and a lost node;
    # OpenMPI's about nobody's shell.
    others = ("sudo", ": setrlimit", "setrlimit", "slurmstepd-", "slurm-elastic: ", "[n")
    lines = [line for line in output.splitlines() if not line.startswith(others)]
    next_output = (world.hosts.user / "next-output").read_text()
    assert lines[-2:] == ["code 0", "code 0"], next_output
    # The next program of the script runs on the nodes to which the job was moved.
    shortened = "".join(expected.splitlines(keepends=True)[:NEXT_STEPS])
    assert (world.hosts.user / "next-result").read_text() == shortened, next_output
    steps = [line for line in lines if line.startswith("step ")]
    assert steps == [f"step {n} of {ranks} ranks" for n in range(0, STEPS, 10)]
    ends = [line for line in lines if line.startswith("rank ")]
    assert sorted(line.split()[1] for line in ends) == [str(n) for n in range(ranks)]
    assert len(lines) == 2 + len(steps) + len(ends), output
    left = {path.name for path in world.hosts.user.iterdir()}
    assert not {name for name in left if name.startswith((".slurm-elastic", "dmtcp"))}


def test_a_dmtcp_without_the_changes_is_found_out_before_the_first_save(commands: Path) -> None:
    with dmtcp(is_changed=False) as unchanged, Hosts(2, unchanged) as hosts:
        world = MpiWorld(hosts, "mpich")
        job = world.submit(2)
        world.wait(lambda: world.lines() > 10, "the job works")
        world.wait(lambda: world.status(job), "the root part's answer")
        with pytest.raises(CheckpointError, match="DMTCP lacks a change"):
            save(world, world.run_of(job), stop=True)
        world.works()


@pytest.mark.parametrize("mpi", MPIS)
def test_a_node_lost_in_the_middle_of_a_save_costs_the_work_since_the_last_image(
    commands: Path, mpi: str
) -> None:
    with Hosts(3, commands) as hosts:
        world = MpiWorld(hosts, mpi)
        expected = world.expected(4)
        job = world.submit(2)
        world.wait(lambda: world.lines() > 10, "the job works")
        image = save(world, world.run_of(job))
        world.works()
        with ThreadPoolExecutor() as threads:
            saving = threads.submit(save, world, world.run_of(job), stop=True)
            world.wait((hosts.user / f".slurm-elastic-{job}.ckpt").exists, "the save begins")
            hosts.cut("n2")
            with pytest.raises(CheckpointError):
                saving.result()
        goes_on(world, job, expected, image.number, attempt=1)


@pytest.mark.parametrize("mpi", MPIS)
def test_a_node_lost_in_the_middle_of_a_restart_leaves_the_image_for_the_next(
    commands: Path, mpi: str
) -> None:
    with Hosts(4, commands) as hosts:
        world = MpiWorld(hosts, mpi)
        expected = world.expected(4)
        job = world.submit(2)
        world.wait(lambda: world.lines() > 10, "the job works")
        image = save(world, world.run_of(job), stop=True)
        world.requeue(job, ["n1", "n2"])
        # Nothing is restored yet.
        world.wait(lambda: world.attends("n4"), "the restart")
        hosts.cut("n4")
        goes_on(world, job, expected, image.number, attempt=2)


def goes_on(world: MpiWorld, job: int, expected: str, image: int, *, attempt: int) -> None:
    """Slurm finds the node lost and requeues the job, which continues from that image to its end."""
    world.wait(lambda: world.attempt(job) >= attempt, "Slurm requeues the job")
    world.hosts.wait_for(job, "PENDING", "RUNNING")
    if world.hosts.job(job)["JobState"] == "PENDING":
        world.hosts.scontrol("update", f"jobid={job}", "excnodelist=")
        world.now(job)
    world.wait(lambda: world.origin(job) is not None, "the next run")
    origin = world.origin(job)
    assert origin is not None
    assert (origin.image, origin.why) == (image, ""), world.told()
    world.hosts.wait_for(job, "COMPLETED", "FAILED")
    check(world, job, expected, ranks=4)
