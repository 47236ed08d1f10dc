"""Real threads that are killed, and the mutexes in a file that they held."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import robust_mutexes
from slurm_elastic.machine.ckptroot.proc import status_of

from .helpers import ROOT, eventually

pytestmark = ROOT

OWNER_DIED = 0x40000000  # linux/futex.h
HOLDS = """
import ctypes, mmap, sys, threading, time
libc = ctypes.CDLL(None)
kind = ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(kind)
libc.pthread_mutexattr_setpshared(kind, 1)
libc.pthread_mutexattr_setrobust(kind, 1)
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 4096)
mutexes = [(ctypes.c_char * 64).from_buffer(shared, place) for place in (0, 64)]
def take(mutex):
    libc.pthread_mutex_init(mutex, kind)
    libc.pthread_mutex_lock(mutex)
def hold(mutex):
    take(mutex)
    print("held", flush=True)
    time.sleep(3600)
take(mutexes[0])
threading.Thread(target=hold, args=mutexes[1:], daemon=True).start()
time.sleep(3600)
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A stopped process, two of whose threads hold a mutex each."""
    path.write_bytes(bytes(4096))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            os.kill(process.pid, signal.SIGSTOP)
            eventually(lambda: status_of(process.pid).get("State", "?")[0] == "T")
            yield process
        finally:
            process.kill()


def words(path: Path) -> list[int]:
    """The first word of each mutex: its owner, and whether that died."""
    data = path.read_bytes()
    return [struct.unpack_from("=I", data, place)[0] for place in (0, 64)]


@pytest.mark.parametrize("kept", [True, False])
def test_only_kept_mutexes_have_their_owner_after_its_end(tmp_path: Path, kept: bool) -> None:
    with held(tmp_path / "lock") as process:
        owners = words(tmp_path / "lock")
        assert [owner in (0, OWNER_DIED) for owner in owners] == [False, False]
        if kept:
            robust_mutexes.keep([process.pid])
    assert words(tmp_path / "lock") == (owners if kept else [OWNER_DIED, OWNER_DIED])


def test_a_task_that_is_gone_holds_up_nothing(tmp_path: Path) -> None:
    with held(tmp_path / "lock") as process:
        robust_mutexes.keep([1 << 22, process.pid])
        owners = words(tmp_path / "lock")
    assert words(tmp_path / "lock") == owners
