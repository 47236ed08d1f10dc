"""The control API of a running emulated cloud under ``/_sandbox/``: the server's and the client's
end.

``GET state`` shows the whole state. ``POST NAME`` gives an order; each cloud has its own orders.
Bodies and answers are JSON. An answer other than 200 contains ``{"error": sentence}``.
"""

from __future__ import annotations

import http.client
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from http.server import HTTPServer
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from slurm_elastic.base.errors import ConfigError, SandboxError
from slurm_elastic.base.processes.signals import on_end
from slurm_elastic.sandbox.ec2.faults import Fault
from slurm_elastic.sandbox.loopback_only import require_loopback

log = logging.getLogger(__name__)

World = TypeVar("World")

PREFIX = "/_sandbox/"
HOST = "127.0.0.1"


class ControlAnswer(Struct, frozen=True):
    """An answer of an emulated cloud."""

    status: int
    body: bytes
    type: str = "text/xml;charset=UTF-8"


Order = Callable[..., object]
"""A command for an emulated cloud: a function of the cloud, the Unix time, and the fields of the
body. Its result is the answer. The names of its parameters are the names of the fields.
"""


def faults(cloud: Any, _now: float, fault: Fault | None) -> object:  # noqa: ANN401
    """Add a fault; None removes all faults."""
    if fault is None:
        cloud.faults.clear()
    else:
        cloud.faults.add(fault)
    return cloud.faults.standing()


def answer_order(
    orders: Mapping[str, Order],
    cloud: object,
    request: tuple[str, str, bytes],
    now: float,
    state: Callable[[], object],
) -> ControlAnswer:
    """Return the answer to a ``request`` (method, name, body); 400 if it is wrong."""
    method, name, body = request
    if (method, name) == ("GET", "state"):
        return _result_answer(state())
    order = (faults if name == "faults" else orders.get(name)) if method == "POST" else None
    if order is None:
        return _error_answer(f"the control API has no {method} {name!r}")
    try:
        body_fields = msgspec.json.decode(body or b"{}", type=_form(order))
        return _result_answer(order(cloud, now, **asdict(body_fields)))
    except SandboxError as error:
        return _error_answer(str(error))
    except (msgspec.ValidationError, msgspec.DecodeError, ConfigError) as error:
        return _error_answer(f"{name}: {error}")


@cache
def _form(order: Order) -> type[Struct]:
    """Return the type of an order's body: the function's parameters after the first two."""
    hints = get_type_hints(order)
    fields: list[Any] = [
        (p.name, hints[p.name], *(() if p.default is p.empty else (p.default,)))
        for p in list(signature(order).parameters.values())[2:]
    ]
    return msgspec.defstruct("Form", fields, kw_only=True, forbid_unknown_fields=True)


def _result_answer(result: object) -> ControlAnswer:
    return ControlAnswer(200, msgspec.json.encode(result), "application/json")


def _error_answer(reason: str) -> ControlAnswer:
    return ControlAnswer(400, msgspec.json.encode({"error": reason}), "application/json")


def serve_until_ended(server: HTTPServer, place: Path, stop: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then call ``stop``, which must end the waiting calls. The file
    ``ready`` in ``place`` shows the port as soon as the cloud answers.
    """
    # ``on_end`` calls shutdown in another thread: it waits for the loop that this thread runs.
    on_end(server.shutdown)
    place.mkdir(parents=True, exist_ok=True)
    draft, port = place / "ready.new", server.server_port
    # Rename the complete file, so that no reader sees a part of it.
    draft.write_bytes(msgspec.json.encode({"port": port, "pid": os.getpid()}))
    draft.replace(place / "ready")
    log.info("emulated cloud ready name=%s url=http://%s:%d", place.name, HOST, port)
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        stop()
        server.server_close()


def read_world(path: Path | None, kind: type[World], default: Callable[[], World]) -> World:
    """Return the world of an emulated cloud from a JSON file, or ``default()`` without a file.
    SandboxError if the file is no such world.
    """
    if path is None:
        return default()
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise SandboxError(f"{path}: {error}") from None


class Steering:
    """Steers the cloud at ``url``. Every method may raise SandboxError."""

    cloud: ClassVar[str]
    """The name of the emulated cloud, for messages."""

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        url_parts = urlsplit(require_loopback(url))
        self.url = url
        self._host, self._port = url_parts.hostname or "", url_parts.port or 80
        self._timeout = timeout

    def order(self, name: str, **fields: Any) -> None:  # noqa: ANN401
        """Send an order. ``fields`` are the fields of its body."""
        self._ask("POST", name, fields)

    def fail(self, fault: Fault) -> None:
        """Add a fault."""
        self.order("faults", fault=fault)

    def heal(self) -> None:
        """Remove all faults."""
        self.order("faults", fault=None)

    def wait_ready(self, timeout: float) -> None:
        """Wait until the cloud answers. Raises SandboxError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._ask("GET", "state")
            except SandboxError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def _ask(self, method: str, name: str, body: object = None) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, PREFIX + name, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise SandboxError(
                f"the emulated {self.cloud} at {self.url} does not answer: {error}"
            ) from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise SandboxError(self._complaint(text))
        return text

    def _complaint(self, text: bytes) -> str:
        try:
            return msgspec.json.decode(text, type=dict[str, str])["error"]
        except (msgspec.ValidationError, msgspec.DecodeError, KeyError):
            return f"the emulated {self.cloud} answered {text[:200]!r}"
