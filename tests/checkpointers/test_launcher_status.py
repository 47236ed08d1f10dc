"""What the head learns about a run from the status that its launcher writes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError, UnreadableError
from slurm_elastic.checkpointers import node_helper_client
from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.machine.ckptroot import manifest
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.policies.checkpoint.unsavable import obstacle

RUN = JobRun(
    job=7, label="7", attempt=1, user="ann", uid=2000, gid=2000, nodes=("n1",), partition="p",
    started=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("state", "attempt", "uid", "is_at_work"),
    [
        ("running", 1, 2000, True),
        ("held", 1, 2000, False),
        ("ended", 1, 2000, False),
        ("running", 0, 2000, False),
        ("running", 1, 2001, False),
    ],
)
def test_only_the_launcher_of_this_run_reports_that_it_works(
    tmp_path: Path, state: str, attempt: int, uid: int, is_at_work: bool
) -> None:
    saver = LaunchedCheckpointer("criu", tmp_path)
    assert saver.is_at_work(RUN) is False
    status = {"state": state, "job": 7, "attempt": attempt, "uid": uid, "node": "n1"}
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status.json").write_text(json.dumps({**status, "method": "criu"}))
    assert saver.is_at_work(RUN) is is_at_work


def test_a_directory_that_hangs_while_a_request_is_written_holds_no_thread_of_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it answers again, the launcher reads the release, and not the save that was given up."""
    request = tmp_path / "7" / "request"
    request.parent.mkdir()
    request.touch()
    status = {"state": "running", "job": 7, "attempt": 1, "uid": 2000, "node": "n1", "run": "t"}
    (tmp_path / "7" / "status.json").write_text(json.dumps({**status, "method": "criu"}))
    answers, real_open, hanging_opens = threading.Event(), os.open, []

    def open_in_time(path: Any, *args: Any, **options: Any) -> int:
        if path == request and args[0] & os.O_WRONLY:
            hanging_opens.append(threading.current_thread())
            answers.wait()
        return real_open(path, *args, **options)

    monkeypatch.setattr("slurm_elastic.checkpointers.node_helper_client.os.open", open_in_time)
    monkeypatch.setattr(node_helper_client, "WRITE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(node_helper_client, "CANCEL_TIMEOUT_S", 0.2)
    saver = LaunchedCheckpointer("criu", tmp_path)
    with pytest.raises(CheckpointError, match="request cannot be written now: no answer"):
        saver.checkpoint(RUN, deadline=time.time() + 3600, stop=True)
    assert len(hanging_opens) == 2
    assert threading.current_thread() not in hanging_opens
    answers.set()
    for thread in hanging_opens:
        thread.join()
    assert json.loads(request.read_text())["verb"] == "release"


LISTED = {
    "job": 7, "label": "7", "attempt": 0, "number": 1, "method": "criu", "uid": 2000, "node": "n1",
    "taken": 1.0, "seconds": 1.0, "size": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "attempt", "images", "is_silent", "is_unfit"),
    [
        ("ended", 0, [LISTED], True, None),
        ("running", 1, [LISTED], False, False),
        ("unfit", 1, [LISTED], False, True),
        ("abandoned", 1, [LISTED], False, True),
        ("abandoned", 1, [], False, False),
    ],
)
def test_a_run_that_has_not_begun_is_told_from_a_run_that_nobody_reports(
    tmp_path: Path, state: str, attempt: int, images: list[object], is_silent: bool,
    is_unfit: bool | None,
) -> None:  # fmt: skip
    saver = LaunchedCheckpointer("criu", tmp_path)
    assert not saver.is_silent(RUN), "it has never had a launcher"
    status = {"state": state, "job": 7, "attempt": attempt, "uid": 2000, "node": "n1"}
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status.json").write_text(
        json.dumps({**status, "method": "criu", "images": images})
    )
    origin = saver.origin(RUN)
    assert saver.is_silent(RUN) is is_silent
    assert (origin and origin.is_unfit) is is_unfit


@pytest.mark.parametrize("field", ["f_bavail", "f_favail"])
def test_a_run_is_not_silent_where_no_launcher_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """On a full disk a job that was restored and runs well cannot report that."""
    saver = LaunchedCheckpointer("criu", tmp_path)
    status = {"state": "ended", "job": 7, "attempt": 0, "uid": 2000, "node": "n1"}
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status.json").write_text(json.dumps({**status, "method": "criu"}))
    assert saver.is_silent(RUN)
    fields = ("f_bavail", "f_frsize", "f_files", "f_favail")
    full = {**dict.fromkeys(fields, 1 << 20), field: 0}
    monkeypatch.setattr(node_helper_client.os, "statvfs", lambda _: SimpleNamespace(**full))
    assert not saver.is_silent(RUN)


