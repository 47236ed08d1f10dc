"""Real threads that are killed, and the mutexes in a file that they held."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import robust_mutexes, tracing
from slurm_elastic.machine.ckptroot.proc import status_of

from .helpers import ROOT, eventually, owner, reuse_number, with_own_numbers

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


def _at_fixed_places() -> None:
    """Addresses as in any other such process (personality(2), ADDR_NO_RANDOMIZE)."""
    ctypes.CDLL(None).personality(0x0040000)


def holding(path: Path, uid: int = 0) -> subprocess.Popen[str]:
    path.write_bytes(bytes(4096))
    path.chmod(0o666)
    return subprocess.Popen(
        ["/usr/bin/python3", "-Isc", HOLDS, str(path)], stdout=subprocess.PIPE, text=True,
        user=uid, cwd="/", preexec_fn=_at_fixed_places,
    )  # fmt: skip


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A stopped process, two of whose threads hold a mutex each."""
    with holding(path) as process:
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
        assert [one in (0, OWNER_DIED) for one in owners] == [False, False]
        if kept:
            robust_mutexes.keep([process.pid], owner())
    assert words(tmp_path / "lock") == (owners if kept else [OWNER_DIED, OWNER_DIED])


def test_a_task_that_is_gone_holds_up_nothing(tmp_path: Path) -> None:
    with held(tmp_path / "lock") as process:
        robust_mutexes.keep([1 << 22, process.pid], owner())
        owners = words(tmp_path / "lock")
    assert words(tmp_path / "lock") == owners


@with_own_numbers
def test_nothing_is_written_into_a_process_that_has_a_tasks_number_by_then(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's other task has held us up meanwhile; the addresses are as the task's were."""
    by_child, victims = tracing.by_child, list[subprocess.Popen[str]]()

    def held_up(work: Callable[..., object], each: Iterable[tuple[Any, ...]]) -> None:
        found = list(each)
        victims.append(reuse_number(task, lambda: holding(open_path / "roots")))
        assert victims[0].stdout is not None
        assert victims[0].stdout.readline() == "held\n"
        by_child(work, found)

    monkeypatch.setattr(tracing, "by_child", held_up)
    with holding(open_path / "users", 65534) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "held\n"
        robust_mutexes.keep([task.pid], owner(65534))
    with victims[0] as victim:
        owners = words(open_path / "roots")
        victim.kill()
    assert 0 not in owners
    assert words(open_path / "roots") == [OWNER_DIED, OWNER_DIED], "its lists are as they were"
