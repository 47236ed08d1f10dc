"""Serves the emulated resource manager, its tokens and its faults on loopback."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.base.processes.lasting import LastingThread
from slurm_elastic.sandbox.azure import retail
from slurm_elastic.sandbox.azure.world import (
    CREATE,
    ArmError,
    Reply,
    World,
    action_of,
    answer,
    metadata_of,
)
from slurm_elastic.sandbox.ec2.faults import PAGE, Fault, FaultKind, Faults, FaultTarget, Stage

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = "slurm-elastic-machines"
TENANT, CLIENT = "tenant-1", "client-1"
SECRET = "sandbox-azure-secret"  # noqa: S105 - opens nothing but the emulator
TOKEN = "sandbox-azure-token"  # noqa: S105
_METADATA = re.compile(r"/machines/(?P<name>[^/]+)/metadata/(?P<path>.*)")
"""A machine's metadata service. All machines of a sandbox share this host."""
_QUOTA = (
    "Operation could not be completed as it results in exceeding approved Total Regional Cores "
    "quota. Current Limit: 10, Current Usage: 10, Additional Required: 2."
)
_ERRORS = {
    FaultKind.CAPACITY: ArmError(409, "SkuNotAvailable", "The size is currently not available."),
    FaultKind.QUOTA: ArmError(409, "OperationNotAllowed", _QUOTA),
    FaultKind.AUTH: ArmError(403, "AuthorizationFailed", "The client has no authorization."),
    FaultKind.THROTTLE: ArmError(429, "TooManyRequests", "The request was throttled."),
    FaultKind.INTERNAL: ArmError(500, "InternalServerError", "An internal error occurred."),
    FaultKind.INTERNAL_AFTER: ArmError(500, "InternalServerError", "An internal error occurred."),
}


