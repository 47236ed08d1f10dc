"""A save refuses, while the job runs, a process that the job's user could not restore."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from slurm_elastic.machine.ckptroot import capabilities, task_rights
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT

CALLER = Caller(job=7, uid=2000, gid=2000, user="alice", groups=(2000,), environment={})
NOBODY = Caller(job=7, uid=65534, gid=65534, user="nobody", groups=(65534,), environment={})

STATUS = {"Uid": "2000\t2000\t2000\t2000", "Gid": "2000\t2000\t2000\t2000", "RssAnon": "1 kB",
          "CapInh": "0", "CapPrm": "0", "CapEff": "0", "CapAmb": "0", "Groups": "2000 "}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "owner", "why"),
    [
        ({}, 2000, ""),
        ({}, None, ""),
        ({"Uid": "2000\t0\t2000\t2000"}, 2000, "other rights"),
        ({"Gid": "2000\t2000\t2000\t0"}, 2000, "other rights"),
        *(({name: "0000000000000001"}, 2000, "other rights") for name in task_rights.NEEDED),
        ({"Groups": " ".join(map(str, range(128)))}, 2000, ""),
        ({"Groups": " ".join(map(str, range(129)))}, 2000, "more than 128 groups"),
        ({}, 0, "not dumpable"),
        # One that has ended has the rights that CRIU brought it back with; one of which only the
        # first thread has runs on.
        ({"CapPrm": "1", "State": "Z (zombie)", "Threads": "1"}, 0, ""),
        ({"CapPrm": "1", "State": "Z (zombie)", "Threads": "2"}, 0, "other rights"),
    ],
)
@pytest.mark.parametrize("modern", [False, True])
def test_a_task_with_more_than_its_users_rights_is_told(
    monkeypatch: pytest.MonkeyPatch,
    status: dict[str, str],
    owner: int | None,
    why: str,
    modern: bool,
) -> None:
    monkeypatch.setattr(capabilities, "is_whole", lambda: modern)
    monkeypatch.setattr(task_rights, "is_filtered", lambda pid: False)
    said = task_rights.obstacle(21, owner, STATUS | status, CALLER)
    assert (why in said) if why else said == ""


@pytest.mark.parametrize(("whole", "why"), [(True, "seccomp filter"), (False, "")])
def test_a_filter_is_one_where_the_user_could_not_set_it(
    monkeypatch: pytest.MonkeyPatch, whole: bool, why: str
) -> None:
    monkeypatch.setattr(capabilities, "is_whole", lambda: whole)
    monkeypatch.setattr(task_rights, "is_filtered", lambda pid: True)
    said = task_rights.obstacle(21, 2000, STATUS, CALLER)
    assert (why in said) if why else said == ""


def test_a_zombie_has_nothing_that_could_be_restored() -> None:
    dead = {name: value for name, value in STATUS.items() if name != "RssAnon"}
    assert "dumpable" not in task_rights.obstacle(21, 0, dead, CALLER)


def test_a_task_in_a_user_namespace_of_its_own_is_told() -> None:
    words = ["unshare", "--user", "sh", "-c", "echo up; read end"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        if task.stdout.readline() != b"up\n":
            pytest.skip("no user namespaces here")
        assert "user namespace" in task_rights.obstacle(task.pid, 2000, STATUS, CALLER)
        task.communicate(b"\n")
    assert "user namespace" not in task_rights.obstacle(task.pid, 2000, STATUS, CALLER)


# processes


TASK = """
import ctypes, os, struct, sys, threading, time
kind, libc = sys.argv[1], ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
def filtered():
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))  # allow all
    program = Program(1, ctypes.cast(code, ctypes.c_void_p))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        print("cannot: no seccomp filter here", flush=True)
        os._exit(0)
def in_thread():
    filtered()
    ready.set()
    time.sleep(600)
ready = threading.Event()
if kind == "groups":
    os.setgroups(range(3000, 3129))
elif kind == "most groups":
    os.setgroups(range(3000, 3128))
else:
    os.setgroups([65534])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
libc.prctl(4, 0 if kind == "agent" else 1, 0, 0, 0)  # PR_SET_DUMPABLE: to change users ended it
if kind == "filter":
    filtered()
if kind == "thread":
    threading.Thread(target=in_thread, daemon=True).start()
    ready.wait()
if kind == "dead child":
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print(child, end=" ")
print(os.getpid(), flush=True)
sys.stdin.read()
"""
Start = Callable[[str], list[int]]


@pytest.fixture
def start() -> Iterator[Start]:
    """A process of the user nobody of that kind, and its child, if it has one."""
    started = []

    def one(kind: str) -> list[int]:
        task = subprocess.Popen(
            ["/usr/bin/python3", "-c", TASK, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip
        started.append(task)
        assert task.stdout is not None
        line = task.stdout.readline()
        if line.startswith("cannot"):
            pytest.skip(line)
        return [int(pid) for pid in line.split()]

    yield one
    for task in started:
        task.communicate()


@ROOT
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("agent", r"process python3 is not dumpable \(prctl\(2\), PR_SET_DUMPABLE\)"),
        ("groups", "process python3 has more than 128 groups"),
        ("filter", "process python3 has a seccomp filter"),
        ("thread", "process python3 has a seccomp filter"),
        ("plain", ""),
        ("most groups", ""),
        ("dead child", ""),
    ],
)
def test_what_cannot_come_back_is_not_saved(
    start: Start, monkeypatch: pytest.MonkeyPatch, kind: str, why: str
) -> None:
    monkeypatch.setattr(capabilities, "is_whole", lambda: True)
    if not why and task_rights.is_filtered(os.getpid()):
        pytest.skip("all that is started here has a seccomp filter")
    tasks = start(kind)
    if why:
        with pytest.raises(RequestRefused, match=why):
            task_rights.check(tasks, NOBODY)
    else:
        assert task_rights.check(tasks, NOBODY) > 0


@ROOT
def test_a_filter_can_be_set_by_what_may_administer_the_system(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "is_whole", lambda: False)
    assert task_rights.check(start("filter"), NOBODY) > 0


def test_what_is_gone_has_no_rights_and_no_memory() -> None:
    assert task_rights.check([1 << 30], CALLER) == 0
    assert not task_rights.is_filtered(1 << 30)


SHARES = """
import mmap, os, signal, time
shared = mmap.mmap(-1, 96 << 20)
shared.write(b"x" * len(shared))
child = os.fork()
sum(shared[::4096])
if not child:
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_room_is_promised_once_for_memory_that_processes_share() -> None:
    """It is in the image, and was in no promise."""
    us = Caller(7, os.getuid(), os.getgid(), "us", tuple(os.getgroups()), {})
    with subprocess.Popen([sys.executable, "-c", SHARES], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        child = int(one.stdout.readline())
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(task_rights, "obstacle", lambda *_: "")
                assert 96 << 20 <= task_rights.check([one.pid, child], us) < 180 << 20
        finally:
            os.kill(child, signal.SIGKILL)
            one.kill()
