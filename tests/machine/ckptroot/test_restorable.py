"""A save refuses, while the job runs, a process that the job's user could not restore."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needs import ROOT_PART

from slurm_elastic.machine.ckptroot import capabilities, criu, dumping
from slurm_elastic.machine.ckptroot.baggage import Baggage
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.site import Refused

pytestmark = ROOT_PART
USER = 65534
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})
CHECKPOINT_RESTORE, SYS_ADMIN = 1 << 40, 1 << 21

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
Start = Callable[[str], Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A job with one process of that kind, under CRIU."""
    started = []

    def one(kind: str) -> Any:
        task = subprocess.Popen(
            ["/usr/bin/python3", "-c", TASK, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip
        started.append(task)
        assert task.stdout is not None
        line = task.stdout.readline()
        if line.startswith("cannot"):
            pytest.skip(line)
        method: Any = object.__new__(criu.Criu)
        method._caller, method._keeper, method.pid = CALLER, 0, 0
        method._clockless = ""
        method._site = SimpleNamespace(directory=Path("/tmp"), slurmstepd="/none")
        method._baggage = Baggage(CALLER, Path("/tmp"), Path("/nonexistent/left"))
        monkeypatch.setattr(method, "_tasks", lambda: [int(pid) for pid in line.split()])
        monkeypatch.setattr(criu.sysv, "held", lambda namespace: None)
        return method

    yield one
    for task in started:
        task.communicate()


@pytest.fixture
def modern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "is_whole", lambda: True)


@pytest.mark.usefixtures("modern")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("agent", r"process python3 is not dumpable \(prctl\(2\), PR_SET_DUMPABLE\)"),
        ("groups", "process python3 has more than 128 groups"),
        ("filter", "process python3 has a seccomp filter"),
        ("thread", "process python3 has a seccomp filter"),
    ],
)
def test_what_cannot_come_back_is_not_saved(
    start: Start, tmp_path: Path, kind: str, why: str
) -> None:
    method = start(kind)
    with pytest.raises(Refused, match=why):
        method.need()


@pytest.mark.usefixtures("modern")
@pytest.mark.parametrize("kind", ["plain", "most groups", "dead child"])
def test_what_can_come_back_is_saved(start: Start, tmp_path: Path, kind: str) -> None:
    if criu._filtered(os.getpid()):
        pytest.skip("all that is started here has a seccomp filter")
    start(kind).need()


def test_a_filter_can_be_set_by_what_may_administer_the_system(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = start("filter")
    monkeypatch.setattr(capabilities, "is_whole", lambda: False)
    method.need()


def test_what_became_so_before_criu_stopped_it_is_not_saved(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an image would count, and the job would be stopped for it."""
    method = start("agent")
    went_on = []
    method._clockless = ""
    method._site = SimpleNamespace(
        criu="/usr/sbin/criu", directory=Path("/tmp"), slurmstepd="/none"
    )
    method._identity, method._mounts, method._processes, method.pid = None, 3, 4, 1000
    for name, value in (
        ("_work", lambda: tmp_path),
        ("_know_kernel", lambda: None),
        ("go_on", lambda: went_on.append(True)),
    ):
        monkeypatch.setattr(method, name, value)
    monkeypatch.setattr(dumping, "run", lambda *_: (0, False))
    monkeypatch.setattr(criu.images, "check", lambda image, identity: ())
    for name in ("writing", "links"):
        monkeypatch.setattr(criu.images, name, lambda image: ())
    with pytest.raises(Refused, match="is not dumpable"):
        method.dump(tmp_path, 60.0, 1 << 30)
    assert went_on == [True]


@pytest.mark.parametrize("scope", ["1", "2", "3"])
def test_a_kernel_that_lets_users_trace_only_descendants_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str
) -> None:
    yama = tmp_path / "ptrace_scope"
    site: Any = SimpleNamespace(criu="/bin/sh")
    monkeypatch.setattr(criu, "_YAMA", yama)
    criu.available(site)  # no such kernel
    yama.write_text("0\n")
    criu.available(site)
    yama.write_text(f"{scope}\n")
    with pytest.raises(Refused, match=f"ptrace_scope is {scope}.* set it to 0"):
        criu.available(site)


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


def test_room_is_promised_once_for_memory_that_processes_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in the image, and was in no promise."""
    monkeypatch.setattr(criu.Criu, "_obstacle", lambda *_: "")
    with subprocess.Popen([sys.executable, "-c", SHARES], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        child = int(one.stdout.readline())
        try:
            made = object.__new__(criu.Criu)
            monkeypatch.setattr(criu.Criu, "_tasks", lambda _: [one.pid, child])
            assert 96 << 20 <= made._check_rights() < 180 << 20
        finally:
            os.kill(child, signal.SIGKILL)
            one.kill()
