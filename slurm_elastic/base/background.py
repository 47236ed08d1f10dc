"""Work that is handed to another thread, where nobody waits for its result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


def submit(
    executor: Executor, name: str, work: Callable[P, T], *args: P.args, **named: P.kwargs
) -> Future[T]:
    """Have ``work`` done by ``executor``. Its exception is logged under ``name``: a Future keeps it
    to itself until somebody asks, and nobody asks most of ours.
    """
    future = executor.submit(work, *args, **named)
    future.add_done_callback(lambda done: _log_failure(name, done))
    return future


def _log_failure(name: str, done: Future[T]) -> None:
    # A cancelled Future raises when it is asked for its exception.
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("background task %s failed: %s: %s", name, type(error).__name__, error,
                  exc_info=error)  # fmt: skip
