"""How long the private Slurm of tests and measurements waits."""

from __future__ import annotations

import os

import pytest
from slept import Slept

from benchmarks import small_slurm
from benchmarks.small_slurm import wait_until
from slurm_elastic.testing import patience as waiting


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Slept:
    made = Slept()
    for module in (small_slurm, waiting):
        monkeypatch.setattr(module, "time", made)
    return made


def test_a_busy_machine_gets_more_time(clock: Slept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (20.0, 20.0, 20.0))
    wait_until(lambda: clock.now > 700, timeout=180)
    with pytest.raises(TimeoutError):
        wait_until(lambda: False, timeout=180)


def test_a_condition_is_asked_more_rarely_the_longer_it_is_waited_for(clock: Slept) -> None:
    """Most conditions start a command of Slurm."""
    wait_until(lambda: clock.now > 60, timeout=60)
    assert clock.pauses == sorted(clock.pauses)
    assert (clock.pauses[0], clock.pauses[-1]) == (0.05, waiting.MAX_PAUSE_S)
