"""``data: copy`` on real Slurm: machines that share no directory with the head."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.local import local_processes, records
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.apart import Apart, apart, why_not
from tests.e2e.world import ELASTIC, ledger

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
]
SITE = {
    "static_nodes": 0,
    "drop": ("aws",),
    "elastic": {
        "clouds": [{"name": "onprem", "data": "copy"}],
        "pools": [{"name": "op", "nodes": "op[1-4]"}],
    },
}


@pytest.fixture(scope="module")
def made(sandbox: Callable[..., Sandbox]) -> Iterator[tuple[Sandbox, Apart]]:
    with apart(sandbox, SITE) as both:
        yield both


@pytest.fixture(scope="module")
def site(made: tuple[Sandbox, Apart]) -> Sandbox:
    return made[0]


def place_for(site: Sandbox, name: str) -> Path:
    """A directory of nobody's on the head."""
    place = site.work / name
    place.mkdir()
    shutil.chown(place, "nobody", "nogroup")
    return place


def fill(place: Path, **files: str) -> None:
    for name, text in files.items():
        (place / name).write_text(text)
        shutil.chown(place / name, "nobody", "nogroup")


def submit(site: Sandbox, place: Path, script: str, *options: str) -> int:
    return site.submit(script, "--partition=onprem", f"--chdir={place}", *options)


def states(site: Sandbox, job: int) -> list[str]:
    book = ledger(site)
    try:
        return [str(copy.state) for copy in book.copies.of(job)]
    finally:
        book.close()


def test_a_job_finds_its_files_and_leaves_its_results(site: Sandbox) -> None:
    place = place_for(site, "first")
    fill(place, data="42\n", kept="before\n")
    (place / "deep").mkdir()
    shutil.chown(place / "deep", "nobody", "nogroup")
    fill(place / "deep", more="1 2 3\n")
    os.symlink("data", place / "link")
    os.mkfifo(place / "pipe")
    job = submit(
        site, place,
        "[ -e pipe ] && echo shared; cat link deep/more; echo changed >> kept; mkdir new; echo made > new/result; echo sad >&2",
    )  # fmt: skip
    site.wait_job(job)
    site.wait_for(lambda: states(site, job) == ["back"], 60, "the files are back")
    assert (place / f"slurm-{job}.out").read_text() == "42\n1 2 3\nsad\n"
    assert (place / "kept").read_text() == "before\nchanged\n"
    assert (place / "new" / "result").read_text() == "made\n"
    assert (place / "new" / "result").owner() == "nobody"
    assert sorted(os.listdir(place)) == sorted(
        ["data", "kept", "deep", "link", "new", "pipe", f"slurm-{job}.out"]
    )


def kinds(site: Sandbox, job: int) -> list[str]:
    book = ledger(site)
    try:
        return [d.kind for d in book.decisions.about(f"job:{job}")]
    finally:
        book.close()


def machines_of(site: Sandbox, job: int) -> list[str]:
    book = ledger(site)
    try:
        return [copy.machine for copy in book.copies.of(job)]
    finally:
        book.close()


def settled(site: Sandbox, job: int, *expected: str) -> None:
    site.wait_for(lambda: states(site, job) == list(expected), 120, f"job {job}: {expected}")


def test_a_requeued_job_keeps_its_output_and_its_results(site: Sandbox) -> None:
    place = place_for(site, "again")
    script = """#!/bin/bash
echo "run ${SLURM_RESTART_COUNT:-0} has $(cat progress 2>/dev/null)"
echo "${SLURM_RESTART_COUNT:-0}" >> progress
[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || { touch waits; sleep 300; }
"""
    job = submit(site, place, script, "--output=of-%j.txt", "--error=errors")
    output = place / f"of-{job}.txt"
    site.wait_for(
        lambda: output.exists() and "run 0" in output.read_text(),
        120,
        "its output comes while it runs",
    )
    site.run(["scontrol", "requeue", str(job)])
    site.wait_for(lambda: (place / "progress").exists(), 120, "what it wrote is back")
    site.wait_for(lambda: hurry(site) or job in done(site, {job: place}), 120, "it runs again")
    settled(site, job, "back", "back")
    text = output.read_text()
    assert text.index("run 0 has \n") < text.index("run 1 has 0\n")
    assert text.count("run ") == 2
    assert (place / "progress").read_text() == "0\n1\n"
    assert "REQUEUE" in (place / "errors").read_text(), "slurmstepd's words came, too"


def test_what_changed_on_both_sides_is_kept_twice(site: Sandbox) -> None:
    place = place_for(site, "both")
    fill(place, one="old\n", two="old\n")
    go = site.layout.dir / "go"
    job = submit(
        site, place, f"echo of the job > one; touch begun; until [ -e {go} ]; do sleep 0.2; done"
    )
    site.wait_job(job, "RUNNING")
    (place / "one").write_text("of the head\n")
    (place / "two").unlink()
    go.touch()
    site.wait_job(job)
    settled(site, job, "back")
    assert (place / "one").read_text() == "of the head\n"
    assert (place / f"one.job-{job}").read_text() == "of the job\n"
    assert not (place / "two").exists(), "the job did not change it"


