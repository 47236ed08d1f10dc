"""The engines of a cloud, with one client each."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import docker.errors

from slurm_elastic.providers.base.hosts.hosts import Hosts
from slurm_elastic.providers.docker.client import DockerClient, open_client
from slurm_elastic.providers.docker.errors import translated
from slurm_elastic.providers.docker.settings import DockerCloud

Result = TypeVar("Result")


class Engines(Hosts[DockerClient]):
    """All calls to a cloud's hosts go through this class. Thread-safe."""

    def __init__(self, settings: DockerCloud) -> None:
        super().__init__(settings.name, tuple(settings.hosts), settings.api_timeout)
        self._settings = settings
        # Providers are never closed, so the connections are closed with the last reference.
        # The callback refers to the dictionary and not to ``self``, which it would keep alive.
        weakref.finalize(self, _close_all, self._open)

    def call(self, host: str, do: Callable[[DockerClient], Result]) -> Result:
        """Call ``do`` with the client of ``host``. Errors are translated."""
        with translated(self.cloud, host):
            try:
                return do(self.connection(host))
            except docker.errors.APIError:
                raise
            except Exception:
                # The connection may be broken, or a certificate may have been renewed. The next
                # call opens a new one.
                self.forget(host)
                raise

    def _opened(self, host: str) -> DockerClient:
        return open_client(self._settings.hosts[host])

    def _close(self, connection: DockerClient) -> None:
        connection.close()


def _close_all(clients: dict[str, DockerClient]) -> None:
    for client in clients.values():
        client.close()
