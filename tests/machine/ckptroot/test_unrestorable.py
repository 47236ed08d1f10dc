"""Programs that would not work where they are brought back are known before."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import unrestorable

UID = 4711
TICKETS = {"KRB5CCNAME": "KEYRING:persistent:4711"}


def begun(pid: int) -> None:
    """Wait until the program has its environment: execve(2) closes files before it lays that out."""
    until = time.monotonic() + 60
    while not Path(f"/proc/{pid}/environ").read_bytes() and time.monotonic() < until:
        time.sleep(0.01)


@contextmanager
def running(*words: str | Path, **more: str) -> Iterator[int]:
    with subprocess.Popen(words, env={"PATH": "/usr/bin:/bin", **more}) as process:
        try:
            begun(process.pid)
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's words on keys; our user has three."""
    path = tmp_path / "key-users"
    path.write_text("    0:    15 14/14 9/1000000 476/25000000\n 4711:     3 3/3 3/200 41/20000\n")
    monkeypatch.setattr(unrestorable, "_USERS", path)
    return path


@pytest.mark.parametrize("place", ["valgrind/memcheck-amd64-linux", "valgrind/my-tool",
                                   "lib/lackey-arm64-linux"])  # fmt: skip
def test_a_tool_of_valgrind_is_known_by_its_program(place: str, tmp_path: Path) -> None:
    tool = tmp_path / place
    tool.parent.mkdir()
    shutil.copy("/bin/sleep", tool)
    with running(tool, "600") as pid:
        found = unrestorable.why([pid], UID)
    assert found.startswith("process ")
    assert found.endswith(" runs in valgrind, which does not work after a restore")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="not installed: valgrind")
def test_so_is_valgrind_itself() -> None:
    with running("valgrind", "-q", "/bin/sleep", "600") as pid:
        until = time.monotonic() + 30
        while not unrestorable.why([pid], UID) and time.monotonic() < until:
            time.sleep(0.1)
        assert "runs in valgrind" in unrestorable.why([pid], UID)


def test_tickets_in_the_kernel_stay_there(keys: Path) -> None:
    with running("/bin/sleep", "600") as other, running("/bin/sleep", "600", **TICKETS) as pid:
        assert unrestorable.why([other], UID) == ""
        said = " has its Kerberos tickets in a keyring of this node's kernel"
        assert unrestorable.why([other, pid], UID).endswith(said)
        assert unrestorable.why([pid], UID + 1) == "", "the kernel keeps nothing for that user"
        keys.write_text(" 4711:     2 2/2 2/200 28/20000\n")
        assert unrestorable.why([pid], UID) == "", "nor more than two empty keyrings for this one"
        keys.unlink()
        assert unrestorable.why([pid], UID) == ""


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "more", [{"KRB5CCNAME": "FILE:/home/a/cc"}, {"NO_KRB5CCNAME": "KEYRING:a"}]
)
def test_tickets_in_a_file_go_along(more: dict[str, str]) -> None:
    with running("/bin/sleep", "600", **more) as pid:
        assert unrestorable.why([pid], UID) == ""


MAPS = """
import ctypes, os, sys, time
words = open("/proc/self/stat").read().rpartition(") ")[2].split()
page = int(words[47]) + 8192 & -4096
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
assert libc.mmap(page, 4096, 3, 0x11, file, 0) == page  # MAP_SHARED | MAP_FIXED
os.write(1, b"mapped")
time.sleep(600)
"""


@pytest.mark.usefixtures("keys")
def test_nothing_is_read_that_a_user_has_put_in_place_of_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes((unrestorable._TICKETS + b"x") * 200)
    os.truncate(file, mmap.PAGESIZE)
    words = [sys.executable, "-c", MAPS, str(file)]
    with subprocess.Popen(
        words, env={"MUCH": 16384 * "x", **TICKETS}, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(6) == b"mapped"
            assert unrestorable.why([process.pid], UID) == ""
        finally:
            process.kill()


@pytest.mark.usefixtures("keys")
def test_what_has_ended_is_passed_by() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    assert unrestorable.why([process.pid], UID) == ""
