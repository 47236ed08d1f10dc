"""The hosts of a cloud that is several of them: a connection each, calls within a time-out."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Generic, TypeVar

from slurm_elastic.base import asking
from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Connection = TypeVar("Connection")

_limits = threading.local()


@contextmanager
def until(limit: float | None) -> Iterator[None]:
    """All calls that this thread makes inside end by ``limit`` (of time.monotonic)."""
    before = deadline()
    _limits.deadline = limit
    try:
        yield
    finally:
        _limits.deadline = before


def deadline() -> float | None:
    """The deadline of this thread; None where it has none."""
    found: float | None = getattr(_limits, "deadline", None)
    return found


def left() -> float:
    """Seconds until this thread's deadline; TimeoutError when it has passed."""
    limit = deadline()
    seconds = math.inf if limit is None else limit - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the host took too long")
    return seconds


class Hosts(ABC, Generic[Connection]):
    """The ``names`` of a cloud's hosts, and ``timeout`` (s), within which a whole call of a
    provider ends. Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_open")}

    @abstractmethod
    def _opened(self, host: str) -> Connection:
        """A new connection, before this thread's deadline."""

    @abstractmethod
    def _close(self, connection: Connection) -> None:
        """Give a connection up; soon."""

    def __init__(self, cloud: str, names: Sequence[str], timeout: float) -> None:
        self.cloud = cloud
        self.names = tuple(names)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._open: dict[str, Connection] = {}

    @contextmanager
    def limited(self) -> Iterator[None]:
        """The cloud's time-out for all that this thread does inside; none of its own in another."""
        with until(self._deadline()):
            yield

    def in_time(self, do: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """``do`` for other threads, with the time that this one has left."""
        limit = self._deadline()

        def bounded(item: Item) -> Result:
            asking.require()
            with until(limit):
                return do(item)

        return bounded

    def everywhere(self, do: Callable[[str], Result]) -> Sequence[Result]:
        """``do`` for every host, side by side; the first error where any fails."""
        return [r.result() for r in each(self.names, self.in_time(do), len(self.names))]

    def answered(self, hosts: Sequence[str], do: Callable[[str], Result]) -> Sequence[Result]:
        """``do`` for each of these hosts; the first error only where all of them fail."""
        results = each(hosts, self.in_time(do), len(hosts))
        failed = {h: e for h, r in zip(hosts, results, strict=True) if (e := r.exception())}
        for host, error in failed.items():
            if not isinstance(error, ProviderError) or len(failed) == len(hosts):
                raise error
            log.warning("host left out cloud=%s host=%s error=%s", self.cloud, host, error)
        return [r.result() for r in results if not r.exception()]

    def connection(self, host: str) -> Connection:
        """The one that all threads share."""
        with self._lock:
            known = self._open.get(host)
        if known is not None:
            return known
        fresh = self._opened(host)
        with self._lock:
            kept = self._open.setdefault(host, fresh)
        if kept is not fresh:
            self._close(fresh)
        return kept

    def forget(self, host: str) -> None:
        """The connection may be of no use any more; the next call opens a new one."""
        with self._lock:
            old = self._open.pop(host, None)
        if old is not None:
            self._close(old)

    def _deadline(self) -> float:
        set_already = deadline()
        return time.monotonic() + self._timeout if set_already is None else set_already
