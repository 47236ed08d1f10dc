"""A thread that a service needs does not die unnoticed."""

from __future__ import annotations

import threading

import pytest
from patience import eventually

from slurm_elastic.base import lasting
from slurm_elastic.base.lasting import LastingThread


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "FIRST_PAUSE_S", 0.01)


def test_a_thread_that_fails_is_logged_and_starts_over(caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[int] = []

    def run() -> None:
        rounds.append(1)
        if len(rounds) < 3:
            raise IndexError("tuple index out of range")

    thread = LastingThread("source", run)
    thread.start()
    eventually(lambda: len(rounds) == 3)
    thread.join()
    assert caplog.text.count("thread source fails, and starts over in ") == 2
    assert "tuple index out of range" in caplog.text


def test_what_cannot_do_without_the_thread_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    died: list[int] = []

    def run() -> None:
        raise IndexError

    thread = LastingThread("head", run, died=lambda: died.append(1))
    thread.start()
    eventually(lambda: died)
    thread.join()
    assert died == [1]
    assert "thread head fails, and ends what depends on it" in caplog.text


def test_a_thread_that_has_done_its_work_ends() -> None:
    died: list[int] = []
    thread = LastingThread("short", lambda: None, died=lambda: died.append(1))
    thread.start()
    thread.join()
    assert died == []


def test_a_service_at_its_end_does_not_wait_for_the_next_start() -> None:
    failed = threading.Event()

    def run() -> None:
        failed.set()
        raise OSError

    thread = LastingThread("source", run)
    lasting.FIRST_PAUSE_S = 60.0  # as patched: it is put back at the end
    thread.start()
    assert failed.wait(20)
    thread.join(20)
    assert not thread._thread.is_alive()


def test_the_pause_grows_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "LONGEST_PAUSE_S", 0.05)
    pauses: list[float] = []
    thread = LastingThread("source", lambda: 1 / 0)

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 6

    monkeypatch.setattr(thread._ended, "wait", wait)
    monkeypatch.setattr(thread._ended, "is_set", lambda: len(pauses) == 6)
    thread._last()
    assert pauses == [0.01, 0.02, 0.04, 0.05, 0.05, 0.05]
