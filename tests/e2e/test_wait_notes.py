"""On real Slurm: a job's AdminComment says why it waits for us, beside the text of others."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurm_elastic.model.admin_comment import NoteKind, note_of
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import ELASTIC, PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.release]


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(static_nodes=1, drop=("onprem",))


def elastic(site: Sandbox, *words: str) -> str:
    return site.run([*ELASTIC, *words]).stdout


def comment(site: Sandbox, job: int) -> str:
    found = site.slurm.admin_comments([job])
    assert job in found, (found, site.run(["squeue", "--states=all"]).stdout)
    return found[job]


def noted(site: Sandbox, job: int) -> str:
    return note_of(comment(site, job), NoteKind.WAIT)


def test_a_job_says_why_it_waits_until_it_starts(site: Sandbox) -> None:
    elastic(site, "pause", "aws", "--reason", "quota")
    job = site.submit("sleep 30", "--partition=aws")
    site.run(["scontrol", "update", f"jobid={job}", "admincomment=ticket 7, a=b"])
    site.wait_for(lambda: noted(site, job), PATIENCE, "the job says why it waits")
    (verdict,) = {
        one["reason"]
        for one in json.loads(elastic(site, "explain", str(job), "--json"))["verdicts"]
        if one["cloud"] == "aws"
    }
    assert noted(site, job) == f"aws: {verdict}"
    assert comment(site, job).startswith("ticket 7, a=b [slurm-elastic: aws: ")
    shown = site.run(
        ["squeue", "--noheader", f"--jobs={job}", "--Format=admin_comment:300"], user="nobody"
    ).stdout
    assert verdict in shown, "squeue shows it, also of 22.05"
    site.daemon_stop()
    site.daemon_start()
    elastic(site, "resume", "aws")
    site.wait_job(job, "RUNNING")
    site.wait_for(lambda: comment(site, job) == "ticket 7, a=b", PATIENCE, "the note is gone")


def test_the_tasks_of_an_array_lose_their_notes_when_they_start(site: Sandbox) -> None:
    elastic(site, "pause", "aws", "--reason", "quota")
    job = site.submit("sleep 900", "--partition=aws", "--array=1-3", "--exclusive")
    site.wait_for(
        lambda: any(site.slurm.admin_comments([job]).values()), PATIENCE, "it says why it waits"
    )
    elastic(site, "resume", "aws")
    site.wait_for(
        lambda: sum("RUNNING" in one.states for one in site.jobs() if one.array == job) == 3,
        PATIENCE, "all tasks run",
    )  # fmt: skip
    site.wait_for(
        lambda: not any(site.slurm.admin_comments([job]).values()), PATIENCE, "no note is left"
    )
    site.run(["scancel", str(job)])
