"""Many calls of one kind, some at a time: for clouds whose API takes one machine a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(items: Sequence[Item], do: Callable[[Item], Result], threads: int) -> list[Future[Result]]:
    """``do`` for each item, so many at a time; all are done on return, in the items' order."""
    if not items:
        return []
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return [pool.submit(do, item) for item in items]
