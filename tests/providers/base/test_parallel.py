"""Calls side by side: so many at a time, and answers in the order of what was asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slurm_elastic.providers.base import parallel
from slurm_elastic.providers.base.parallel import each


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
