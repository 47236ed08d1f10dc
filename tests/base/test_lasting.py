"""A thread that a service needs does not die unnoticed."""

from __future__ import annotations

import re
import threading

import pytest
from guarded import product_texts
from patience import eventually

from slurm_elastic.base.processes import lasting
from slurm_elastic.base.processes.lasting import LastingThread


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


def test_a_library_that_wants_to_exit_ends_no_thread_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python ends a thread that raises SystemExit, and prints nothing."""
    rounds: list[int] = []

    def run() -> None:
        rounds.append(1)
        if len(rounds) < 2:
            raise SystemExit(1)

    thread = LastingThread("source", run)
    thread.start()
    eventually(lambda: len(rounds) == 2)
    thread.join()
    assert caplog.text.count("thread source fails, and starts over in ") == 1


SEEN_BY = {
    "base/processes/background.py": "in_background logs the exception under the name of its work",
    "base/processes/lasting.py": "LastingThread logs a failure, and starts over or ends what depends on it",
    "base/processes/server.py": "a server that fails tells its service; Hands give errors to who waits",
    "base/processes/signals.py": "it only calls the function of a signal; the timer in C ends the process all the same",
    "base/processes/in_time.py": "the error is raised where the result is waited for",
    "providers/base/aside.py": "the error is raised where the result is waited for",
    "providers/docker/client.py": "the error is raised where the result is waited for",
    "machine/jobfiles/copier.py": "an error closes the link, which the client reports as one",
    "machine/programs/agent.py": "it catches all errors itself; a program of the standard library",
    "machine/ckptroot/dump.py": "the image's size is looked at once more at its end",
    "image/imds.py": "for one command, which a person watches",
    "testing/patience.py": "of tests",
}
"""The places that start threads, and how the end of one is noticed there."""


def test_each_place_that_starts_threads_notices_the_end_of_one() -> None:
    made = re.compile(r"\b(?:threading\.)?(?:Thread|Timer)\(")
    found = {name for name, text in product_texts().items() if made.search(text)}
    places = {f"slurm_elastic/{name}".removesuffix(".py").replace("/", ".") for name in SEEN_BY}
    assert found == places, "start a LastingThread, or say here how the end is noticed"
