"""Steering an emulated cloud while it runs: the control API under ``/_sandbox/``, both of its ends.

``GET state`` shows all there is; ``POST NAME`` gives an order, of which each cloud has its own.
Bodies and answers are JSON; an answer other than 200 carries ``{"error": sentence}``.
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
from typing import Any, ClassVar, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from slurm_elastic.base.errors import ConfigError, SandboxError
from slurm_elastic.base.signals import on_end
from slurm_elastic.sandbox.ec2_faults import Fault
from slurm_elastic.sandbox.loopback_only import require_loopback

log = logging.getLogger(__name__)

PREFIX = "/_sandbox/"
HOST = "127.0.0.1"


class ControlAnswer(Struct, frozen=True):
    """What an emulated cloud answers to a request."""

    status: int
    body: bytes
    type: str = "text/xml;charset=UTF-8"


Order = Callable[..., object]
"""What whoever steers a cloud may have it do: a function of the cloud, the time (Unix) and what the
order says; what it gives back is answered.
"""


def faults(cloud: Any, _now: float, fault: Fault | None) -> object:  # noqa: ANN401
    """Something is to go wrong; without a fault nothing any more."""
    if fault is None:
        cloud.faults.clear()
    else:
        cloud.faults.add(fault)
    return cloud.faults.standing()


def steered(
    orders: Mapping[str, Order],
    cloud: object,
    request: tuple[str, str, bytes],
    now: float,
    state: Callable[[], object],
) -> ControlAnswer:
    """The answer to a ``request`` (method, name, body); 400 where it is wrong."""
    method, name, body = request
    if (method, name) == ("GET", "state"):
        return _shown(state())
    order = (faults if name == "faults" else orders.get(name)) if method == "POST" else None
    if order is None:
        return _refused(f"the control API has no {method} {name!r}")
    try:
        said = msgspec.json.decode(body or b"{}", type=_form(order))
        return _shown(order(cloud, now, **asdict(said)))
    except SandboxError as error:
        return _refused(str(error))
    except (msgspec.ValidationError, msgspec.DecodeError, ConfigError) as error:
        return _refused(f"{name}: {error}")


@cache
def _form(order: Order) -> type[Struct]:
    """The body of an order: the function's parameters after the first two."""
    hints = get_type_hints(order)
    fields: list[Any] = [
        (p.name, hints[p.name], *(() if p.default is p.empty else (p.default,)))
        for p in list(signature(order).parameters.values())[2:]
    ]
    return msgspec.defstruct("Form", fields, kw_only=True, forbid_unknown_fields=True)


def _shown(told: object) -> ControlAnswer:
    return ControlAnswer(200, msgspec.json.encode(told), "application/json")


def _refused(why: str) -> ControlAnswer:
    return ControlAnswer(400, msgspec.json.encode({"error": why}), "application/json")


def serve_until_ended(server: HTTPServer, place: Path, stop: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``stop`` ends what waits. That the cloud answers, and where,
    is said to whoever waits for the file ``ready``.
    """
    # shutdown waits for the loop that this very thread runs; it is called in another one.
    on_end(server.shutdown)
    place.mkdir(parents=True, exist_ok=True)
    draft, port = place / "ready.new", server.server_port
    draft.write_bytes(msgspec.json.encode({"port": port, "pid": os.getpid()}))
    draft.replace(place / "ready")
    log.info("emulated cloud ready name=%s url=http://%s:%d", place.name, HOST, port)
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        stop()
        server.server_close()


class Steering:
    """Steers the cloud at ``url``. Every method may raise SandboxError."""

    cloud: ClassVar[str]
    """The cloud that it emulates, in words for people."""

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        parts = urlsplit(require_loopback(url))
        self.url = url
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._timeout = timeout

    def order(self, name: str, **said: Any) -> None:  # noqa: ANN401
        """Have it carried out."""
        self._ask("POST", name, said)

    def fail(self, fault: Fault) -> None:
        """Have something go wrong."""
        self.order("faults", fault=fault)

    def heal(self) -> None:
        """Have nothing go wrong any more."""
        self.order("faults", fault=None)

    def wait_ready(self, timeout: float) -> None:
        """Return once it answers; SandboxError if it does not within ``timeout`` seconds."""
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
