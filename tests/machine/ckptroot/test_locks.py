"""Real processes that have lost their locks on parts of files take them again."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import images, locks
from slurm_elastic.machine.ckptroot.locks import Lock
from slurm_elastic.machine.ckptroot.proc import status_of

from . import forged
from .helpers import ROOT, eventually, owner

X86 = pytest.mark.skipif(not locks.can_take(), reason="tasks take locks again on x86-64 alone")
READ, WRITE = fcntl.F_RDLCK, fcntl.F_WRLCK

LOSES = """
import fcntl, mmap, os, sys, threading, time
file = os.open(sys.argv[1], os.O_RDWR)
os.dup2(file, 30)
shared = mmap.mmap(30, 4096)
fcntl.lockf(30, fcntl.LOCK_EX, 10, 100)
fcntl.lockf(30, fcntl.LOCK_SH, 0, 1000)
os.close(file)
count = 0
def work():
    global count
    while True:
        count += 1
for _ in range(int(sys.argv[2])):
    threading.Thread(target=work, daemon=True).start()
print("lost", flush=True)
if sys.argv[2] == "0":
    print("read", sys.stdin.readline().strip(), time.sleep(0.1), flush=True)
else:
    before, memory = count, bytearray(1 << 20)
    while not sys.stdin.readline():
        pass
    time.sleep(0.2)
    print("went on", count > before, set(memory), flush=True)
"""
WANTED = (Lock(30, WRITE, 100, 10), Lock(30, READ, 1000, 0))


@contextmanager
def stopped(path: Path, threads: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process without the locks that it had taken, as it has closed a descriptor since."""
    path.write_bytes(bytes(4096))
    with subprocess.Popen(
        [sys.executable, "-c", LOSES, str(path), str(threads)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "lost\n"
            os.kill(process.pid, signal.SIGSTOP)
            eventually(lambda: status_of(process.pid).get("State", "?")[0] == "T")
            yield process
        finally:
            process.kill()


def held(process: subprocess.Popen[str]) -> set[Lock]:
    return set(locks._held(process.pid, 30))


@ROOT
@X86
@pytest.mark.parametrize(("threads", "said"), [(0, "read on None"), (3, "went on True {0}")])
def test_it_has_them_again_and_goes_on_as_if_nothing_had_been(
    tmp_path: Path, threads: int, said: str
) -> None:
    with stopped(tmp_path / "file", threads) as process:
        assert held(process) == set()
        assert locks.take([process.pid], {process.pid: WANTED}, owner()) == ""
        assert held(process) == set(WANTED)
        assert status_of(process.pid)["State"][0] == "T"
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate("on\n")[0].strip() == said
    assert process.returncode == 0


@ROOT
@X86
def test_one_that_another_process_has_is_told(tmp_path: Path) -> None:
    with stopped(tmp_path / "file") as process, open(tmp_path / "file", "r+b") as other:
        fcntl.lockf(other, fcntl.LOCK_EX, 1, 105)
        found = locks.take([process.pid], {process.pid: WANTED}, owner())
        assert found == str(tmp_path / "file")
        assert held(process) == {WANTED[1]}


def test_nobody_who_has_all_of_his_is_touched(tmp_path: Path) -> None:
    assert locks.take([os.getpid()], {}, owner()) == ""
    assert locks.take([1 << 22], {7: WANTED}, owner()) == ""


def test_an_image_tells_the_locks_of_each_task(tmp_path: Path) -> None:
    """CRIU takes locks of flock(2) again for good."""
    entries = [
        (1, WRITE, 1001, 30, 100, 10), (2, WRITE, 1001, 5, 0, 0), (1, READ, 1002, 3, 128, 1),
        (1, READ, 1001, 30, 1000, 0),
    ]  # fmt: skip
    written = (
        b"".join(forged.field(number, value) for number, value in enumerate(entry, start=1))
        for entry in entries
    )
    assert images.locks(tmp_path) == {}
    (tmp_path / "filelocks.img").write_bytes(forged.image(0x54323616, *written))
    assert images.locks(tmp_path) == {1001: list(WANTED), 1002: [Lock(3, READ, 128, 1)]}
