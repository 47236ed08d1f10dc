"""Submit work to another thread and log its exception, as no caller reads the result."""

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
    """Have ``executor`` do ``work``. An exception is logged under ``name``, because a Future
    reports it only to a caller that reads the result, and most callers do not.
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
