"""An array of which some tasks have ended or run: the change of the others is no refusal."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.small_slurm import SmallSlurm
from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.update_errors import is_made_for_the_rest, only_started
from tests.patience import patience

ENDED, RUNS = "7_0: Job has already finished", "7_1: Job is no longer pending execution"


@pytest.mark.parametrize(
    ("lines", "is_made"),
    [
        ((ENDED, "7_2-9: No error"), True),
        ((ENDED, RUNS, "7_2-9: No error"), True),
        ((ENDED, RUNS), False),
        ((ENDED, "7_2-9: Invalid partition name specified"), False),
        ((), False),
    ],
)
def test_an_update_is_made_if_only_tasks_that_started_refuse(
    lines: tuple[str, ...], is_made: bool
) -> None:
    error = SlurmError(("scontrol", "update", "jobid=7"), 1, "\n".join(lines))
    assert is_made_for_the_rest(error) == is_made


def test_a_job_that_has_finished_has_started() -> None:
    assert only_started(SlurmError(("scontrol", "update", "jobid=7"), 1, ENDED))


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallSlurm]:
    with SmallSlurm(static=1, cloud=1, prolog=False) as running:
        yield running


CHANGES: dict[str, Callable[[SlurmCli, int], None]] = {
    "set_partitions": lambda client, job: client.set_partitions(job, ("cloud",)),
    "change_pending": lambda client, job: client.change_pending([job], begin_in=120.0),
    "set_requeue": lambda client, job: client.set_requeue(job, requeue=True),
    "exclude_nodes": lambda client, job: client.exclude_nodes(job, ("st1",)),
    "hold": lambda client, job: client.hold(job),
    "release": lambda client, job: client.release(job),
}


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged need root")
def test_on_real_slurm_the_waiting_tasks_are_changed(cluster: SmallSlurm) -> None:
    script = "test $SLURM_ARRAY_TASK_ID = 0 || sleep 300"
    cluster.command("sbatch", "-o", "/dev/null", "--array=0-4%2", f"--wrap={script}")
    client = cluster.client()
    deadline = time.monotonic() + patience(60)

    def rest() -> SlurmJob | None:
        jobs = client.jobs(ended=True)
        has_ended = any(job.has_ended for job in jobs)
        runs = any("RUNNING" in job.states for job in jobs)
        waiting = [job for job in jobs if job.tasks > 1]
        return waiting[0] if has_ended and runs and waiting else None

    while (waiting := rest()) is None:
        assert time.monotonic() < deadline, client.jobs(ended=True)
    for change in CHANGES.values():
        change(client, waiting.id)
    client.set_admin_comment(waiting.id, "why")
    (changed,) = [job for job in client.jobs() if job.id == waiting.id]
    assert changed.partitions == ("cloud",)


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged need root")
def test_on_real_slurm_printed_commands_leave_the_running_tasks_alone(cluster: SmallSlurm) -> None:
    cluster.command("scancel", "--user=root")
    command = ("sbatch", "-o", "/dev/null", "-t", "60", "--hold", "--wrap=sleep 300")
    array = int(cluster.command(*command, "--parsable", "--array=0-9:3%1"))
    other = cluster.command(*command, "--parsable").strip()
    cluster.command("scontrol", "release", str(array))
    client = cluster.client()
    deadline = time.monotonic() + patience(60)

    def tasks(state: str) -> list[SlurmJob]:
        return [job for job in client.jobs() if job.array == array and state in job.states]

    while not (running := tasks("RUNNING")):
        assert time.monotonic() < deadline, client.jobs()
    (rest,) = tasks("PENDING")
    (name,) = shlex.split(rest.shell_label)
    cluster.command("scontrol", "update", f"jobid={name},{other}", "timelimit=30")
    assert {job.limit for job in tasks("PENDING")} == {1800}
    cluster.command("scancel", name, other)
    while tasks("PENDING"):
        assert time.monotonic() < deadline, client.jobs()
    assert [(job.id, job.limit) for job in tasks("RUNNING")] == [(running[0].id, 3600)]
