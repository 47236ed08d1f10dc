"""The clouds in memory of a real site: its services call them over a socket, and each machine is a real
slurmd.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from slurm_elastic.base import errors
from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.providers.fake.settings import FakeCloud

CALLS = (
    "offers", "launch", "startable", "refusals", "instances", "terminate", "image_for", "recipe",
    "stop", "start", "notices", "check",
)  # fmt: skip
"""The calls of the contract that FakeProvider keeps."""


class CloudServer:
    """Answers the services. ``called`` gets the caller's name, the cloud, the call and its values."""

    def __init__(self, path: Path, called: Callable[..., Any]) -> None:
        self._called = called
        self._listener = Listener(str(path), family="AF_UNIX", backlog=64)
        os.chmod(path, 0o666)
        threading.Thread(target=self._listen, name="clouds", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        while True:
            try:
                caller, cloud, call, values = connection.recv()
            except (EOFError, OSError):
                return
            answer: tuple[Any, ...]
            try:
                answer = ("answer", self._called(caller, cloud, call, values))
            except ProviderError as error:
                answer = (
                    "error",
                    type(error).__name__,
                    error.cloud,
                    error.code,
                    error.full_message,
                )
            except Exception as error:  # noqa: BLE001 - the caller's process has to see it
                answer = ("fault", f"{type(error).__name__}: {error}")
            try:
                connection.send(answer)
            except OSError:  # the caller was killed
                return


class RemoteProvider:
    """FakeProvider as a service has it: each call goes to the cloud of the whole site."""

    alternatives = 0

    def __init__(self, path: str, caller: str, settings: FakeCloud, _cluster: Cluster) -> None:
        self.name = settings.name
        self._path, self._caller = path, caller
        self._open = threading.local()

    def _call(self, call: str, *values: Any) -> Any:
        if not hasattr(self._open, "connection"):
            self._open.connection = Client(self._path, family="AF_UNIX")
        connection: Connection = self._open.connection
        connection.send((self._caller, self.name, call, values))
        kind, *answer = connection.recv()
        if kind == "error":
            raise getattr(errors, answer[0])(*answer[1:])
        if kind == "fault":
            raise RuntimeError(answer[0])
        return answer[0]


def _method(call: str) -> Callable[..., Any]:
    return lambda self, *values: self._call(call, *values)


for _name in CALLS:
    setattr(RemoteProvider, _name, _method(_name))


def provider_of(path: str, caller: str) -> Callable[..., RemoteProvider]:
    """In place of the class FakeProvider, in the process of a service."""
    return functools.partial(RemoteProvider, path, caller)
