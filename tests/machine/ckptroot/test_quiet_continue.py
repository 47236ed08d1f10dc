"""Real processes that were stopped go on, and what they notice of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slurm_elastic.machine.ckptroot import quiet_continue
from slurm_elastic.machine.ckptroot.proc import status_of

from .helpers import ROOT, eventually, owner

pytestmark = ROOT

PROGRAM = """
import signal, sys, threading, time
def said(*words):
    print(*words, flush=True)
def wait():
    while True:
        said("waited for", signal.sigwait([signal.SIGCONT]).name)
match sys.argv[1]:
    case "catches":
        signal.signal(signal.SIGCONT, lambda *_: said("SIGCONT"))
        signal.signal(signal.SIGUSR1, lambda *_: said("SIGUSR1"))
    case "waits":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
        threading.Thread(target=wait, daemon=True).start()
for _ in range(3):
    threading.Thread(target=lambda: time.sleep(3600), daemon=True).start()
said("begun")
for line in sys.stdin:
    said("read", line.strip(), len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""


class Task:
    """A program with five threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: all(s == "T" for s in self.states()))

    def states(self) -> list[str]:
        threads = os.listdir(f"/proc/{self.pid}/task")
        return [status_of(int(thread)).get("State", "?")[0] for thread in threads]

    def rest(self) -> list[str]:
        """It reads a line and ends; what it has said."""
        return self.process.communicate("on\n")[0].splitlines()


@contextmanager
def begun(how: str) -> Iterator[Task]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield Task(process)
        finally:
            process.kill()


@pytest.mark.parametrize(("how", "blocked"), [("catches", 0), ("waits", 1)])
def test_one_that_would_notice_does_not(how: str, blocked: int) -> None:
    with begun(how) as task:
        task.stop()
        assert quiet_continue.continue_quietly([task.pid], (), owner()) == {task.pid}
        assert task.rest() == [f"read on {blocked}"], "no signal, and the same are blocked"


def test_a_signal_of_somebody_elses_is_not_lost() -> None:
    with begun("catches") as task:
        task.stop()
        os.kill(task.pid, signal.SIGUSR1)
        assert quiet_continue.continue_quietly([task.pid], (), owner()) == {task.pid}
        assert task.rest() == ["SIGUSR1", "read on 0"]
        assert not _traced(task.pid)


def test_later_ones_reach_it() -> None:
    with begun("catches") as task:
        task.stop()
        quiet_continue.continue_quietly([task.pid], (), owner())
        task.stop()
        os.kill(task.pid, signal.SIGCONT)
        assert task.rest() == ["SIGCONT", "read on 0"]


def test_one_that_notices_nothing_is_left_to_the_others_way() -> None:
    with begun("neither") as task:
        task.stop()
        assert quiet_continue.continue_quietly([task.pid], (), owner()) == set()
        assert set(task.states()) == {"T"}
        assert not _traced(task.pid)


def test_one_that_its_user_had_stopped_stays_so() -> None:
    with begun("catches") as task, begun("catches") as other:
        task.stop()
        other.stop()
        assert quiet_continue.continue_quietly([task.pid, other.pid], {other.pid}, owner()) == {
            task.pid
        }
        assert set(other.states()) == {"T"}
        os.kill(other.pid, signal.SIGCONT)
        assert other.rest() == ["SIGCONT", "read on 0"]


def test_one_that_is_gone_holds_up_nobody() -> None:
    with begun("catches") as task:
        task.stop()
        gone = subprocess.Popen(["true"])
        gone.wait()
        assert quiet_continue.continue_quietly([gone.pid, task.pid], (), owner()) == {task.pid}


def _traced(pid: int) -> bool:
    return status_of(pid).get("TracerPid", "0") != "0"
