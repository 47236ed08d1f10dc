"""Hand work to another thread, and log its exception, as no caller reads the result."""

from __future__ import annotations

import logging
import threading
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


def in_background(
    name: str, work: Callable[P, object], *args: P.args, **named: P.kwargs
) -> threading.Thread:
    """Have a daemon thread of its own do ``work`` once. An exception is logged under ``name``."""

    def run() -> None:
        try:
            work(*args, **named)
        except BaseException as error:  # noqa: BLE001 - nothing above this frame would log it
            _log_error(name, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _log_failure(name: str, done: Future[T]) -> None:
    # A cancelled Future raises when it is asked for its exception.
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _log_error(name, error)


def _log_error(name: str, error: BaseException) -> None:
    log.error("background task %s failed: %s: %s", name, type(error).__name__, error,
              exc_info=error)  # fmt: skip
