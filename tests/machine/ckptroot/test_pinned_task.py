"""A task whose number is another process's by the time root acts on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import (
    inventory,
    locks,
    poll_again,
    quiet_continue,
    sockets,
    tracing,
)
from slurm_elastic.machine.ckptroot.locks import Lock
from slurm_elastic.machine.ckptroot.pinned_task import PinnedTask, TaskOwner, pinned
from slurm_elastic.machine.ckptroot.proc import status_of

from .helpers import ROOT, eventually, owner, reuse_number, with_own_numbers

pytestmark = ROOT
USER = 65534


@contextmanager
def sleeping(uid: int) -> Iterator[subprocess.Popen[str]]:
    """A process of that user's."""
    with begun(uid) as process:
        yield process
        process.kill()


def begun(uid: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["/bin/sleep", "600"], user=uid, stdout=subprocess.PIPE, text=True, cwd="/"
    )


READS: list[Callable[[PinnedTask], object]] = [
    PinnedTask.check,
    PinnedTask.threads,
    lambda task: task.read("status"),
    lambda task: task.signal(signal.SIGKILL),
    lambda task: task.descriptor(0),
    lambda task: task.opened("mem").__enter__(),
    lambda task: task.process().__enter__(),
]


@with_own_numbers
def test_a_pinned_task_is_never_another_process(tmp_path: Path) -> None:
    with sleeping(USER) as process, ExitStack() as stack:
        task = stack.enter_context(pinned(process.pid, owner(USER)))
        task.check()
        assert task.threads() == [process.pid]
        memory = stack.enter_context(task.opened("mem", os.O_RDWR))
        other = reuse_number(process, lambda: begun(0))
        stack.callback(other.communicate)
        stack.callback(other.kill)
        for reads in READS:
            with pytest.raises(OSError):
                reads(task)
        assert not task.has_thread(other.pid)
        address = int(Path(f"/proc/{other.pid}/maps").read_text().split("-")[0], 16)
        with suppress(OSError):  # the memory of who is gone: nothing is written anywhere
            assert os.pwrite(memory, b"x", address) == 0
        assert other.poll() is None


@pytest.mark.parametrize(
    "stranger",
    [TaskOwner(USER + 1, owner().numbers), TaskOwner(USER, (0, 0))],
    ids=["another user's", "another job's"],
)
def test_one_that_is_not_the_jobs_is_not_pinned(stranger: TaskOwner) -> None:
    with sleeping(USER) as process:
        with pytest.raises(ProcessLookupError), pinned(process.pid, stranger):
            pass
        with pinned(process.pid, owner(USER)):
            pass


def test_a_program_with_more_rights_than_its_user_is_not_pinned() -> None:
    """Such as one with the setuid bit: it is not dumpable."""
    not_dumpable = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print(1, flush=1)"
    with subprocess.Popen(
        ["/usr/bin/python3", "-Isc", f"{not_dumpable}; time.sleep(600)"],
        user=USER, stdout=subprocess.PIPE, text=True, cwd="/",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        with pytest.raises(ProcessLookupError), pinned(process.pid, owner(USER)):
            pass
        process.kill()


def test_a_thread_that_is_traced_is_one_of_the_tasks_or_is_let_go() -> None:
    with sleeping(USER) as process, sleeping(0) as other, pinned(process.pid, owner(USER)) as task:
        tracing.seize(task, process.pid)
        assert status_of(process.pid)["TracerPid"] == str(os.getpid())
        assert tracing.trace(tracing.INTERRUPT, process.pid)
        tracing.await_stop(process.pid)
        assert tracing.trace(tracing.DETACH, process.pid)
        with pytest.raises(ProcessLookupError):
            tracing.seize(task, other.pid)
        assert other.poll() is None


def _touches_none(strange: TaskOwner, pid: int) -> None:
    tasks = [pid]
    assert sockets.reused(tasks, strange) == frozenset()
    sockets.wake(tasks, frozenset(), strange)
    inventory._write_out(pid, strange, 0)
    poll_again.go_back(tasks, strange)
    assert quiet_continue.continue_quietly(tasks, (), strange) in (frozenset(), {pid})
    if locks.can_take():
        locks._have_taken(pid, strange, [Lock(0, 0, 0, 0)])


def test_none_of_our_ways_to_a_task_touches_another_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_traced(request: int, *_: object) -> bool:
        raise AssertionError(f"it is traced: {request}")

    monkeypatch.setattr(tracing, "by_child", lambda work, each: [work(*one) for one in each])
    for module in (tracing, locks, poll_again, quiet_continue):
        monkeypatch.setattr(module, "trace", is_traced)
    ours, theirs = socket.socketpair()
    with ours, theirs, sleeping(0) as process:
        os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: status_of(process.pid)["State"][0] == "T")
        _touches_none(owner(USER), process.pid)
        assert status_of(process.pid)["State"][0] == "T"


def test_its_way_to_the_parent_ends_with_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_elastic.machine.ckptroot.signals import Relay

    sent: list[Any] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *given: sent.append(given))
    relay = Relay.__new__(Relay)
    with sleeping(0) as process:
        relay._sudo = process.pid
        relay._continue_sudo()
    assert sent == [], "its number is another's"
    relay._sudo = os.getppid()
    relay._continue_sudo()
    assert [number for _, number in sent] == [signal.SIGCONT]
