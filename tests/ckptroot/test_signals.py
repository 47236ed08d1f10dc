"""What of a step's signals the payload gets: each once, however Slurm sends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

PROGRAM = """
import os, signal, subprocess, sys
from slurm_elastic.ckptroot.signals import Relay

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
import threading, time
os.kill(os.getpid(), signal.SIGUSR1)
child = os.fork()
if child == 0:
    time.sleep(0.02)
    send(signal.SIGUSR1)
    time.sleep(1)
    os._exit(0)
"""
    assert said(script) == "[] False"


def test_none_of_another_parent_is_passed_on() -> None:
    assert said(passed_on("SIGUSR1"), sudo=os.getpid()) == "[] False"