def test_too_large_a_directory_holds_the_job_and_says_so(site: Sandbox) -> None:
    place = place_for(site, "large")
    fill(place, data="x")
    os.truncate(place / "data", 11 << 30)
    job = submit(site, place, "true")
    site.wait_for(lambda: site.job(job)["Reason"] == "JobHeldUser", 120, "it is held")
    site.wait_for(lambda: "AdminComment" in site.job(job), 120, "the hold has its note")
    comment = site.job(job)["AdminComment"]
    assert "[slurm-elastic data: held: the files of" in comment
    assert "copy.size_limit: submit the job from a smaller directory" in comment
    assert "copy-refused" in kinds(site, job)
    assert states(site, job) == ["refused"]
    os.truncate(place / "data", 1)
    site.run(["scontrol", "release", str(job)])
    site.wait_for(lambda: hurry(site) or job in done(site, {job: place}), 120, "it runs")
    settled(site, job, "refused", "back")


def test_no_space_on_the_machine_is_a_reason_that_can_be_read(site: Sandbox) -> None:
    place = place_for(site, "full")
    fill(place, data="x" * (70 << 20))
    job = submit(site, place, "true")
    site.wait_for(lambda: "copy-retried" in kinds(site, job), 120, "it is told")
    site.run(["scancel", str(job)])
    site.wait_for(lambda: site.job(job)["JobState"] == "CANCELLED", 120, "it is over")
    (place / "data").unlink()


def test_thirty_jobs_with_lost_machines_and_a_head_that_restarts(site: Sandbox) -> None:
    script = """#!/bin/bash
for i in $(seq 1 20); do echo "$SLURM_JOB_ID line $i"; sleep 0.2; done
cp input "result-$SLURM_JOB_ID"; mkdir -p "d/$SLURM_JOB_ID"; md5sum < input > "d/$SLURM_JOB_ID/sum"
"""
    places = {}
    for number in range(30):
        # Ten directories are shared by two jobs, which may run at the same time on one machine.
        name = f"many-{number % 20}"
        place = site.work / name
        if not place.exists():
            place_for(site, name)
            fill(place, input=f"{number % 20}\n" * 1000)
        places[submit(site, place, script, "--requeue", "--mem=100")] = place
    site.wait_for(lambda: len(done(site, places)) >= 5, 300, "some have ended")
    site.daemon_kill()
    site.daemon_start()
    site.wait_for(lambda: len(done(site, places)) >= 9, 300, "more have ended")
    # The jobs run in waves: between two of them all wait for their files.
    site.wait_for(lambda: len(running_nodes(site)) >= 3, 120, "three nodes are busy", 0.2)
    running = running_nodes(site)
    for node in running[:2]:
        site.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=lost"])
    gone = power_off(site, running[-1])
    site.daemon_stop()
    site.daemon_start()
    site.wait_for(lambda: hurry(site) or len(done(site, places)) == 30, 600, "all have ended", 1.0)
    for job, place in places.items():
        site.wait_for(lambda: set(states(site, job)) <= {"back", "lost"}, 120, f"{job} is settled")  # noqa: B023
        text = (place / f"slurm-{job}.out").read_text()
        # Between them ckptman's words about a move.
        lines = [line for line in text.splitlines() if line.startswith(f"{job} line ")]
        expected = [f"{job} line {i}" for i in range(1, 21)]
        if states(site, job)[-1] == "lost":
            # Its machine was gone before its files were back: the output up to then is there.
            assert machines_of(site, job)[-1] == gone
            assert lines == expected[: len(lines)]
            continue
        assert lines[-20:] == expected
        assert (place / f"result-{job}").read_text() == (place / "input").read_text()
        assert (place / "d" / str(job) / "sum").stat().st_size > 30
        assert not list(place.glob("*.job-*")), "nothing was taken for a conflict"


def running_nodes(site: Sandbox) -> list[str]:
    return sorted({job.nodes[0] for job in site.jobs() if "RUNNING" in job.states})


def power_off(site: Sandbox, node: str) -> str:
    """The machine of the node is gone at once, with all that is on it; its id."""
    place = site.layout.local_machines
    (record,) = [
        r for r in records.read_records(place)
        if r.node == node and r.process is not None and local_processes.alive(r.process)
    ]  # fmt: skip
    local_processes.power_off(records.workdir(place, record), slurmd=record.process)
    return record.id


def done(site: Sandbox, jobs: dict[int, Path]) -> list[int]:
    queue = {job.id for job in site.jobs()}
    return [job for job in jobs if job not in queue]


def hurry(site: Sandbox) -> bool:
    """Requeued jobs start now, and not after Slurm's two minutes."""
    for job in site.jobs():
        if "PENDING" in job.states and job.reason == "BeginTime":
            site.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"], check=False)
    return False


def test_a_notice_brings_the_output_before_the_machine_goes(site: Sandbox) -> None:
    place = place_for(site, "notice")
    script = 'for i in $(seq 1 600); do echo "step $i"; sleep 0.5; done'
    job = submit(site, place, script, "--no-requeue")
    output = place / f"slurm-{job}.out"
    site.wait_for(lambda: output.exists() and "step 1" in output.read_text(), 120, "it runs")
    node = site.job(job)["NodeList"]
    site.run([*ELASTIC, "ckpt", "notice", node, "--in", "60s"])
    site.wait_for(lambda: "DRAIN" in "".join(site.nodes()[node].states), 60, "it is drained")
    before = len(output.read_text().splitlines())
    site.wait_for(lambda: len(output.read_text().splitlines()) > before, 60, "more output comes")
    power_off(site, node)
    site.wait_for(lambda: states(site, job) == ["lost"], 180, "its files are lost")
    assert "copy-lost" in kinds(site, job)
    lines = output.read_text().splitlines()
    assert lines[:before] == [f"step {i}" for i in range(1, before + 1)]
