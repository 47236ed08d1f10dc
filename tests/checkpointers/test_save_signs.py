"""The line by which an application says that it has saved itself, in output that is its user's."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from needs import ROOT
from patience import eventually

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.base.processes.in_time import MAX_ABANDONED as MOST_LEFT
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.checkpointers import save_signs
from slurm_elastic.checkpointers.save_signs import TAIL_BYTES, FileChanged, LinePrinted, has_line
from slurm_elastic.config.job_checkpoint import MAX_COMMENT_LENGTH, parse_comment
from slurm_elastic.model.checkpoint import JobRun
from tests.threads import new_threads

RUN = JobRun(
    job=1, label="1", attempt=0, user="u", uid=os.getuid(), gid=0, nodes=(), partition="p", started=0.0
)  # fmt: skip


def shows(said: LinePrinted, mark: str) -> bool:
    return said.shows(mark, None, RUN) is not None


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.write_text("before\nsaved\nnow")
    return path


def test_a_line_counts_once_it_is_written_after_the_mark(output: Path) -> None:
    said = LinePrinted(str(output), os.getuid(), "saved")
    mark = said.mark()
    assert not shows(said, mark)
    for piece, there in (("here\nnot saved\n", False), (" sav", False), ("ed \r\n", True)):
        with output.open("a") as file:
            file.write(piece)
        assert shows(said, mark) == there


def test_a_line_begins_where_the_application_was_asked(output: Path) -> None:
    said = LinePrinted(str(output), os.getuid(), "saved")
    mark = said.mark()
    with output.open("a") as file:
        file.write("saved")
    assert shows(said, mark)


def test_an_output_that_was_cut_is_read_anew(output: Path) -> None:
    said = LinePrinted(str(output), os.getuid(), "saved")
    mark = said.mark()
    output.write_text("x" * 500 + "\n")
    assert not shows(said, mark)
    output.write_text("y" * int(mark) + "\nsaved\n")
    assert shows(said, mark)


@pytest.mark.parametrize("filler", [b"\n", b"saved", b"xsaved\n", b"\nsavedx", b" "])
def test_an_output_made_to_cost_time_is_read_once(
    output: Path, filler: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, count: int, at: int) -> bytes:
        data = pread(descriptor, count, at)
        read.append(len(data))
        return data

    monkeypatch.setattr(save_signs.os, "pread", counted)
    output.write_bytes(b"")
    said = LinePrinted(str(output), os.getuid(), "saved")
    mark = said.mark()
    output.write_bytes(filler * (5 * TAIL_BYTES // len(filler)) + b"!\n")
    for _ in range(50):
        assert not shows(said, mark)
    assert sum(read) < TAIL_BYTES + 50 * 1000


@pytest.mark.parametrize("kind", ["file", "line"])
@pytest.mark.parametrize("made", ["file", "link", "pipe", "directory", "below a file"])
def test_what_another_user_has_at_the_path_is_answered_as_an_absent_file(
    tmp_path: Path, kind: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else users learn which files exist in directories that only SlurmUser may read."""
    path, absent = tmp_path / "there", tmp_path / "absent"
    {
        "file": lambda: path.write_text("x\n"),
        "link": lambda: path.symlink_to(tmp_path),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "below a file": lambda: path.write_text("x\n"),
    }[made]()
    if made == "below a file":
        path, absent = path / "x", absent / "x"
    opened: list[str] = []
    really = os.open

    def refused(name: str, *rest: Any) -> int:
        """As the kernel answers SlurmUser about a file of mode 0600 that root has."""
        if name == str(path) and path.exists():
            opened.append(name)
            raise PermissionError(13, "Permission denied")
        return really(name, *rest)

    monkeypatch.setattr(save_signs.os, "open", refused)

    def answers(at: Path) -> list[object]:
        stranger = os.getuid() + 1
        sign = (
            FileChanged(str(at), stranger)
            if kind == "file"
            else LinePrinted(str(at), stranger, "x")
        )
        mark = sign.mark()
        fault = (sign.fault(1) or "").replace(str(at), "PATH")
        return [mark, sign.shows(mark, None, RUN), fault]

    assert answers(path) == answers(absent)
    assert not opened


def test_places_that_are_no_line_are_looked_at_only_so_often() -> None:
    assert has_line(b"\n" + b"saved! " * 900 + b"\nsaved\n", b"saved")
    assert not has_line(b"\n" + b"saved! " * 2000 + b"\nsaved\n", b"saved"), "it was given up"


def test_a_comment_that_says_how_to_save_is_bounded() -> None:
    wish = "ckpt=signal,saved=line:done"
    assert parse_comment(wish) == ("signal", {"saved": "line:done"})
    assert parse_comment("x" * 1_000_000) is None
    with pytest.raises(ValueError, match=f"expected at most {MAX_COMMENT_LENGTH}"):
        parse_comment(wish + "x" * MAX_COMMENT_LENGTH)


@ROOT
@pytest.mark.parametrize("sign", ["line", "file"])
def test_a_directory_that_hangs_holds_nobody(
    output: Path, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system does that a user's own process serves, and no other user's sign waits."""
    answered = threading.Event()
    really = {"open": os.open, "lstat": os.lstat}

    def hang(name: str, path: Any, *rest: Any, **more: Any) -> Any:
        if path == str(output):
            answered.wait()
        return really[name](path, *rest, **more)

    monkeypatch.setattr(save_signs, "_looks", InTime())
    monkeypatch.setattr(save_signs, "READ_TIMEOUT_S", 0.2)
    for name in really:
        monkeypatch.setattr(save_signs.os, name, partial(hang, name))
    kinds = {
        "line": LinePrinted(str(output), os.getuid(), "x"),
        "file": FileChanged(str(output), os.getuid()),
    }
    started = new_threads()
    for _ in range(MOST_LEFT):
        with pytest.raises(CheckpointError, match=f"{output}: no answer in"):
            kinds[sign].mark()
    with pytest.raises(CheckpointError, match="earlier calls have not ended"):
        kinds[sign].mark()
    assert started() == MOST_LEFT
    monkeypatch.setattr(save_signs, "READ_TIMEOUT_S", 60.0)
    (other := output.with_name("other")).write_text("1")
    os.chown(other, os.getuid() + 1, -1)
    assert FileChanged(str(other), os.getuid() + 1).mark()
    answered.set()
    assert eventually(lambda: started() == 0)
    assert kinds[sign].mark()
