"""The engines of a cloud: one client each, calls to one, some or all of them, within a time-out."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import docker.errors

from slurm_elastic.errors import ProviderError
from slurm_elastic.providers.base.parallel import each
from slurm_elastic.providers.docker.client import Client, deadline, open_client, until
from slurm_elastic.providers.docker.errors import translated
from slurm_elastic.providers.docker.settings import DockerCloud

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engines:
    """All calls to a cloud's hosts go through here. Thread-safe."""

    def __init__(self, settings: DockerCloud) -> None:
        self.cloud = settings.name
        self._settings = settings
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        # Nobody closes a provider; its connections go with it.
        weakref.finalize(self, _close, self._clients)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """The cloud's time-out for all that this thread does inside; none of its own in another."""
        with until(self._deadline()):
            yield

    def in_time(self, do: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """``do`` for other threads, with the time that this one has left."""
        limit = self._deadline()

        def bounded(item: Item) -> Result:
            with until(limit):
                return do(item)

        return bounded

    def call(self, host: str, do: Callable[[Client], Result]) -> Result:
        """A request to one of them; one of our five where it fails."""
        with translated(self.cloud, host):
            try:
                return do(self._client(host))
            except docker.errors.APIError:
                raise
            except Exception:
                # The connection may be of no use any more, and a certificate may be renewed.
                self._forget(host)
                raise

    def everywhere(self, do: Callable[[str], Result]) -> Sequence[Result]:
        """``do`` for every host, side by side; the first error where any fails."""
        hosts = tuple(self._settings.hosts)
        return [r.result() for r in each(hosts, self.in_time(do), len(hosts))]

    def answered(self, hosts: Sequence[str], do: Callable[[str], Result]) -> Sequence[Result]:
        """``do`` for each of these hosts; the first error only where all of them fail."""
        results = each(hosts, self.in_time(do), len(hosts))
        failed = {h: e for h, r in zip(hosts, results, strict=True) if (e := r.exception())}
        for host, error in failed.items():
            if not isinstance(error, ProviderError) or len(failed) == len(hosts):
                raise error
            log.warning("host left out cloud=%s host=%s error=%s", self.cloud, host, error)
        return [r.result() for r in results if not r.exception()]

    def _deadline(self) -> float:
        set_already = deadline()
        if set_already is not None:
            return set_already
        return time.monotonic() + self._settings.timeout

    def _client(self, host: str) -> Client:
        with self._lock:
            known = self._clients.get(host)
        if known is not None:
            return known
        fresh = open_client(self._settings.hosts[host])
        with self._lock:
            kept = self._clients.setdefault(host, fresh)
        if kept is not fresh:
            fresh.close()
        return kept

    def _forget(self, host: str) -> None:
        with self._lock:
            client = self._clients.pop(host, None)
        if client is not None:
            client.close()


def _close(clients: dict[str, Client]) -> None:
    for client in clients.values():
        client.close()
