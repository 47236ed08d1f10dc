"""The things that a job has besides its memory, by processes that are made up."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import inventory, sockets
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT, owner

TASK = """
import ctypes, os, pty, signal, struct, sys
kind, libc = sys.argv[1], ctypes.CDLL(None)
master = pty.openpty() if "terminal" in kind else None
number = signal.SIGUSR1 if "usr1" in kind else signal.SIGCHLD
if "signalfd" in kind:
    held = libc.signalfd(-1, struct.pack("Q", 1 << number - 1), 0)
    assert held >= 0
if kind == "files":
    os.chdir(sys.argv[2])
    kept, gone = open("open", "w"), open("gone", "w")
    os.unlink("gone")
    place = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    pipe = os.pipe()
    os.mkfifo("pipe"); named = os.open("pipe", os.O_RDWR)
    import mmap
    for name in ("mapped", "lost"):
        with open(name, "w+b") as file:
            file.truncate(4096)
            globals()[name] = mmap.mmap(file.fileno(), 4096)
    os.unlink("lost")
print("up", flush=True)
sys.stdin.read()
"""
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def one(*words: str) -> int:
        task = subprocess.Popen(
            [sys.executable, "-c", TASK, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(task)
        assert task.stdout is not None
        assert task.stdout.readline() == "up\n"
        return task.pid

    yield one
    for task in running:
        task.communicate()


@pytest.mark.parametrize(
    ("kind", "is_told"),
    [
        ("terminal", False),
        ("signalfd", False),
        ("terminal and signalfd of usr1", False),
        ("terminal and signalfd", True),
    ],
)
def test_who_runs_a_terminal_and_waits_for_its_childs_stop_is_told(
    start: Start, kind: str, is_told: bool
) -> None:
    said = inventory.terminal([1 << 30, start(kind)])
    assert said.endswith(
        "runs a terminal, and takes a save for a stop of what runs there" if is_told else ""
    )
    assert bool(said) is is_told


def test_two_that_have_one_of_it_each_are_no_such_program(start: Start) -> None:
    assert inventory.terminal([start("terminal"), start("signalfd")]) == ""


def test_all_files_of_a_task_are_found_but_deleted_ones_and_pipes(
    start: Start, tmp_path: Path
) -> None:
    pid = start("files", str(tmp_path))
    found = set(inventory.open_paths([1 << 30, pid]))
    here = {path for path in found if path.startswith(str(tmp_path))}
    assert here == {str(tmp_path), f"{tmp_path}/open", f"{tmp_path}/mapped"}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, ""),
        ({"PPid": "5", "NSpid": "9 1001", "State": "S (sleeping)"}, ""),
        ({"PPid": "4", "NSpid": "9 1002", "State": "S (sleeping)"}, ""),
        ({"PPid": "5", "NSpid": "9 1002", "State": "Z (zombie)"}, ""),
        ({"PPid": "5", "NSpid": "9 1002", "State": "X (dead)"}, ""),
        (
            {"PPid": "5", "NSpid": "9 1002", "State": "S (sleeping)", "Name": "sshd"},
            "process sshd has left the job's tree, as daemons do",
        ),
        (
            {"PPid": "5", "NSpid": "1001 1002", "State": "T"},
            "process 21 has left the job's tree, as daemons do",
        ),
    ],
)
def test_a_live_child_of_process_1_but_the_first_has_left(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, str], why: str
) -> None:
    monkeypatch.setattr(inventory, "status_of", lambda pid: status)
    assert inventory.stray([21], 5, 1001) == why


def test_only_locked_files_are_told_with_size_and_time(tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "locked", "w") as file, open(tmp_path / "other", "w") as other:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("123")
        file.flush()
        found = inventory.locked_files([1 << 30, os.getpid()], owner(os.geteuid()))
        seen = (tmp_path / "locked").stat()
        mine = {path: state for path, state in found.items() if path.startswith(str(tmp_path))}
        assert mine == {str(tmp_path / "locked"): (3, seen.st_mtime_ns)}
        assert not other.closed


WRITES = """
import fcntl, mmap, sys
file = open(sys.argv[1], "w+b")
file.write(bytes(4096)); file.flush()
fcntl.lockf(file, fcntl.LOCK_EX, 1)
shared = mmap.mmap(file.fileno(), 4096)
for n in range(3):
    shared[n] = 1
    print("written", flush=True)
    sys.stdin.readline()
