"""Many calls of one kind, some at a time: for clouds whose API takes one machine a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from slurm_elastic.base.errors import ProviderError, TransientError

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(items: Sequence[Item], do: Callable[[Item], Result], threads: int) -> list[Future[Result]]:
    """``do`` for each item, so many at a time; all are done on return, in the items' order."""
    if not items:
        return []
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return [pool.submit(do, item) for item in items]


def failures(results: Iterable[Future[Result]]) -> list[BaseException]:
    """The errors among them."""
    return [error for one in results if (error := one.exception())]


def require(failed: Sequence[BaseException]) -> None:
    """The first error, if any; calls that must be repeated are told before what will not pass."""
    if failed:
        raise next((e for e in failed if isinstance(e, TransientError)), failed[0])


def until_refused(
    items: Sequence[Item], do: Callable[[Item], Result], threads: int
) -> tuple[list[Result], ProviderError | None]:
    """``do`` for each item, so many at a time, until one is refused: what it gave, and the first
    refusal. Where nobody knows what came of one, its error is raised.
    """
    stop = threading.Event()

    def attempt(item: tuple[int, Item]) -> list[Result]:
        place, one = item
        if stop.is_set() and place >= threads:
            return []
        try:
            return [do(one)]
        except BaseException:
            stop.set()
            raise

    results = each(list(enumerate(items)), attempt, threads)
    refused: ProviderError | None = None
    for error in failures(results):
        if not isinstance(error, ProviderError) or isinstance(error, TransientError):
            raise error
        refused = refused or error
    return [one for r in results if not r.exception() for one in r.result()], refused