class EmulatedAzure:
    """One subscription on a free port of loopback. ``lock`` guards ``world``."""

    guarded_by: ClassVar[GuardedBy] = {"lock": "to read or change ``world``, for one request"}

    def __init__(self, port: int = 0) -> None:
        self.world = World(subscription=SUBSCRIPTION, group=GROUP)
        self.lock = threading.RLock()
        self.faults = Faults()
        self.requests: list[str] = []
        self.tokens = {TOKEN}
        self.released = threading.Event()
        emulator = self

        class Handler(_Handler):
            owner = emulator

        self._server = _Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def link_root(self) -> str:
        """The start of links in answers. Azure writes its port into them, which endpoints in
        configurations lack, so links spell our port in another way, too.
        """
        host, _, port = self.url.rpartition(":")
        return f"{host}:0{port}"

    @contextmanager
    def serving(self) -> Iterator[EmulatedAzure]:
        """Serve until the end of the block."""
        thread = LastingThread("azure", self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.heal()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def reset(self) -> None:
        """Begin with an empty subscription."""
        self.heal()
        with self.lock:
            self.world = World(subscription=SUBSCRIPTION, group=GROUP)
            self.requests.clear()
            self.tokens = {TOKEN}

    def heal(self) -> None:
        """Remove all faults, and let go the requests that wait."""
        self.faults.clear()
        self.released.set()
        self.released = threading.Event()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    owner: ClassVar[EmulatedAzure]

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with suppress(OSError):
            self._answer(body)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _do  # noqa: N815

    def _answer(self, body: bytes) -> None:
        path = urlsplit(self.path).path
        if path.endswith(("/oauth2/v2.0/token", "/identity/oauth2/token")):
            self._send_token(body)
            return
        if found := _METADATA.fullmatch(path):
            self._send_metadata(found["name"], found["path"])
            return
        action = action_of(self.command, path)
        with self.owner.lock:
            self.owner.requests.append(f"{self.command} {path}")
        released = self.owner.released
        target = FaultTarget(action=action)
        if self._failed(self.owner.faults.strike(target, Stage.ENTRY, released)):
            return
        if action == CREATE and self._failed(self.owner.faults.take(target, Stage.STOCK)):
            return
        try:
            reply = self._served(path, body)
        except ArmError as error:
            reply = Reply(status=error.status, content=error.body)
        if not self._failed(self.owner.faults.strike(target, Stage.ANSWER, released)):
            self._send(reply)

    def _failed(self, fault: Fault | None) -> bool:
        """Whether a fault is the answer."""
        if fault is None:
            return False
        if (error := _ERRORS.get(fault.kind)) is not None:
            self._send(Reply(status=error.status, content=error.body))
        elif fault.kind is FaultKind.GARBAGE:
            self._send_text(200, PAGE, "text/html", "")
        else:
            self._drop()
        return True

    def _served(self, path: str, body: bytes) -> Reply:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        if path == retail.PATH:
            return self._prices(query)
        with self.owner.lock:
            if (
                self.headers.get("Authorization", "").removeprefix("Bearer ")
                not in self.owner.tokens
            ):
                text = "The access token is missing, invalid or expired."
                raise ArmError(401, "InvalidAuthenticationToken", text)
            try:
                content = json.loads(body or b"null")
            except ValueError:
                raise ArmError(400, "InvalidRequestContent", "This is not JSON.") from None
            headers = dict(self.headers.items())
            reply = answer(self.owner.world, self.command, path, query, content, headers)
        if isinstance(reply.content, dict) and "nextLink" in reply.content:
            version = query["api-version"]
            link = f"{self.owner.link_root}{path}?api-version={version}&$skiptoken="
            reply.content["nextLink"] = link + reply.content["nextLink"]
        return reply

    def _prices(self, query: Mapping[str, str]) -> Reply:
        """A page of the published prices, which need no login."""
        with self.owner.lock:
            reply = retail.price_page(self.owner.world, query)
        if start := reply.content["NextPageLink"]:
            more = urlencode({**query, "$skip": start})
            reply.content["NextPageLink"] = f"{self.owner.link_root}{retail.PATH}?{more}"
        return reply

    def _send_token(self, body: bytes) -> None:
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        by_identity = self.command == "GET" and self.headers.get("Metadata") == "true"
        is_client = form.get("client_id") == CLIENT and TENANT in self.path
        proofs = (form.get("client_secret"), form.get("client_assertion"))
        with self.owner.lock:
            token = max(self.owner.tokens, default=TOKEN)
        if by_identity or (is_client and SECRET in proofs):
            self._send(Reply(content={"access_token": token, "expires_in": 3599}))
            return
        text = "AADSTS7000215: Invalid client secret provided."
        self._send(
            Reply(status=401, content={"error": "invalid_client", "error_description": text})
        )

    def _send_metadata(self, name: str, path: str) -> None:
        """Answer for the metadata service of a machine. It refuses requests without its header."""
        if self.headers.get("Metadata") != "true":
            error = ArmError(400, "BadRequest", "Required metadata header not specified")
            self._send(Reply(status=error.status, content=error.body))
            return
        try:
            with self.owner.lock:
                content = metadata_of(self.owner.world, name, path)
        except ArmError as error:
            self._send(Reply(status=error.status, content=error.body))
            return
        if isinstance(content, str):
            self._send_text(200, content.encode(), "text/plain", "")
        else:
            self._send(Reply(content=content))

    def _send(self, reply: Reply) -> None:
        data = b"" if reply.content is None else json.dumps(reply.content).encode()
        self._send_text(reply.status, data, "application/json", reply.operation)

    def _send_text(self, status: int, data: bytes, kind: str, operation: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        if operation:
            place = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/here"
            url = f"{self.owner.link_root}{place}/operations/{operation}?api-version=2024-07-01"
            self.send_header("Azure-AsyncOperation", url)
        self.end_headers()
        self.wfile.write(data)

    def _drop(self) -> None:
        """Reset the connection without an answer."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        """Log nothing: tests read ``requests``."""
