"""System V IPC of a namespace of its own, as the kernel tells of it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import sysv
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT

SHM = "       key      shmid perms  size  cpid  lpid nattch   uid   gid   rss  swap\n"
HOLDS = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
exec(sys.argv[1])
print("up", flush=True)
sys.stdin.readline()
"""


def held(code: str) -> sysv.HeldObjects | None:
    """The report on the IPC namespace of a process that has run ``code``."""
    words = ["unshare", "--ipc", "/usr/bin/python3", "-c", HOLDS, code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"up\n"
        namespace = os.open(f"/proc/{one.pid}/ns/ipc", os.O_RDONLY)
        try:
            return sysv.held(namespace)
        finally:
            os.close(namespace)
            one.communicate(b"\n")


@ROOT
@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("pass", None),
        ("libc.semget(7, 1, 0o1600)", (0, True)),
        ("libc.msgget(7, 0o1600)", (0, False)),
        ("libc.shmget(7, 1 << 20, 0o1600)", (1 << 20, False)),
        ("kept = libc.shmat(libc.shmget(7, 1 << 20, 0o1600), None, 0)", (1 << 20, False)),
        (
            "ctypes.memset(libc.shmat(libc.shmget(7, 1 << 20, 0o1600), None, 0), 1, 1 << 20)",
            (0, False),
        ),
    ],
)
def test_what_is_there_is_found_with_what_is_in_nobodys_memory(
    code: str, found: tuple[int, bool] | None
) -> None:
    assert held(code) == (sysv.HeldObjects(*found) if found else None)


def test_a_namespace_that_cannot_be_entered_is_told() -> None:
    with (
        open("/dev/null") as file,
        pytest.raises(RequestRefused, match="System V IPC cannot be read"),
    ):
        sysv.held(file.fileno())


@ROOT
def test_a_look_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("head", timeout)

    monkeypatch.setattr(sysv.subprocess, "run", hangs)
    with pytest.raises(RequestRefused, match="not read within 30 s"):
        sysv.held(3)


def test_what_is_to_be_undone_is_known() -> None:
    """CRIU would forget it, and what comes after would be undone without what went before."""
    acts = "libc.semctl(n, 0, 16, 1); op = (ctypes.c_short * 3)(0, -1, {}); libc.semop(n, op, 1)"
    code = "n = libc.semget(7, 1, 0o1600); " + acts
    for flag, refused in ((0, False), (0x1000, True)):
        words = ["unshare", "--ipc", "/usr/bin/python3", "-c", HOLDS, code.format(flag)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
            assert one.stdout is not None
            assert one.stdout.readline() == b"up\n"
            expected = pytest.raises(RequestRefused, match="SEM_UNDO") if refused else nullcontext()
            with expected, subprocess.Popen(["sleep", "600"]) as plain:
                try:
                    sysv.check_undone([1 << 30, one.pid], plain.pid)
                finally:
                    plain.kill()
            one.communicate(b"\n")


def test_a_kernel_that_does_not_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysv, "_KCMP", dict.fromkeys(sysv._KCMP, -1))
    with pytest.raises(RequestRefused, match="cannot be looked into: Function not implemented"):
        sysv.check_undone([os.getpid()], os.getpid())


@ROOT
def test_limits_are_those_of_the_node_as_far_as_it_has_them(tmp_path: Path) -> None:
    here = sysv.limits()
    assert {"kernel/sem", "kernel/msgmax", "kernel/shmmax"} <= set(here)
    code = (
        "from slurm_elastic.machine.ckptroot import sysv; import sys\n"
        "before = sysv.limits(); sysv.set_limits({**before, 'kernel/msgmnb': '12345\\n', 'kernel/no': '1'})\n"
        "print({k: v for k, v in sysv.limits().items() if before[k] != v})"
    )
    done = subprocess.run(
        ["unshare", "--ipc", sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "{'kernel/msgmnb': '12345\\n'}\n"
    assert sysv.limits() == here


def test_a_segment_that_is_in_a_process_is_counted_there() -> None:
    (row,) = sysv._entries(f"shm <==\n{SHM} 0 5 1600 8192 1 1 1 2000 2000 4096 0\n")
    assert row["perms"] == 0o1600
    assert sysv._beyond(row) == 4096
    assert sysv._beyond({**row, "nattch": 0}) == 8192
    assert sysv._beyond({**row, "size": 100}) == 0, "of a page less is used than the kernel gives"
