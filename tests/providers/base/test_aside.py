"""Calls that know no time-out: nobody waits longer than a call may take, and none is left in numbers."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest
from patience import stretched

from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.providers.base.aside import AsideHosts, Meaning
from slurm_elastic.providers.base.hosts.hosts import deadline, until


class SdkError(Exception):
    """The SDK's own."""


class Door:
    """A connection."""


class Doors(AsideHosts[Door]):
    """Hosts whose calls last until ``open`` is set."""

    failure = SdkError

    def __init__(self, places: int = 2, timeout: float = stretched(60.0)) -> None:
        super().__init__("rack", ("a", "b"), timeout, places)
        self.means: Meaning = (AuthError, "Denied")
        self.made = 0
        self.open = threading.Event()

    def _opened(self, host: str) -> Door:
        self.made += 1
        return Door()

    def _meaning(self, error: Exception) -> Meaning:
        return self.means

    def waits(self, _: Door) -> str:
        assert self.open.wait(stretched(60.0))
        return "late"


@pytest.fixture
def doors() -> Iterator[Doors]:
    made = Doors()
    yield made
    made.open.set()


def fails(_: Door) -> str:
    raise SdkError("the  door\nis shut " + "x" * 400)


def test_a_call_is_made_in_another_thread_with_the_same_deadline(doors: Doors) -> None:
    with until(time.monotonic() + stretched(60.0)):
        mine = deadline()
        found = doors.call("a", lambda _: (deadline(), threading.current_thread()))
    assert found[0] == mine
    assert found[1] is not threading.current_thread()
    assert found[1].daemon, "no process waits for one that is left behind"


def test_a_refusal_shows_that_its_text_was_cut_and_the_connection_is_used_on(doors: Doors) -> None:
    text = "the door is shut " + "x" * 180 + "..." + "x" * 100
    with pytest.raises(AuthError) as caught:
        doors.call("a", fails)
    assert str(caught.value) == f"rack: Denied: a: {text}"
    assert doors.call("a", lambda _: "well") == "well"
    assert doors.made == 1


def test_what_may_pass_gives_the_connection_up(doors: Doors) -> None:
    doors.means = (TransientError, "Busy")
    with pytest.raises(TransientError, match="Busy: a: the door is shut"):
        doors.call("a", fails)
    doors.call("a", lambda _: "well")
    assert doors.made == 2


def test_an_error_that_is_not_the_sdks_passes_through(doors: Doors) -> None:
    def breaks(_: Door) -> str:
        raise KeyError("id")

    with pytest.raises(KeyError):
        doors.call("a", breaks)
    assert doors.made == 1


def test_one_that_takes_too_long_is_left_behind_and_keeps_its_place(doors: Doors) -> None:
    for _ in range(3):  # the third finds both places taken
        with (
            until(time.monotonic() + 0.05),
            pytest.raises(TransientError, match="Timeout: a: no answer in time"),
        ):
            doors.call("a", doors.waits)
    assert doors.made <= 2
    assert doors.call("b", lambda _: "well") == "well"
    doors.open.set()
    for _ in range(5):
        assert doors.call("a", lambda _: "well") == "well"


class Closes(Door):
    """Its host is silent: its end lasts."""

    ended: threading.Event
    by: threading.Thread | None = None

    def __del__(self) -> None:
        Closes.by = threading.current_thread()
        Closes.ended.set()


def test_nobody_waits_for_the_end_of_a_connection(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Closes, "ended", threading.Event(), raising=False)
    monkeypatch.setattr(doors, "_opened", lambda _: Closes())
    doors.call("a", lambda _: None)
    doors.forget("a")
    assert Closes.ended.wait(stretched(60.0))
    assert Closes.by is not threading.current_thread()
    assert Closes.by is not None
    assert Closes.by.daemon
    doors.forget("a")


def test_one_whose_call_failed_ends_at_once_and_not_where_garbage_is_collected(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever thread that is would wait for the host, with whatever lock it holds."""
    monkeypatch.setattr(Closes, "ended", threading.Event(), raising=False)
    monkeypatch.setattr(doors, "_opened", lambda _: Closes())
    doors.means = (TransientError, "Busy")
    gc.disable()
    try:
        with pytest.raises(TransientError):
            doors.call("a", fails)
        assert Closes.ended.wait(stretched(10.0))
    finally:
        gc.enable()
    assert Closes.by is not threading.current_thread()
