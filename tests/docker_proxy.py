"""A server between the docker provider and an engine: passes calls on, or lets them go wrong."""

from __future__ import annotations

import http.client
import json
import re
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from patience import patience

PING_VERSION = {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "20.10.24"}


@dataclass(frozen=True)
class Fault:
    """A fault of calls whose ``METHOD /path`` matches.

    ``status`` answers with ``message``; ``body`` with these very bytes; ``silent`` says nothing;
    ``after`` does it when the engine has carried the call out; ``drop`` ends the connection.
    ``delay``: that many seconds later; with nothing else it is the engine's own answer that is late.
    """

    status: int = 0
    message: str = ""
    body: bytes = b""
    silent: bool = False
    drop: bool = False
    after: bool = False
    delay: float = 0.0
    match: str = ""
    times: int | None = None

    @property
    def late_only(self) -> bool:
        return not (self.status or self.silent or self.drop)


@dataclass
class EngineProxy:
    """``faults``: the first that matches counts. ``calls``: what was asked, in order.

    ``network``: lists of containers show those of this network only, as if no other test used the
    engine.
    """

    path: Path
    upstream: str | None
    faults: list[Fault] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    network: str | None = None
    woken: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def fail(self, *faults: Fault) -> None:
        with self._lock:
            self.faults[:] = faults

    def heal(self) -> None:
        self.fail()
        self.woken.set()
        self.woken.clear()

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, call)) for call in self.calls)

    def fault_for(self, call: str) -> Fault | None:
        with self._lock:
            self.calls.append(call)
            for n, fault in enumerate(self.faults):
                if re.search(fault.match, call):
                    if fault.times is not None:
                        left = fault.times - 1
                        changed = [Fault(**{**fault.__dict__, "times": left})] if left else []
                        self.faults[n : n + 1] = changed
                    return fault
        return None


@contextmanager
def running_proxy(path: Path, upstream: str | None) -> Iterator[EngineProxy]:
    """``upstream`` is an engine's socket; without, calls that no fault answers get an empty list."""
    proxy = EngineProxy(path=path, upstream=upstream)

    class Answers(_Answers):
        server_proxy = proxy

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Callers that went away are part of these tests."""

    with Server(str(path), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.heal()
            proxy.woken.set()
            server.shutdown()
            thread.join(patience(30))


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_proxy: EngineProxy

    def log_message(self, *_: Any) -> None: ...

    def address_string(self) -> str:
        return "unix"

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        fault = self.server_proxy.fault_for(f"{self.command} {self.path}")
        if fault is not None and not fault.after and not fault.late_only:
            return self._fail(fault)
        status, answer = self._upstream(body)
        if fault is not None and not fault.late_only:
            return self._fail(fault)
        if fault is not None:
            self.server_proxy.woken.wait(fault.delay)
        return self._answer(status, answer)

    do_GET = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server looks for these names

    def _upstream(self, body: bytes) -> tuple[int, bytes]:
        if self.server_proxy.upstream is None:
            version = "/version" in self.path
            return 200, json.dumps(PING_VERSION if version else []).encode()
        engine = _Unix(self.server_proxy.upstream)
        try:
            headers = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
            engine.request(self.command, self._narrowed(), body or None, headers)
            with engine.getresponse() as response:
                return response.status, response.read()
        finally:
            engine.close()

    def _narrowed(self) -> str:
        network = self.server_proxy.network
        parts = urllib.parse.urlsplit(self.path)
        if network is None or not parts.path.endswith("/containers/json"):
            return self.path
        query = dict(urllib.parse.parse_qsl(parts.query))
        query["filters"] = json.dumps(
            json.loads(query.get("filters", "{}")) | {"network": [network]}
        )
        return f"{parts.path}?{urllib.parse.urlencode(query)}"

    def _fail(self, fault: Fault) -> None:
        self.server_proxy.woken.wait(fault.delay)
        if fault.silent:
            self.server_proxy.woken.wait(60)
        if fault.silent or fault.drop:
            self.close_connection = True
            return
        self._answer(fault.status, fault.body or json.dumps({"message": fault.message}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)
