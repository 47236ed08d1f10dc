"""Hosts by an SDK whose calls have no time limit: each runs in a thread that may be left behind."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import ClassVar, TypeVar

from slurm_elastic.base.background import in_background
from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.providers.base.hosts import Connection, Hosts, left, until

Result = TypeVar("Result")
Meaning = tuple[type[ProviderError], str]
"""One of our errors, and the word that it goes by."""


class AsideHosts(Hosts[Connection]):
    """``places``: so many calls at a time run for one host. A thread that is left behind keeps its
    place until it ends, so that they cannot grow in number. ``failure`` is the SDK's own error.
    """

    guarded_by: ClassVar[GuardedBy] = {"_places": "so many calls to one host"}

    failure: type[Exception]

    def __init__(self, cloud: str, names: Sequence[str], timeout: float, places: int) -> None:
        super().__init__(cloud, names, timeout)
        self._places = {host: threading.BoundedSemaphore(places) for host in names}

    @abstractmethod
    def _meaning(self, error: Exception) -> Meaning:
        """That of a ``failure``."""

    def call(self, host: str, do: Callable[[Connection], Result]) -> Result:
        """``do`` with a connection to one of them; one of our five where it fails or takes long.
        In the latter case what it was about to do may yet come to pass.
        """
        try:
            return self._aside(host, lambda: do(self.connection(host)))
        except TimeoutError:
            kind: type[ProviderError] = TransientError
            code, text = "Timeout", "no answer in time"
        except self.failure as error:
            (kind, code), text = self._meaning(error), " ".join(str(error).split())[:300]
        if kind is TransientError:
            self.forget(host)
        raise kind(self.cloud, code, f"{host}: {text}")

    def forget(self, host: str) -> None:
        """As of all hosts. Whoever drops a connection last asks its host, which may be silent: so
        nobody waits for that.
        """
        with self._lock:
            last = [self._open.pop(host, None)]
        in_background(f"closing {host}", last.clear)

    def _close(self, connection: Connection) -> None:
        """It ends with the last that has it."""

    def _aside(self, host: str, do: Callable[[], Result]) -> Result:
        places, done, limit = self._places[host], Future[Result](), self._deadline()
        with until(limit):
            if not places.acquire(timeout=left()):
                raise TimeoutError("earlier calls have no answer yet")
            threading.Thread(target=_carry_out, args=(do, limit, done, places), daemon=True).start()
            try:
                return done.result(timeout=left())
            finally:
                del done  # as in _carry_out


def _carry_out(
    do: Callable[[], Result],
    limit: float,
    done: Future[Result],
    places: threading.BoundedSemaphore,
) -> None:
    try:
        with until(limit):
            done.set_result(do())
    except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
        done.set_exception(error)
    finally:
        places.release()
        # Its error has this frame, and this frame it: a connection in that ring would be dropped by
        # whatever thread collects garbage, which would then wait for the host.
        del done
