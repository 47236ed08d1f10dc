"""Run many calls of one kind, some at a time, for clouds whose API handles one machine per call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from slurm_elastic.base.errors import ProviderError, TransientError

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(items: Sequence[Item], do: Callable[[Item], Result], threads: int) -> list[Future[Result]]:
    """Call ``do`` for each item, at most ``threads`` at a time. Returns when all are done, in the
    items' order.
    """
    if not items:
        return []
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return [pool.submit(do, item) for item in items]


def failures(results: Iterable[Future[Result]]) -> list[BaseException]:
    """The errors among the results."""
    return [error for result in results if (error := result.exception())]


def raise_first_error(errors: Sequence[BaseException]) -> None:
    """Raise the first error, if any. A TransientError comes before others, because its call must be
    repeated.
    """
    if errors:
        raise next((e for e in errors if isinstance(e, TransientError)), errors[0])


def until_refused(
    items: Sequence[Item], do: Callable[[Item], Result], threads: int
) -> tuple[list[Result], ProviderError | None]:
    """Call ``do`` for each item, at most ``threads`` at a time, until the first refusal. Returns
    the results and the first refusal. If the outcome of a call is unknown (TransientError), its
    error is raised.
    """
    stop = threading.Event()

    def attempt(numbered: tuple[int, Item]) -> list[Result]:
        number, item = numbered
        # The first ``threads`` items start together, so each of them is tried, whichever thread
        # runs first.
        if stop.is_set() and number >= threads:
            return []
        try:
            return [do(item)]
        # Nothing is swallowed: an error of any kind stops the others, and goes to the caller.
        except BaseException:
            stop.set()
            raise

    results = each(list(enumerate(items)), attempt, threads)
    refusal: ProviderError | None = None
    for error in failures(results):
        if not isinstance(error, ProviderError) or isinstance(error, TransientError):
            raise error
        refusal = refusal or error
    return [value for r in results if not r.exception() for value in r.result()], refusal
