"""The hosts of one cloud: a connection each, one time-out for a whole call, and one that is away."""

from __future__ import annotations

import logging
import math
import threading
import time
from types import SimpleNamespace

import pytest

from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.providers.base.hosts import hosts
from slurm_elastic.providers.base.hosts.hosts import Hosts, deadline, seconds_left, until


class Doors(Hosts[str]):
    """``meanwhile`` is done while a connection is opened."""

    def __init__(self, timeout: float = 60.0) -> None:
        super().__init__("rack", ("a", "b", "c"), timeout)
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.meanwhile = lambda: None

    def _opened(self, host: str) -> str:
        self.opened.append(host)
        number = len(self.opened)
        self.meanwhile()
        return f"{host}{number}"

    def _close(self, connection: str) -> None:
        self.closed.append(connection)


def away(host: str) -> TransientError:
    return TransientError("rack", "Timeout", f"{host} is away")


# connections


def test_a_host_has_one_connection_until_that_is_given_up() -> None:
    doors = Doors()
    assert [doors.connection("a"), doors.connection("b"), doors.connection("a")] == [
        "a1", "b2", "a1",
    ]  # fmt: skip
    doors.forget("a")
    doors.forget("a")
    assert doors.closed == ["a1"]
    assert doors.connection("a") == "a3"
    assert doors.opened == ["a", "b", "a"]


def test_of_two_that_open_one_at_once_the_later_one_is_closed() -> None:
    doors = Doors()

    def another_thread() -> None:
        doors.meanwhile = lambda: None
        thread = threading.Thread(target=doors.connection, args=("a",))
        thread.start()
        thread.join()

    doors.meanwhile = another_thread
    assert doors.connection("a") == doors.connection("a") == "a2"
    assert doors.closed == ["a1"]


# all hosts


def test_everywhere_is_everywhere_or_an_error() -> None:
    doors = Doors()
    assert doors.everywhere(str.upper) == ["A", "B", "C"]

    def some(host: str) -> str:
        if host != "a":
            raise away(host)
        return host

    with pytest.raises(TransientError, match="b is away"):
        doors.everywhere(some)


def test_a_host_that_is_away_is_left_out_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def some(host: str) -> str:
        if host == "b":
            raise away(host)
        return host

    assert Doors().answered(["a", "b", "c"], some) == ["a", "c"]
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert "host left out cloud=rack host=b error=rack: Timeout: b is away" in told.getMessage()


def test_where_none_answers_the_first_says_why() -> None:
    def none(host: str) -> str:
        raise away(host)

    with pytest.raises(TransientError, match="b is away"):
        Doors().answered(["b", "c"], none)
    assert Doors().answered([], none) == []


def test_a_mistake_of_ours_is_no_host_that_is_away() -> None:
    def some(host: str) -> str:
        if host == "b":
            raise ValueError("nobody thought of that")
        return host

    with pytest.raises(ValueError, match="nobody thought"):
        Doors().answered(["a", "b"], some)


def test_an_answer_of_refusal_is_left_out_as_well() -> None:
    def some(host: str) -> str:
        if host == "a":
            raise AuthError("rack", "NotPermitted", "no")
        return host

    assert Doors().answered(["a", "b"], some) == ["b"]


# time


def test_a_call_has_one_deadline_also_in_its_other_threads() -> None:
    doors = Doors(timeout=1000.0)
    assert deadline() is None
    before = time.monotonic()
    with doors.limited():
        mine = deadline()
        assert mine is not None
        assert before + 1000 <= mine <= time.monotonic() + 1000
        assert doors.everywhere(lambda _: deadline()) == [mine] * 3
        with doors.limited():
            assert deadline() == mine, "a call inside another has no time of its own"
    assert deadline() is None


def test_without_one_each_thread_gets_the_clouds_time_out() -> None:
    doors = Doors(timeout=1000.0)
    before = time.monotonic()
    for found in doors.everywhere(lambda _: deadline()):
        assert found is not None
        assert before + 1000 <= found <= time.monotonic() + 1000


def test_a_deadline_is_over_with_its_block_whatever_happens_there() -> None:
    def broken() -> None:
        with until(time.monotonic() + 5):
            raise RuntimeError

    with until(time.monotonic() + 1000):
        mine = deadline()
        with pytest.raises(RuntimeError):
            broken()
        assert deadline() == mine
        with until(None):
            assert deadline() is None


def test_when_time_is_over_nothing_is_left() -> None:
    with until(time.monotonic() + 1000):
        assert 0 < seconds_left() <= 1000
    with until(time.monotonic() - 1), pytest.raises(TimeoutError):
        seconds_left()


def test_at_its_very_end_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "time", SimpleNamespace(monotonic=lambda: 5.0))
    with until(5.0), pytest.raises(TimeoutError, match="the host took too long"):
        seconds_left()
    with until(5.5):
        assert seconds_left() == 0.5
    with until(None):
        assert seconds_left() == math.inf
