"""The hosts of a cloud with several hosts: one connection to each, and a time-out for each call."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Generic, TypeVar

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes import asking
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Connection = TypeVar("Connection")

# Thread-local, because a deadline belongs to one call of a provider and several run at the same
# time.
_limits = threading.local()


@contextmanager
def until(limit: float | None) -> Iterator[None]:
    """Make all calls of this thread in the block end before ``limit`` (of time.monotonic; None: no
    limit).
    """
    before = deadline()
    _limits.deadline = limit
    try:
        yield
    finally:
        _limits.deadline = before


def deadline() -> float | None:
    """The deadline of this thread, or None."""
    limit: float | None = getattr(_limits, "deadline", None)
    return limit


def seconds_left() -> float:
    """Seconds until this thread's deadline. TimeoutError if it has passed."""
    limit = deadline()
    seconds = math.inf if limit is None else limit - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the host took too long")
    return seconds


class Hosts(ABC, Generic[Connection]):
    """The hosts ``names`` of a cloud. A whole call of a provider ends within ``timeout`` (s).
    Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_open")}

    @abstractmethod
    def _opened(self, host: str) -> Connection:
        """Open a new connection before this thread's deadline."""

    @abstractmethod
    def _close(self, connection: Connection) -> None:
        """Close a connection without waiting long."""

    def __init__(self, cloud: str, names: Sequence[str], timeout: float) -> None:
        self.cloud = cloud
        self.names = tuple(names)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._open: dict[str, Connection] = {}

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Set the cloud's time-out for all calls of this thread inside. Inside another ``limited``
        the outer deadline stays.
        """
        with until(self._deadline()):
            yield

    def in_time(self, do: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """Return ``do`` for worker threads, with the deadline of the calling thread."""
        # Read here and not in ``bounded``: the deadline is thread-local, so a worker thread has
        # none.
        limit = self._deadline()

        def bounded(item: Item) -> Result:
            # Another head may have taken over while this item waited for a thread.
            asking.check_gate()
            with until(limit):
                return do(item)

        return bounded

    def everywhere(
        self, do: Callable[[str], Result], hosts: Sequence[str] | None = None
    ) -> Sequence[Result]:
        """Call ``do`` for these hosts (all, if None) at the same time. If a host fails, its error
        is raised (the first of several).
        """
        names = self.names if hosts is None else tuple(hosts)
        return [r.result() for r in each(names, self.in_time(do), len(names))]

    def answered(self, hosts: Sequence[str], do: Callable[[str], Result]) -> Sequence[Result]:
        """Call ``do`` for these hosts and return the results of the hosts that answer. An error is
        raised only if all hosts fail.
        """
        results = each(hosts, self.in_time(do), len(hosts))
        errors = {h: e for h, r in zip(hosts, results, strict=True) if (e := r.exception())}
        for host, error in errors.items():
            # Any other error is a defect of ours, and never a silent host.
            if not isinstance(error, ProviderError) or len(errors) == len(hosts):
                raise error
            log.warning("host left out cloud=%s host=%s error=%s", self.cloud, host, error)
        return [r.result() for r in results if not r.exception()]

    def connection(self, host: str) -> Connection:
        """The connection that all threads share."""
        with self._lock:
            existing = self._open.get(host)
        if existing is not None:
            return existing
        # Opened without the lock, so that a silent host does not block calls to the others. Two
        # threads may therefore open a connection at the same time; the later connection is closed.
        fresh = self._opened(host)
        with self._lock:
            shared = self._open.setdefault(host, fresh)
        if shared is not fresh:
            self._close(fresh)
        return shared

    def forget(self, host: str) -> None:
        """Close the connection, because it may be broken. The next call opens a new one."""
        with self._lock:
            old = self._open.pop(host, None)
        if old is not None:
            self._close(old)

    def _deadline(self) -> float:
        set_already = deadline()
        return time.monotonic() + self._timeout if set_already is None else set_already
