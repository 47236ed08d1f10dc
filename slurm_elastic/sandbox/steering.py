"""The client's end of an emulated cloud's control API: JSON over HTTP on loopback."""

from __future__ import annotations

import http.client
import time
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.ec2_faults import Fault
from slurm_elastic.sandbox.endpoints import require_loopback

PREFIX = "/_sandbox/"


class Steering:
    """Steers the cloud at ``url``; an answer other than 200 carries ``{"error": sentence}``. Every
    method may raise SandboxError.
    """

    cloud: ClassVar[str]
    """The cloud that it emulates, in words for people."""

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        parts = urlsplit(require_loopback(url))
        self.url = url
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._timeout = timeout

    def fail(self, fault: Fault) -> None:
        """Have something go wrong."""
        self._ask("POST", "faults", fault)

    def heal(self) -> None:
        """Have nothing go wrong any more."""
        self._ask("POST", "faults", {"clear": True})

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
