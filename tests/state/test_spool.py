"""The spool: what programs leave is read in order, and no bad file costs more than itself."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.state.spool import STALE_DRAFT, Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path)
    made.create()
    return made


def put(tmp_path: Path, name: str = "1-1-resume", below: str = "", **fields: Any) -> Path:
    body = {"kind": "resume", "hostlist": "pub[1-2]", "received": 5.0, **fields}
    path = tmp_path / "requests" / f"{name}.json"
    path.write_text(f"{json.dumps(body)}\n{below}")
    return path


def test_requests_come_oldest_first_and_are_forgotten_once(tmp_path: Path, spool: Spool) -> None:
    put(tmp_path, "2-1-suspend", kind="suspend")
    put(tmp_path, "1-9-resume")
    assert [r.id for r in spool.pending()] == ["1-9-resume", "2-1-suspend"]
    assert spool.count() == 2
    for _ in range(2):
        spool.remove("1-9-resume")
    assert [r.kind for r in spool.pending()] == ["suspend"]


def test_a_request_that_is_carried_out_meanwhile_is_pending_or_in_the_ledger(
    tmp_path: Path, spool: Spool
) -> None:
    """It leaves the spool once the ledger has it: the ledger is read after the spool."""
    put(tmp_path)
    ledger: list[str] = []

    def read() -> list[str]:
        spool.remove("1-1-resume")
        ledger.append("launched")
        return list(ledger)

    requests, rows = spool.pending_before(read)
    assert ([r.id for r in requests], rows) == (["1-1-resume"], ["launched"])


def test_a_node_named_twice_is_one_node(tmp_path: Path, spool: Spool) -> None:
    put(tmp_path, hostlist="pub[1-2],pub1,pub[2-3]")
    (request,) = spool.pending()
    assert request.nodes == ("pub1", "pub2", "pub3")


JOBS = {
    "22.05": {"jobs": [{"job_id": 7, "nodes": "pub[1-2]"}], "all_nodes": "pub[1-2]"},
    "24.11": {
        "jobs": [
            {"job_id": 7, "extra": None, "nodes_alloc": "st1,pub[1-2]", "nodes_resume": "pub[1-2]"}
        ]
    },
}


@pytest.mark.parametrize("release", JOBS)
@pytest.mark.parametrize("form", ["inside", "below"])
def test_the_resume_file_of_every_release(
    tmp_path: Path, spool: Spool, release: str, form: str
) -> None:
    file = JOBS[release]
    if form == "inside":
        put(tmp_path, resume_file=file)
    else:
        put(tmp_path, below=json.dumps(file))
    (request,) = spool.pending()
    assert request.jobs == {7: ("pub1", "pub2")}
    assert request.note is None


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ([], "no list of jobs"),
        ("text", "no list of jobs"),
        ({"jobs": "none"}, "no list of jobs"),
        ({"jobs": {"7": "pub1"}}, "no list of jobs"),
        ({"jobs": [7]}, "cannot be read"),
        ({"jobs": [{"nodes": "pub1"}]}, "job_id"),
        ({"jobs": [{"job_id": "x", "nodes": "pub1"}]}, "job_id"),
        ({"jobs": [{"job_id": 8, "nodes": "pub[1"}]}, "pub[1"),
        ({"jobs": [{"job_id": 8, "nodes": 5}]}, "nodes"),
    ],
)
def test_a_resume_file_of_the_wrong_shape_costs_no_node(
    tmp_path: Path, spool: Spool, file: Any, note: str
) -> None:
    put(tmp_path, resume_file=file)
    (request,) = spool.pending()
    assert request.nodes == ("pub1", "pub2")
    assert request.jobs == {}
    assert note in (request.note or "")


@pytest.mark.parametrize("below", ["{", "[]", "7", "\x00", "[" * 100_000])
def test_what_follows_the_line_and_is_no_resume_file_costs_no_node(
    tmp_path: Path, spool: Spool, below: str
) -> None:
    put(tmp_path, below=below)
    (request,) = spool.pending()
    assert request.nodes == ("pub1", "pub2")
    assert "the resume file is not" in (request.note or "")


def test_of_several_jobs_the_readable_ones_are_kept(tmp_path: Path, spool: Spool) -> None:
    put(tmp_path, resume_file={"jobs": [None, {"job_id": 7, "nodes": "pub2"}]})
    (request,) = spool.pending()
    assert request.jobs == {7: ("pub2",)}
    assert request.note


def test_what_the_program_could_not_read_is_noted(tmp_path: Path, spool: Spool) -> None:
    put(tmp_path, resume_file=None, resume_file_error="SLURM_RESUME_FILE is not set")
    (request,) = spool.pending()
    assert request.note == "SLURM_RESUME_FILE is not set"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"kind": "resume"}',
        '{"kind": "restart", "hostlist": "pub1", "received": 1}',
        '{"kind": "resume", "hostlist": "pub[1-", "received": 1}',
        '{"kind": "resume", "hostlist": "pub[9-1]", "received": 1}',
        '{"kind": "resume", "hostlist": "pub[1-999999999]", "received": 1}',
        '{"kind": "resume", "hostlist": "", "received": 1}',
        '{"kind": "resume", "hostlist": "pub1;rm", "received": 1}',
        '{"kind": "resume", "hostlist": 7, "received": 1}',
        '{"kind": "resume", "hostlist": "pub1", "received": "now"}',
        "[" * 100_000,
        "\x00\x01",
    ],
)
def test_a_request_that_makes_no_sense_is_set_aside(
    tmp_path: Path, spool: Spool, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / "requests" / "1-1-resume.json"
    bad.write_text(text)
    put(tmp_path, "2-1-resume")
    assert [r.id for r in spool.pending()] == ["2-1-resume"]
    assert (tmp_path / "requests" / "bad" / bad.name).read_text() == text
    assert "request set aside" in caplog.text


def test_a_directory_in_a_requests_place_is_set_aside(tmp_path: Path, spool: Spool) -> None:
    (tmp_path / "requests" / "1-1-resume.json").mkdir()
    assert list(spool.pending()) == []
    assert spool.count() == 0


def test_a_failing_disk_is_not_the_requests_fault(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path)

    def fails(self: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fails)
        assert list(spool.pending()) == []
    assert len(list(spool.pending())) == 1


def test_drafts_of_killed_programs_go_after_an_hour(tmp_path: Path, spool: Spool) -> None:
    old, young = (tmp_path / "requests" / f".{i}-1-resume.tmp" for i in (1, 2))
    for draft in (old, young):
        draft.write_text("{")
    past = time.time() - STALE_DRAFT - 10
    os.utime(old, (past, past))
    spool.create()
    assert not old.exists()
    assert young.exists()
    assert list(spool.pending()) == []


def test_where_no_directory_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "requests").write_text("in the way")
    with pytest.raises(OSError):
        Spool(tmp_path).create()
