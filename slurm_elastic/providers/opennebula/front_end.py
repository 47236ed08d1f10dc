"""Calls to oned from one account, with errors translated."""

from __future__ import annotations

import functools
from typing import Any

from slurm_elastic.providers.base.reopened import Reopened
from slurm_elastic.providers.opennebula.client import open_server
from slurm_elastic.providers.opennebula.errors import translated
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud


class FrontEnd:
    """Calls oned. Thread-safe."""

    def __init__(self, settings: OpenNebulaCloud) -> None:
        name = settings.name
        self._server = Reopened(lambda: open_server(settings), lambda: translated(name))

    def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - pyone has no types
        """Make one call. ``method`` is oned's name of the method."""
        with self._server.used() as server:
            return functools.reduce(getattr, method.split("."), server)(*arguments)