"""


@ROOT
def test_a_locked_file_that_is_written_in_memory_has_changed(tmp_path: Path) -> None:
    """As long as the file's page waits to be written, no other write of it would be told."""
    path = tmp_path / "locked"
    words = [sys.executable, "-c", WRITES, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = []
        for _ in range(3):
            assert process.stdout.readline() == b"written\n"
            found.append(inventory.locked_files([process.pid], owner(os.geteuid()))[str(path)])
            time.sleep(0.05)  # a file's time may be told in ticks
            process.stdin.write(b"\n")
            process.stdin.flush()
    assert sorted({at for _, at in found}) == [at for _, at in found]
    with pytest.raises(RequestRefused, match="has changed since the job, which keeps it locked"):
        inventory.check_locked({str(path): found[1]})
    inventory.check_locked({str(path): found[2]})


@pytest.mark.parametrize(("copied_at", "is_same"), [
    (1_700_000_000_123_456_789, True), (1_700_000_000_000_000_000, True),
    (1_700_000_000_123_456_790, False), (1_700_000_001_000_000_000, False),
])  # fmt: skip
def test_a_locked_file_may_have_been_copied_to_the_machine_and_back(
    tmp_path: Path, copied_at: int, is_same: bool
) -> None:
    """The copy is another file of the same size and time, as exactly as its disk keeps times."""
    (tmp_path / "copy").write_bytes(b"data")
    os.utime(tmp_path / "copy", ns=(copied_at, copied_at))
    saved = {str(tmp_path / "copy"): (4, 1_700_000_000_123_456_789)}
    with contextlib.nullcontext() if is_same else pytest.raises(RequestRefused):
        inventory.check_locked(saved)


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_the_far_ends_of_connections_are_told_and_not_who_listens(
    family: socket.AddressFamily, address: str
) -> None:
    shown = f"[{address}]" if family == socket.AF_INET6 else address
    mine = [1 << 30, os.getpid()]
    before = set(sockets.connections(mine))
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind((address, 0))
        server.listen()
        assert set(sockets.connections(mine)) == before
        port = server.getsockname()[1]
        client.connect((address, port))
        assert set(sockets.connections(mine)) - before == {f"{shown}:{port}"}
        with server.accept()[0]:
            back = f"{shown}:{client.getsockname()[1]}"
            assert set(sockets.connections(mine)) - before == {f"{shown}:{port}", back}
    assert set(sockets.connections(mine)) == before


def test_a_socket_of_a_task_is_no_file_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = set(inventory.open_paths([os.getpid()]))
    assert not any(path.startswith("socket:") for path in found)
    assert stat.S_ISREG(os.stat(sys.executable).st_mode)
    assert os.path.realpath(sys.executable) in found, "its program is mapped"


def test_deleted_files_that_are_open_are_counted_once_and_memory_is_not(tmp_path: Path) -> None:
    for name in ("gone", "kept"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    memory = os.memfd_create("memory")
    os.write(memory, b"x" * 8192)
    with (tmp_path / "gone").open() as one, (tmp_path / "gone").open(), (tmp_path / "kept").open():
        before = inventory.deleted([os.getpid()])
        (tmp_path / "gone").unlink()
        size = os.fstat(one.fileno()).st_blocks * 512
        assert size >= 8192
        assert inventory.deleted([1 << 30, os.getpid()]) == before + size
    os.close(memory)


def test_names_that_are_gone_are_told_with_their_files(tmp_path: Path) -> None:
    opened, mapped, kept = (tmp_path / name for name in ("opened", "mapped", "kept"))
    files = {}
    for path in (opened, mapped, kept):
        path.write_bytes(b"x" * 4096)
        files[path] = (path.stat().st_dev, path.stat().st_ino)
    with opened.open(), kept.open(), mapped.open("r+b") as other:
        with mmap.mmap(other.fileno(), 4096) as seen:
            other.close()
            opened.unlink()
            mapped.unlink()
            found = inventory.gone_names([1 << 30, os.getpid()])
            assert seen[:1] == b"x"
        assert found[str(opened)] == files[opened]
        assert found[str(mapped)] == files[mapped]
        assert str(kept) not in found
