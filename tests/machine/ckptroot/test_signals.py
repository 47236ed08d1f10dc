"""The payload gets each of a step's signals once, however Slurm sends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from slurm_elastic.machine.ckptroot import signals

PROGRAM = """
import os, signal, subprocess, sys
from slurm_elastic.machine.ckptroot.signals import Relay

def send(number):
    os.kill(os.getppid(), number)

relay = Relay(int(sys.argv[1]) or os.getpid())
exec(sys.argv[2])
print(relay.wait(5.0 if sys.argv[2] else 0.0), relay.terminated)
"""
DIRECT = """
pid = os.fork()
if pid == 0:
    {sends}
    os._exit(0)
os.waitpid(pid, 0)
while (found := signal.sigtimedwait([signal.SIGCHLD], 0.0)): pass
"""
OURS = "os.kill(os.getpid(), signal.{name})"


def said(script: str, sudo: int = 0) -> str:
    """In a process of its own, to whom it is itself that is sudo, unless that is another."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(sudo), script],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def passed_on(*names: str) -> str:
    return "\n".join(OURS.format(name=name) for name in names)


def direct(*names: str) -> str:
    sends = "; ".join(f"send(signal.{name})" for name in names)
    return DIRECT.format(sends=sends)


@pytest.mark.parametrize(
    ("script", "delivered", "terminated"),
    [
        ("", (), False),
        (passed_on("SIGUSR1"), (signal.SIGUSR1,), False),
        (passed_on("SIGTERM", "SIGUSR1"), (signal.SIGUSR1, signal.SIGTERM), True),
        (direct("SIGUSR1"), (), False),
        (direct("SIGTERM"), (), True),
        (direct("SIGUSR2") + passed_on("SIGUSR1"), (signal.SIGUSR1,), False),
        (passed_on("SIGCHLD"), (), False),
        (passed_on("SIGWINCH", "SIGHUP"), (signal.SIGHUP, signal.SIGWINCH), False),
    ],
)
def test_what_sudo_alone_got_is_passed_on(
    script: str, delivered: Sequence[signal.Signals], terminated: bool
) -> None:
    assert said(script) == f"{sorted(map(int, delivered))} {terminated}"


def test_what_came_by_both_ways_has_reached_the_payload_already() -> None:
    """slurmstepd's own copy, and the one that sudo passes on: pending signals are one, so the first
    is taken before the second comes.
    """
    script = """
from types import SimpleNamespace
takes, turns = signal.sigtimedwait, []

def take(numbers, timeout):
    if len(turns) == 1:  # the first one is taken, and nothing goes by how soon that is
        child = os.fork()
        if child == 0:
            send(signal.SIGUSR1)
            os._exit(0)
        os.waitpid(child, 0)
    turns.append(timeout)
    return takes(numbers, timeout)

from slurm_elastic.machine.ckptroot import signals
signals.signal = SimpleNamespace(**{**vars(signal), "sigtimedwait": take})
os.kill(os.getpid(), signal.SIGUSR1)
"""
    assert said(script) == "[] False"


def test_none_of_another_parent_is_passed_on() -> None:
    assert said(passed_on("SIGUSR1"), sudo=os.getpid()) == "[] False"


# sudo, which stops itself

SUDO_PROGRAM = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(child.wait())
"""
STOPPED = """
import os, time
from slurm_elastic.machine.ckptroot.proc import status_of
from slurm_elastic.machine.ckptroot.signals import Relay
relay = Relay(os.getppid())
while status_of(os.getppid())["State"][0] != "T":
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "wake", ["while True: relay.wake_sudo(); time.sleep(0.1)", "relay.wake_sudo(0.0)"]
)
def test_a_sudo_that_has_stopped_itself_goes_on(wake: str) -> None:
    """It learns that we were stopped when Slurm has resumed all of us already."""
    until_it_runs = STOPPED + wake.replace(
        "while True", 'while status_of(os.getppid())["State"][0] == "T"'
    )
    done = subprocess.run([sys.executable, "-c", SUDO_PROGRAM, until_it_runs], timeout=60)
    assert done.returncode == 0


def test_the_first_sign_of_a_suspend_is_left_to_the_payload() -> None:
    """sudo's copy of it may come when Slurm has resumed the job: who would continue us then?"""
    assert said("os.kill(os.getpid(), signal.SIGTSTP)") == "[] False"


# by a clock of the tests


class Came:
    """Signals that come one after the other, each ``apart`` seconds; ``waits`` says for how long
    each was waited.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, apart: float, *numbers: int) -> None:
        self.now, self.apart, self.waits = 1000.0, apart, list[float]()
        self.numbers = list(numbers)
        monkeypatch.setattr(signals, "block", lambda: None)
        monkeypatch.setattr(signals.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(signals.signal, "sigtimedwait", self.take)

    def take(self, _: object, timeout: float) -> SimpleNamespace | None:
        self.waits.append(timeout)
        self.now += self.apart
        if not self.numbers:
            return None
        return SimpleNamespace(si_signo=self.numbers.pop(0), si_pid=SUDO)


SUDO = 30


def test_copies_are_waited_for_a_tenth_of_a_second_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many signals come."""
    came = Came(monkeypatch, 0.06, *[int(signal.SIGUSR1)] * 4)
    assert signals.Relay(SUDO).wait(5.0) == [signal.SIGUSR1]
    assert came.waits == pytest.approx([5.0, 0.1, 0.04, 0.0, 0.0])


def test_the_end_of_a_child_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    came = Came(monkeypatch, 0.0, int(signal.SIGCHLD))
    assert signals.Relay(SUDO).wait(5.0) == []
    assert came.waits == [5.0]


def test_the_end_of_a_child_costs_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    Came(monkeypatch, 0.0, int(signal.SIGTERM), int(signal.SIGCHLD), int(signal.SIGHUP))
    relay = signals.Relay(SUDO)
    assert relay.wait(5.0) == [signal.SIGHUP, signal.SIGTERM]
    assert relay.terminated


def test_of_another_parent_a_signal_reaches_the_payload_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Came(monkeypatch, 0.0, int(signal.SIGTERM), int(signal.SIGCHLD))
    relay = signals.Relay(SUDO + 1)
    assert not relay.terminated
    assert relay.wait(5.0) == []
    assert relay.terminated