def test_the_status_of_an_earlier_job_with_this_number_is_none(tmp_path: Path) -> None:
    """Same user, same number, no restart of either; Slurm's submit times differ."""
    saver = LaunchedCheckpointer("criu", tmp_path)
    status = {
        "state": "running", "job": 7, "attempt": 1, "uid": 2000, "node": "n1", "method": "criu",
        "submitted": 500.0,
    }  # fmt: skip
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status.json").write_text(json.dumps(status))
    assert saver.is_at_work(replace(RUN, submitted=500.0))
    later_job = replace(RUN, submitted=900.0)
    assert not saver.is_at_work(later_job)
    assert saver.origin(later_job) is None
    with pytest.raises(CheckpointError, match="serves another run"):
        saver.release(later_job)


IMAGE = Image(
    job=7, label="7", attempt=1, number=1, method="criu", node="n1", taken=1.0, seconds=1.0, size=1,
)  # fmt: skip


@pytest.mark.parametrize("fault", ["not mounted", "not readable", "half a file"])
def test_a_directory_that_cannot_be_read_is_no_verdict_about_its_jobs(
    tmp_path: Path, fault: str
) -> None:
    """A restart of its server takes a minute, and the verdict would move the job from its start."""
    shared = tmp_path / "cluster"
    saver = LaunchedCheckpointer("criu", shared)
    if fault != "not mounted":
        (shared / "7").mkdir(parents=True)
        status = shared / "7" / "status.json"
        status.write_text("{") if fault == "half a file" else status.mkdir()
    for _ in range(2):
        with pytest.raises(UnreadableError, match="cannot be read now") as error:
            saver.checkpoint(RUN, deadline=time.time() + 60.0, stop=False)
        assert obstacle(str(error.value)) is None
    with pytest.raises(UnreadableError):
        saver.images(RUN)
    with pytest.raises(UnreadableError):
        saver.is_silent(RUN)
    assert (saver.origin(RUN), saver.hindered(RUN), saver.is_at_work(RUN)) == (None, "", False)


def test_a_run_without_a_status_in_its_existing_directory_has_no_launcher(
    tmp_path: Path,
) -> None:
    saver = LaunchedCheckpointer("criu", tmp_path)
    with pytest.raises(CheckpointError, match="not under the launcher"):
        saver.checkpoint(RUN, deadline=time.time() + 60.0, stop=False)
    assert saver.images(RUN) == ()


def test_only_an_image_whose_file_is_certainly_gone_is_spoilt(tmp_path: Path) -> None:
    path = tmp_path / "cluster" / "7" / "images" / "1"
    image = replace(IMAGE, path=str(path))
    saver = LaunchedCheckpointer("criu", tmp_path / "cluster")
    with pytest.raises(UnreadableError):
        saver.verify(image)
    path.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="No such file") as error:
        saver.verify(image)
    assert not isinstance(error.value, UnreadableError)


def test_the_head_reads_manifests_as_long_as_nodes_write_them() -> None:
    """Otherwise it takes the images of a job of many processes for incomplete."""
    assert node_helper_client._MAX_FILE_BYTES == manifest.MAX_MANIFEST_BYTES


@pytest.mark.parametrize(("state", "attempt", "is_renewed"), [
    ("held", 1, True), ("running", 1, False), ("held", 2, False),
])  # fmt: skip
def test_a_stopped_run_is_held_for_as_long_as_its_image_is_read(
    tmp_path: Path, state: str, attempt: int, is_renewed: bool
) -> None:
    """A slow directory must not make it continue while it is about to be requeued."""
    clock = itertools.count(0.0, 1.0)
    saver = LaunchedCheckpointer("criu", tmp_path, monotonic=lambda: next(clock))
    directory = tmp_path / "7" / "images" / "3"
    directory.mkdir(parents=True)
    content = b"x" * (100 << 20)
    (directory / "pages").write_bytes(content)
    of_image = {"job": 7, "attempt": 1, "number": 3, "method": "criu"}
    files = {"pages": (len(content), hashlib.sha256(content).hexdigest())}
    (directory / "manifest.json").write_text(json.dumps({**of_image, "files": files}))
    status = {"state": state, "job": 7, "attempt": attempt, "uid": 2000, "node": "n1"}
    status |= {"method": "criu", "run": "token"}
    (tmp_path / "7" / "status.json").write_text(json.dumps(status))
    request = tmp_path / "7" / "request"
    request.write_text("")
    image = Image(
        job=7, label="7", attempt=1, number=3, method="criu", node="n1", taken=0.0, seconds=1.0,
        size=10 << 30, path=str(directory),
    )  # fmt: skip
    saver.verify(image)
    text = request.read_text()
    assert bool(text) is is_renewed
    if is_renewed:
        assert (json.loads(text)["verb"], json.loads(text)["run"]) == ("hold", "token")
