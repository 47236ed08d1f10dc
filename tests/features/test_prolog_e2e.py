"""The programs and the prolog server on a real slurmctld."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.small_slurm import SmallSlurm, wait_until
from slurm_elastic.features.power.prolog import PrologServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged need root"),
]
NEVER = 10_000.0
# Each test has nodes of its own: others may be up already, or never come up.


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallSlurm]:
    with SmallSlurm(cloud=8, boot=1.0) as small:
        yield small


@pytest.fixture
def daemon(cluster: SmallSlurm) -> Iterator[PrologServer]:
    path = cluster.state / "prolog.sock"
    server = PrologServer(path, cluster.client(), threading.Event())
    server.start()
    shutil.chown(path, "slurm")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def tidy(cluster: SmallSlurm) -> Iterator[None]:
    yield
    cluster.boot = 1.0
    cluster.write_settings()
    cluster.command("scancel", "--user=root")
    wait_until(lambda: not cluster.command("squeue", "-h"))


def started_by_its_prolog(cluster: SmallSlurm, job: int) -> bool:
    """Whether slurmctld started the job when the prolog returned, and not at its 30 s tick."""
    log = cluster.log.read_text()
    return f"prolog_running_decr: Configuration for JobId={job} is complete" in log


def test_a_job_starts_when_its_nodes_are_up(cluster: SmallSlurm, daemon: PrologServer) -> None:
    job = cluster.submit("--partition=cloud", "--nodelist=pub[1-2]")
    wait_until(lambda: daemon.waiting() == (job,))
    wait_until(lambda: cluster.started(job))
    assert started_by_its_prolog(cluster, job)
    assert daemon.waiting() == ()
    (request,) = [r for r in cluster.requests if job in r.jobs]
    assert (request.kind, len(request.nodes), request.note) == ("resume", 2, None)


def test_a_static_job_does_not_wait(
    cluster: SmallSlurm, daemon: PrologServer, tmp_path: Path
) -> None:
    cluster.write_settings("python=/nonexistent/never-started")
    for partition in ("static", "static,cloud"):
        job = cluster.submit(f"--partition={partition}")
        wait_until(lambda: cluster.started(job))  # noqa: B023 - called at once
        assert cluster.node_of(job).startswith("st")


def test_a_job_of_several_partitions_waits_in_the_cloud(
    cluster: SmallSlurm, daemon: PrologServer
) -> None:
    static = [cluster.submit("--partition=static") for _ in range(2)]
    wait_until(lambda: all(cluster.started(job) for job in static))
    job = cluster.submit("--partition=static,cloud")
    wait_until(lambda: cluster.started(job))
    assert cluster.node_of(job).startswith("pub")
    assert started_by_its_prolog(cluster, job)


def test_a_cancelled_job_leaves_no_prolog(cluster: SmallSlurm, daemon: PrologServer) -> None:
    cluster.boot = NEVER
    job = cluster.submit("--partition=cloud", "--nodelist=pub4")
    wait_until(lambda: daemon.waiting() == (job,))
    cluster.command("scancel", str(job))
    wait_until(lambda: daemon.waiting() == ())
    wait_until(lambda: cluster.job_state(job) == "CANCELLED")


def test_a_requeued_job_is_not_held_by_its_prolog(
    cluster: SmallSlurm, daemon: PrologServer
) -> None:
    cluster.boot = NEVER
    job = cluster.submit("--partition=cloud", "--nodelist=pub5")
    wait_until(lambda: daemon.waiting() == (job,))
    cluster.command("scontrol", "requeue", str(job))
    wait_until(lambda: daemon.waiting() == ())
    wait_until(lambda: cluster.job_state(job) == "PENDING")


def test_a_failed_node_lets_the_job_go(cluster: SmallSlurm, daemon: PrologServer) -> None:
    cluster.boot = NEVER
    job = cluster.submit("--partition=cloud", "--nodelist=pub6")
    wait_until(lambda: daemon.waiting() == (job,))
    node = cluster.node_of(job)
    slurm = cluster.client()
    wait_until(lambda: "POWERING_UP" in slurm.nodes()[node].states)
    slurm.update_nodes([node], state="down", reason="test")
    wait_until(lambda: daemon.waiting() == ())


def test_slurmctld_restarted_while_a_job_waits(cluster: SmallSlurm, daemon: PrologServer) -> None:
    cluster.boot = 15.0
    job = cluster.submit("--partition=cloud", "--nodelist=pub7")
    wait_until(lambda: daemon.waiting() == (job,))
    cluster.stop_slurmctld()
    wait_until(lambda: daemon.waiting() == ())
    cluster.start_slurmctld()
    # slurmctld runs the prolog of a configuring job again.
    wait_until(lambda: daemon.waiting() == (job,))
    wait_until(lambda: cluster.started(job), timeout=240)
    assert started_by_its_prolog(cluster, job)


def test_without_the_daemon_a_job_starts_as_slurm_would_start_it(cluster: SmallSlurm) -> None:
    job = cluster.submit("--partition=cloud", "--nodelist=pub8")
    wait_until(lambda: cluster.started(job), timeout=240)
    assert "Restarts=0" in cluster.command("scontrol", "show", "job", str(job))


def test_a_site_prolog_that_fails_requeues_the_job(
    cluster: SmallSlurm, daemon: PrologServer
) -> None:
    program = cluster.dir / "site-prolog"
    program.write_text(f"#!/bin/sh\n[ -e {cluster.dir}/out/again ] || exit 1\n")
    program.chmod(0o755)
    cluster.write_settings(f"site_prolog={program}")
    job = cluster.submit("--partition=static")
    wait_until(lambda: "Restarts=1" in cluster.command("scontrol", "show", "job", str(job)))
    assert cluster.started(job) is None
