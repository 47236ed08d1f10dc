"""The clock of tests leaves out what the machine stood still for; what it spoils is tried again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from patience import eventually, undisturbed
from slept import Slept

from slurm_elastic.testing import patience as waiting

STOOD = 2.0
CHILD = """
import sys
from slurm_elastic.testing.patience import awake
with awake() as clock:
    print("begun", flush=True)
    sys.stdin.readline()
    print(clock(), clock.longest, flush=True)
"""


def test_a_standstill_is_left_out_and_known() -> None:
    words = [sys.executable, "-c", CHILD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        began = time.monotonic()
        assert child.stdout.readline() == "begun\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(STOOD)
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(1.0)  # it has looked at its clock since
        child.stdin.write("\n")
        child.stdin.flush()
        seconds, longest = map(float, child.stdout.readline().split())
        assert seconds <= time.monotonic() - began - STOOD + 1.0
        assert longest >= STOOD - 0.2


def test_a_condition_is_asked_more_rarely_the_longer_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Slept()
    monkeypatch.setattr(waiting, "time", clock)
    assert eventually(lambda: clock.now >= 30.0, 60.0)
    assert clock.pauses == sorted(clock.pauses)
    assert (clock.pauses[0], clock.pauses[-1]) == (waiting.FIRST_PAUSE_S, waiting.MAX_PAUSE_S)
    with pytest.raises(AssertionError, match="it is still 7"):
        eventually(lambda: False, 1.0, lambda: "it is still 7")


class Failing:
    """Fails so many times; ``calls`` says what was done."""

    def __init__(self, times: int) -> None:
        self.left, self.calls = times, list[str]()

    def attempt(self) -> None:
        self.calls.append("attempt")
        self.left -= 1
        assert self.left < 0

    def renew(self) -> None:
        self.calls.append("renew")


def test_what_goes_wrong_on_a_machine_that_runs_is_not_tried_again() -> None:
    case = Failing(1)
    with pytest.raises(AssertionError):
        undisturbed(case.attempt, 1e6, case.renew)
    assert case.calls == ["attempt"]


def test_what_a_standstill_may_have_spoilt_is_tried_again_and_not_for_ever() -> None:
    case = Failing(1)
    undisturbed(case.attempt, -1.0, case.renew)
    assert case.calls == ["attempt", "renew", "attempt"]
    case = Failing(5)
    with pytest.raises(AssertionError):
        undisturbed(case.attempt, -1.0, case.renew)
    assert case.calls.count("attempt") == 3


def test_a_deadline_has_an_end_however_busy_a_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1e4, 1e4, 1e4))
    assert waiting.stretched(1.0) == waiting.MAX_FACTOR
    assert waiting.stretched(180.0) == waiting.MAX_STRETCHED_S
    assert waiting.stretched(700.0) == 700.0 * waiting.IDLE_FACTOR
