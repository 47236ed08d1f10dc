"""A value serves for its time and no longer, and one reading serves all who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually, patience

from slurm_elastic.base.ttl_cache import TtlCache


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Reads:
    """The value of a reading is its number; each takes ``took_s``."""

    def __init__(self, clock: Clock, took_s: float = 0.0) -> None:
        self.clock, self.took_s, self.count = clock, took_s, 0

    def __call__(self) -> int:
        self.clock.now += self.took_s
        self.count += 1
        return self.count


def test_a_value_serves_for_its_time() -> None:
    clock = Clock()
    cache, read = TtlCache[str, int](clock), Reads(clock)
    values = []
    for clock.now in (0.0, 4.9, 5.0, 9.9, 10.0):
        values.append(cache.get("a", read, ttl_s=5.0))
    assert values == [1, 1, 2, 2, 3]
    assert cache.get("b", read, ttl_s=5.0) == 4, "another key"
    assert cache.get("a", read) == 3, "without a bound it serves for ever"


def test_the_age_counts_from_the_beginning_of_the_reading() -> None:
    clock = Clock()
    cache, read = TtlCache[str, int](clock), Reads(clock, took_s=3.0)
    assert cache.get("a", read, ttl_s=5.0) == 1
    clock.now = 5.0
    assert cache.last("a", 5.0) is None
    assert cache.last("a") == 1
    assert cache.get("a", read, ttl_s=5.0) == 2


def test_a_reading_tells_when_it_began_and_how_long_it_took() -> None:
    clock = Clock()
    clock.now = 7.0
    cache, read = TtlCache[str, int](clock), Reads(clock, took_s=3.0)
    assert cache.reading("a") is None
    cache.get("a", read)
    assert cache.reading("a") == (1, 7.0, 3.0)


def test_what_is_forgotten_is_read_again() -> None:
    clock = Clock()
    cache, read = TtlCache[str, int](clock), Reads(clock)
    assert [cache.get("a", read), cache.get("a", read)] == [1, 1]
    cache.forget()
    assert cache.last("a") is None
    assert cache.get("a", read) == 2


def test_a_cache_has_room_for_ten_thousand_keys() -> None:
    cache = TtlCache[int, int](Clock())
    for key in range(10_001):
        cache.get(key, lambda: 0)
    assert (len(cache._readings), cache.last(0), cache.last(1)) == (10_000, None, 0)


def test_a_reading_that_takes_long_may_serve_longer() -> None:
    clock = Clock()
    cache, read = TtlCache[str, int](clock), Reads(clock, took_s=3.0)
    for clock.now, expected in ((0.0, 1), (29.0, 1), (30.0, 2)):
        assert cache.get("a", read, ttl_s=lambda took_s: 10 * took_s) == expected


def test_a_caller_may_ask_for_a_reading_that_began_since() -> None:
    clock = Clock()
    cache, read = TtlCache[str, int](clock), Reads(clock)
    clock.now = 7.0
    assert [cache.get("a", read, since=at) for at in (0.0, 7.0, 7.1, 7.0)] == [1, 1, 2, 2]


def test_a_reading_that_fails_leaves_the_last_one() -> None:
    cache = TtlCache[str, int](Clock())
    cache.get("a", lambda: 1)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0, ttl_s=0.0)
    assert cache.last("a") == 1


def test_one_reading_serves_all_who_wait_for_it_and_no_other_key_waits() -> None:
    clock, begun, free = Clock(), threading.Event(), threading.Event()
    cache, reads = TtlCache[str, int](clock), list[int]()

    def slow() -> int:
        begun.set()
        assert free.wait(patience(30))
        reads.append(1)
        return len(reads)

    with ThreadPoolExecutor(4) as workers:
        waiting = [workers.submit(cache.get, "a", slow, ttl_s=9.0) for _ in range(4)]
        assert begun.wait(patience(30))
        assert cache.last("a") is None
        assert cache.get("b", lambda: 7, ttl_s=9.0) == 7
        free.set()
        assert [one.result(patience(30)) for one in waiting] == [1, 1, 1, 1]


def test_who_waited_for_a_slow_reading_gets_none_that_is_too_old() -> None:
    clock, begun, free = Clock(), threading.Event(), threading.Event()
    cache = TtlCache[str, str](clock)

    def slow() -> str:
        begun.set()
        assert free.wait(patience(30))
        clock.now = 20.0
        return "slow"

    with ThreadPoolExecutor(2) as workers:
        first = workers.submit(cache.get, "a", slow, ttl_s=5.0)
        assert begun.wait(patience(30))
        second = workers.submit(cache.get, "a", lambda: "anew", ttl_s=5.0)
        free.set()
        assert (first.result(patience(30)), second.result(patience(30))) == ("slow", "anew")


def test_what_is_forgotten_while_it_is_read_serves_only_who_reads() -> None:
    begun, free = threading.Event(), threading.Event()
    cache = TtlCache[str, str](Clock())

    def slow() -> str:
        begun.set()
        assert free.wait(patience(30))
        return "before the change"

    with ThreadPoolExecutor(1) as workers:
        reading = workers.submit(cache.get, "a", slow)
        assert begun.wait(patience(30))
        cache.forget()
        free.set()
        assert reading.result(patience(30)) == "before the change"
    assert cache.get("a", lambda: "after it") == "after it"


def test_a_reading_may_ask_the_cache_for_another_key() -> None:
    cache = TtlCache[str, int](Clock())
    result: list[int] = []
    work = threading.Thread(
        target=lambda: result.append(cache.get("a", lambda: cache.get("b", lambda: 1) + 1)),
        daemon=True,
    )
    work.start()
    eventually(lambda: result == [2])


def test_the_keys_that_were_read_longest_ago_are_dropped() -> None:
    cache = TtlCache[int, int](Clock(), max_keys=2)
    for key in (1, 2, 1, 3):
        cache.get(key, lambda: 0, ttl_s=0.0)
    assert [cache.reading(key) is None for key in (1, 2, 3)] == [False, True, False]
    for key in range(9):
        with pytest.raises(ZeroDivisionError):
            cache.get(-key, lambda: 1 // 0, ttl_s=0.0)
    assert len(cache._turns) == 2


STEPS = st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 5.0))


@given(st.lists(STEPS))
def test_no_value_is_older_than_was_asked_for(steps: list[tuple[float, float, float]]) -> None:
    clock = Clock()
    cache = TtlCache[str, float](clock)

    def reading(took_s: float) -> Callable[[], float]:
        def read() -> float:
            began_at = clock.now
            clock.now += took_s
            return began_at

        return read

    for pause_s, ttl_s, took_s in steps:
        clock.now += pause_s
        asked_at = clock.now
        began_at = cache.get("a", reading(took_s), ttl_s=ttl_s)
        assert asked_at - began_at <= ttl_s
