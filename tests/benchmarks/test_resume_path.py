"""The benchmark of the way from slurmctld's call to the launches: that it runs and counts right."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import resume_path
from benchmarks.cloud_clock import action_of
from benchmarks.peer import PUBLISHED
from benchmarks.report import Row
from benchmarks.resume_runs import resume_file, timed
from benchmarks.stub_slurm import StubSlurm
from slurm_elastic.config import SlurmSettings
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.slurm.client.cli import SlurmCli


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    report = resume_path.main(["--quick", "--no-peer"])
    assert report.name == "resume_path"
    return {row.case: row for row in report.rows}


@pytest.mark.release
def test_calls_are_counted_and_few(rows: dict[str, Row]) -> None:
    for nodes in ("1 node", "20 nodes"):
        assert rows[f"{nodes}: launch calls / limit"].ours == 1
        assert rows[f"{nodes}: scontrol / limit"].ours == 1
    # The launch alone: prices and the image's platform are known from the daemon's start.
    assert rows["20 nodes: AWS calls"].ours == 1
    assert rows["20 nodes: Slurm commands"].ours == 2


@pytest.mark.release
def test_each_goal_has_its_row(rows: dict[str, Row]) -> None:
    with_goals = {case for case, row in rows.items() if row.goal}
    assert with_goals >= {
        "20 nodes: program p50 / python3",
        "20 nodes: program p95 / python3",
        "20 / 1 nodes: program p50",
        "20 / 1 nodes: program p50, 1 job",
        "20 nodes: launch calls / limit",
        "20 nodes: scontrol / limit",
        "1 node: processor / slurm_resume, earlier",
    }
    assert all(row.ours > 0 for row in rows.values())


@pytest.mark.release
def test_earlier_figures_say_that_they_are(rows: dict[str, Row]) -> None:
    row = rows["1 node: processor / slurm_resume, earlier"]
    assert row.reference == PUBLISHED[1].cpu
    assert rows["20 nodes: processor"].reference is None


def test_a_peer_that_fails_leaves_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def run(self, count: int, jobs: int) -> None:
            raise RuntimeError("no heartbeat")

    assert resume_path.attempt(Broken(), 5, jobs=1) == []  # type: ignore[arg-type]
    assert "no heartbeat" in capsys.readouterr().err


def test_slurms_stub_answers_as_slurm_does(tmp_path: Path) -> None:
    stub = StubSlurm(tmp_path / "slurm")
    client = SlurmCli(SlurmSettings(conf="/dev/null", bin_dir=str(stub.bin)))
    stub.show(["pub1", "pub2"], powering_up=False)
    assert {phase(n) for n in client.nodes().values()} == {Phase.POWERED_DOWN}
    stub.show(["pub1", "pub2"], powering_up=True)
    assert {phase(n) for n in client.nodes().values()} == {Phase.POWERING_UP}
    client.set_addresses({"pub1": "10.0.0.1"})
    text = subprocess.run(
        [stub.bin / "sudo", stub.bin / "scontrol", "show", "nodes", "pub[1-2]"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert text.count("State=ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP") == 2
    assert client.calls == {"scontrol": 2, "sinfo": 2}
    assert (stub.calls("scontrol"), stub.calls("sinfo")) == (3, 2)


def test_nodes_are_shared_out_among_the_jobs() -> None:
    names = [f"pub{n}" for n in range(1, 6)]
    jobs = resume_file(names, 2)["jobs"]
    assert isinstance(jobs, list)
    assert [job["nodes_resume"] for job in jobs] == ["pub[1-3]", "pub[4-5]"]
    (one,) = resume_file(names, 1)["jobs"]  # type: ignore[misc]
    assert one["nodes_alloc"] == "pub[1-5]"


@pytest.mark.parametrize(
    ("headers", "method", "url", "body", "action"),
    [
        ({}, "POST", "http://x/", b"Action=RunInstances&Version=2016-11-15", "RunInstances"),
        ({}, "POST", "http://x/", "Version=1&Action=CreateTags", "CreateTags"),
        (
            {"X-Amz-Target": b"DynamoDB_1.BatchWriteItem"},
            "POST",
            "http://x/",
            b"{}",
            "BatchWriteItem",
        ),
        (
            {},
            "POST",
            "http://x/2013-04-01/hostedzone/Z1/rrset/",
            b"<a/>",
            "POST /2013-04-01/hostedzone/Z1/rrset/",
        ),
    ],
)
def test_calls_are_told_apart(
    headers: dict[str, object], method: str, url: str, body: object, action: str
) -> None:
    request = SimpleNamespace(headers=headers, method=method, url=url, body=body)
    assert action_of(request) == action  # type: ignore[arg-type]


def test_a_process_is_timed() -> None:
    ended = timed(["/bin/sh", "-c", "exit 3"], {})
    assert ended.code == 3
    assert ended.wall > 0
