"""When a task is due that is done again and again, and its thread."""

from __future__ import annotations

import ast
import threading
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually, patience

import slurm_elastic
from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.processes import lasting
from slurm_elastic.base.processes.periodic import (
    MAX_REST_AFTER_FAILURE_S,
    MAX_REST_S,
    PeriodicTask,
    PeriodicThread,
)


class Bed:
    """Work on a clock that only moves while it is done, or a stop is waited for."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.done_at = 0.0, 0.0, list[float]()
        self.result: object = None
        self.stop = threading.Event()

    def clock(self) -> float:
        return self.now

    def work(self) -> object:
        self.done_at.append(self.now)
        self.now += self.takes_s
        return self.result

    def until(self, end: float, task: PeriodicTask) -> list[float]:
        """Run the task by a stop that is set at ``end``. Returns when the work was begun."""
        bed = self

        class Stop(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                bed.now += timeout or 0.0
                if bed.now >= end:
                    self.set()
                return self.is_set()

        task.run(Stop())
        return self.done_at


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_the_period_counts_from_the_end_of_the_work(bed: Bed) -> None:
    bed.takes_s = 2.0
    task = PeriodicTask("work", bed.work, 10.0, clock=bed.clock)
    assert bed.until(30.0, task) == [0.0, 12.0, 24.0]


def test_the_first_time_may_be_later(bed: Bed) -> None:
    task = PeriodicTask("work", bed.work, 10.0, first_in_s=5.0, clock=bed.clock)
    assert bed.until(20.0, task) == [5.0, 15.0]


def test_work_that_takes_long_is_done_less_often(bed: Bed) -> None:
    bed.takes_s = 2.0
    task = PeriodicTask("work", bed.work, 10.0, pace=20.0, clock=bed.clock)
    assert bed.until(50.0, task) == [0.0, 42.0]


def test_work_that_timed_out_is_done_again_soon(bed: Bed) -> None:
    """The time-out says nothing about the load that an answer causes."""
    bed.takes_s, bed.result = 30.0, False
    task = PeriodicTask("work", bed.work, 10.0, pace=20.0, clock=bed.clock)
    assert bed.until(100.0, task) == [0.0, 90.0]
    bed.takes_s, bed.result, bed.done_at = 1.0, None, []
    assert bed.until(203.0, task) == [180.0, 201.0]


def test_work_that_takes_very_long_rests_a_bounded_time(bed: Bed) -> None:
    bed.takes_s = 29.0
    task = PeriodicTask("work", bed.work, 10.0, pace=20.0, clock=bed.clock)
    assert bed.until(210.0, task) == [0.0, 29.0 + MAX_REST_S]
    assert task._soonest_at == task._due_at, "an event hurries it no sooner"


def test_failures_are_tried_again_by_the_back_off_until_one_goes_well(bed: Bed) -> None:
    task = PeriodicTask("work", bed.work, 10.0, retry=Backoff(20.0, 60.0), clock=bed.clock)
    bed.result = False
    assert bed.until(190.0, task) == [0.0, 20.0, 60.0, 120.0, 180.0]
    bed.result, bed.done_at = None, []
    assert bed.until(261.0, task) == [240.0, 250.0, 260.0]
    bed.result, bed.done_at = False, []
    assert bed.until(291.0, task) == [270.0, 290.0]


def test_without_a_back_off_a_failure_is_tried_again_a_period_later(bed: Bed) -> None:
    bed.result = False
    assert bed.until(25.0, PeriodicTask("work", bed.work, 10.0, clock=bed.clock)) == [0, 10, 20]


def test_a_task_that_ends_is_not_done_again(bed: Bed) -> None:
    task = PeriodicTask("work", lambda: (bed.work(), task.end()), 10.0, clock=bed.clock)
    assert bed.until(100.0, task) == [0.0]
    assert (task._due_at, task._soonest_at) == (inf, inf)
    assert bed.until(100.0, task) == [0.0]


def test_after_an_exception_the_next_time_is_due_at_once(bed: Bed) -> None:
    task = PeriodicTask("work", lambda: 1 // 0, 10.0, clock=bed.clock)
    with pytest.raises(ZeroDivisionError):
        bed.until(10.0, task)
    assert task._due_at == 0.0


@given(
    st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), min_size=1, max_size=20),
    st.floats(0.1, 100.0), st.floats(0.0, 30.0),
)  # fmt: skip
def test_the_pause_is_that_of_the_rules(
    calls: list[tuple[float, bool]], period_s: float, pace: float
) -> None:
    bed, retry = Bed(), Backoff(2.0, 50.0)
    task = PeriodicTask("work", bed.work, period_s, pace=pace, retry=retry, clock=bed.clock)
    failures = 0
    for bed.takes_s, bed.result in calls:
        task.once()
        failures = 0 if bed.result else failures + 1
        rest = min(pace * bed.takes_s, MAX_REST_AFTER_FAILURE_S if failures else MAX_REST_S)
        least = retry.after(failures) if failures else max(period_s, rest)
        assert task._due_at - bed.now == pytest.approx(least, abs=1e-6)
        assert task._soonest_at - bed.now == pytest.approx(rest, abs=1e-6)
        bed.now = task._due_at


def test_a_thread_that_is_woken_does_its_work_at_once() -> None:
    stop, woken, done = threading.Event(), threading.Event(), threading.Semaphore(0)
    thread = PeriodicThread(PeriodicTask("work", done.release, 3600.0), stop, woken=woken)
    thread.start()
    for _ in range(3):
        assert done.acquire(timeout=patience(30))
        woken.set()
    assert done.acquire(timeout=patience(30))
    stop.set()
    woken.set()
    thread.join(patience(30))
    assert not thread._thread.is_alive()


def test_a_thread_whose_work_raises_is_logged_and_starts_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lasting, "FIRST_PAUSE_S", 0.01)
    stop, calls = threading.Event(), list[int]()

    def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise IndexError("tuple index out of range")

    thread = PeriodicThread(PeriodicTask("source", work, 0.01), stop)
    thread.start()
    eventually(lambda: len(calls) > 2)
    stop.set()
    thread.join(patience(30))
    assert "thread source fails, and starts over in " in caplog.text


def test_what_cannot_do_without_the_task_ends_with_it() -> None:
    died = threading.Event()
    thread = PeriodicThread(
        PeriodicTask("head", lambda: 1 // 0, 3600.0), threading.Event(), died=died.set
    )
    thread.start()
    assert died.wait(patience(30))
    thread.join(patience(30))


PACKAGE = Path(slurm_elastic.__file__).parent
LOOPS = {
    "base/processes/lasting.py": "starts a thread over",
    "ckptman/service.py": "the main loop, which rests by the jobs on their way",
    "cli/services/daemon.py": "serves again with other catalogues or as another head",
    "cli/services/standby.py": "waits until this head may act, and does nothing else meanwhile",
    "controller/daemon.py": "the main loop, which waits for datagrams",
    "features/files/copy_runner.py": "reads a result until it is there, late or no longer wanted",
    "features/files/copying.py": "looks for one job until it can be held, for five minutes",
    "features/power/prolog.py": "in a loop of asyncio",
    "machine/ckptroot/dump.py": "a program with the standard library alone",
    "testing/patience.py": "measures how long its own pauses are",
    "watch/web/server.py": "in a loop of asyncio",
}
"""Modules with a loop of their own until an event is set."""


def test_no_other_module_has_a_loop_of_its_own_until_an_event() -> None:
    by_hand = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "while " in (text := path.read_text())
        for loop in ast.walk(ast.parse(text))
        if isinstance(loop, ast.While)
        if any(end in ast.unparse(loop.test) for end in (".is_set()", ".wait("))
    }
    assert by_hand == set(LOOPS)
