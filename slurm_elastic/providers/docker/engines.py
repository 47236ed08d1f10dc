"""The engines of a cloud: one client each."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import docker.errors

from slurm_elastic.providers.base.hosts import Hosts
from slurm_elastic.providers.docker.client import Client, open_client
from slurm_elastic.providers.docker.errors import translated
from slurm_elastic.providers.docker.settings import DockerCloud

Result = TypeVar("Result")


class Engines(Hosts[Client]):
    """All calls to a cloud's hosts go through here. Thread-safe."""

    def __init__(self, settings: DockerCloud) -> None:
        super().__init__(settings.name, tuple(settings.hosts), settings.timeout)
        self._settings = settings
        # Nobody closes a provider; its connections go with it.
        weakref.finalize(self, _close_all, self._open)

    def call(self, host: str, do: Callable[[Client], Result]) -> Result:
        """A request to one of them; one of our five where it fails."""
        with translated(self.cloud, host):
            try:
                return do(self.connection(host))
            except docker.errors.APIError:
                raise
            except Exception:
                # The connection may be of no use any more, and a certificate may be renewed.
                self.forget(host)
                raise

    def _opened(self, host: str) -> Client:
        return open_client(self._settings.hosts[host])

    def _close(self, connection: Client) -> None:
        connection.close()


def _close_all(clients: dict[str, Client]) -> None:
    for client in clients.values():
        client.close()
