"""Calls side by side: so many at a time, and answers in the order of what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from patience import stretched

from slurm_elastic.base.errors import CapacityError, TransientError
from slurm_elastic.providers.base import parallel
from slurm_elastic.providers.base.parallel import each, raise_first_error, until_refused


@pytest.mark.parametrize(
    ("count", "threads", "workers"), [(6, 2, [2]), (2, 6, [2]), (1, 1, [1]), (0, 4, [])]
)
def test_there_are_no_more_threads_than_asked_for_and_none_without_work(
    monkeypatch: pytest.MonkeyPatch, count: int, threads: int, workers: list[int]
) -> None:
    made: list[int] = []

    class Counted(ThreadPoolExecutor):
        def __init__(self, most: int, **more: Any) -> None:
            made.append(most)
            super().__init__(most, **more)

    monkeypatch.setattr(parallel, "ThreadPoolExecutor", Counted)
    found = each(range(count), lambda n: n * n, threads)
    assert [one.result() for one in found] == [n * n for n in range(count)]
    assert made == workers


def test_one_that_fails_keeps_no_other() -> None:
    good, bad = each([2, 0], lambda n: 4 // n, 1)
    assert good.result() == 2
    assert isinstance(bad.exception(), ZeroDivisionError)


REFUSED, UNCLEAR = CapacityError("c", "Full", "no room"), TransientError("c", "Timeout", "?")


def test_after_a_refusal_nothing_is_begun_but_what_was_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two at a time: the third has its turn once the first is refused, while the second goes on."""
    third, begun, whole = threading.Event(), [], parallel.each

    def noting(items: Any, do: Callable[[Any], Any], threads: int) -> Any:
        def noted(item: Any) -> Any:
            if item == (2, "c"):
                third.set()
            return do(item)

        return whole(items, noted, threads)

    def lasts(item: str) -> str:
        begun.append(item)
        if item == "a":
            raise REFUSED
        assert third.wait(stretched(60.0))
        return item

    monkeypatch.setattr(parallel, "each", noting)
    assert until_refused(["a", "b", "c", "d"], lasts, 2) == (["b"], REFUSED)
    assert sorted(begun) == ["a", "b"]


def test_what_nobody_knows_the_end_of_is_raised_though_another_was_refused() -> None:
    wrong = {"a": REFUSED, "b": UNCLEAR}

    def ends(item: str) -> None:
        raise wrong[item]

    with pytest.raises(TransientError):
        until_refused(["a", "b"], ends, 2)
    with pytest.raises(TransientError):
        raise_first_error([REFUSED, UNCLEAR])
    raise_first_error([])
