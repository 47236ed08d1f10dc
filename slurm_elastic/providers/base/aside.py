"""Hosts reached through an SDK whose calls have no time limit. Each call runs in a thread of its
own; if it takes too long, its caller leaves the thread behind.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import ClassVar, TypeVar

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.base.one_line import one_line
from slurm_elastic.base.processes.background import in_background
from slurm_elastic.providers.base.hosts.hosts import Connection, Hosts, seconds_left, until

Result = TypeVar("Result")
Meaning = tuple[type[ProviderError], str]
"""The class of our error and the code that it carries."""


class AsideHosts(Hosts[Connection]):
    """At most ``places`` calls run at the same time for one host. A thread that was left behind
    keeps its place until its call returns, so the number of such threads is bounded. ``failure`` is
    the base class of the SDK's errors.
    """

    guarded_by: ClassVar[GuardedBy] = {"_slots": "so many calls to one host"}

    failure: type[Exception]

    def __init__(self, cloud: str, names: Sequence[str], timeout: float, places: int) -> None:
        super().__init__(cloud, names, timeout)
        self._slots = {host: threading.BoundedSemaphore(places) for host in names}

    @abstractmethod
    def _meaning(self, error: Exception) -> Meaning:
        """Our error class and code for a ``failure``."""

    def call(self, host: str, do: Callable[[Connection], Result]) -> Result:
        """Call ``do`` with the connection to ``host`` and return its result.

        Raises a ProviderError if the SDK fails, and TransientError if there is no answer before
        this thread's deadline. In the second case the call may still take effect later.
        """
        try:
            return self._aside(host, lambda: do(self.connection(host)))
        except TimeoutError:
            kind: type[ProviderError] = TransientError
            code, error_text = "Timeout", "no answer in time"
        except self.failure as error:
            (kind, code), error_text = self._meaning(error), one_line(str(error), 300)
        # After a time-out or a broken connection the old connection may stay silent for ever.
        if kind is TransientError:
            self.forget(host)
        raise kind(self.cloud, code, f"{host}: {error_text}")

    def forget(self, host: str) -> None:
        """Drop the connection; the next call opens a new one."""
        with self._lock:
            # The SDK asks the host when the last reference to a connection is dropped, and a silent
            # host does not answer. A background thread drops it, so that no caller waits.
            last_reference = [self._open.pop(host, None)]
        in_background(f"closing {host}", last_reference.clear)

    def _close(self, connection: Connection) -> None:
        """Nothing to do: the SDK closes a connection when its last reference goes."""

    def _aside(self, host: str, do: Callable[[], Result]) -> Result:
        slots, done, limit = self._slots[host], Future[Result](), self._deadline()
        with until(limit):
            if not slots.acquire(timeout=seconds_left()):
                raise TimeoutError("earlier calls have no answer yet")
            # Not a ThreadPoolExecutor: Python joins an executor's threads when it exits, so one
            # silent host would keep the service from ending. It does not wait for daemon threads.
            threading.Thread(target=_carry_out, args=(do, limit, done, slots), daemon=True).start()
            try:
                return done.result(timeout=seconds_left())
            finally:
                del done  # for the reason given in _carry_out


def _carry_out(
    do: Callable[[], Result],
    limit: float,
    done: Future[Result],
    places: threading.BoundedSemaphore,
) -> None:
    try:
        with until(limit):
            done.set_result(do())
    except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
        done.set_exception(error)
    finally:
        places.release()
        # The error's traceback refers to this frame, and this frame refers to the error through
        # ``done``. A connection in that cycle would be dropped by whichever thread runs the garbage
        # collector, and that thread would then wait for the host.
        del done
