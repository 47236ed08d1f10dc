"""Calls to one project, with errors translated."""

from __future__ import annotations

from typing import Any, BinaryIO

from slurm_elastic.providers.base.reopened import Reopened
from slurm_elastic.providers.openstack.client import Login, OpenStackApi
from slurm_elastic.providers.openstack.errors import translated
from slurm_elastic.providers.openstack.settings import OpenStackCloud


class Project:
    """The calls of ``client.OpenStackApi``, raising ProviderErrors. Thread-safe."""

    def __init__(self, settings: OpenStackCloud) -> None:
        name = settings.name
        self._api = Reopened(lambda: OpenStackApi(settings), lambda: translated(name))

    def call(
        self, service: str, method: str, path: str, body: object = None, content: str = ""
    ) -> Any:  # noqa: ANN401
        """See ``OpenStackApi.call``."""
        with self._api.used() as api:
            return api.call(service, method, path, body, content)

    def send(self, service: str, path: str, file: BinaryIO, seconds: float) -> None:
        """See ``OpenStackApi.send``."""
        with self._api.used() as api:
            api.send(service, path, file, seconds)

    def login(self) -> Login:
        """See ``OpenStackApi.login``."""
        with self._api.used() as api:
            return api.login()

    def own_user(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        """See ``OpenStackApi.own_user``."""
        with self._api.used() as api:
            return api.own_user(method, path, body)

    def credentials_end(self) -> float | None:
        """See ``OpenStackApi.credentials_end``."""
        with self._api.used() as api:
            return api.credentials_end()
