"""Serves the emulated Compute Engine on loopback, for rehearsals and tests.

``python -m slurm_elastic.sandbox.gce.server --dir DIR [--port N] [--world FILE]`` serves it. The
program writes ``DIR/gce/ready`` (``{"port", "pid"}``) when it answers, and ends on SIGTERM. Each
request is checked by Google's own description, if it is installed (``discovery``).
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from slurm_elastic.base.errors import SandboxError, SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.sandbox.ec2.faults import PAGE, Fault, FaultKind, Faults, FaultTarget, Stage
from slurm_elastic.sandbox.gce import api, control, discovery
from slurm_elastic.sandbox.gce.cloud import GceCloud, GceRefusal
from slurm_elastic.sandbox.gce.world import GceWorld, sandbox_world
from slurm_elastic.sandbox.steering import (
    HOST,
    PREFIX,
    ControlAnswer,
    answer_order,
    read_world,
    serve_until_ended,
)

log = logging.getLogger(__name__)

API = "/compute/v1/"
TOKENS = "/token"
LIFE_S = 3600
_METADATA = re.compile(r"/machines/(?P<name>[^/]+)/computeMetadata/v1/(?P<path>.*)")
"""A machine's metadata server. All machines of a sandbox share this host."""
_JSON = "application/json; charset=UTF-8"
_CODES = {FaultKind.CAPACITY: "ZONE_RESOURCE_POOL_EXHAUSTED", FaultKind.QUOTA: "QUOTA_EXCEEDED"}
_INTERNAL = GceRefusal(503, "backendError", "Internal error. Please try again.")
_REFUSALS = {
    FaultKind.AUTH: GceRefusal(
        403, "forbidden", "Required 'compute.instances.list' permission for 'projects/p'"
    ),
    FaultKind.THROTTLE: GceRefusal(
        403, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries' per minute"
    ),
    FaultKind.INTERNAL: _INTERNAL,
    FaultKind.INTERNAL_AFTER: _INTERNAL,
}


class GceServer:
    """Answers all requests. ``clock`` returns Unix time. The name of a call, for faults and counts,
    is that of Google's reference, such as instances.bulkInsert.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("cloud", "calls", "tokens", "violations", "checked")
    }

    def __init__(self, world: GceWorld, clock: Callable[[], float] = time.time) -> None:
        self.cloud = GceCloud(world)
        self.faults = Faults()
        self.calls: Counter[str] = Counter()
        self.tokens: set[str] = set()
        self.violations: list[str] = []
        self.checked = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the waiting calls."""
        self._stopped.set()

    def control(self, method: str, name: str, body: bytes) -> ControlAnswer:
        """Carry out an order of ``control``."""
        with self._lock:
            now = self._clock()
            self.cloud.advance(now)
            request = (method, name, body)
            return answer_order(control.ORDERS, self, request, now, lambda: control.view(self))

    def token(self) -> ControlAnswer:
        """Return a new token, as Google's token service does for the key of a service account."""
        fault = self._strike("token", Stage.ENTRY)
        if fault is not None:
            return fault
        with self._lock:
            made = f"ya29.{secrets.token_urlsafe(24)}"
            self.tokens.add(made)
        answer = {"access_token": made, "expires_in": LIFE_S, "token_type": "Bearer"}
        return ControlAnswer(200, json.dumps(answer).encode(), _JSON)

    def metadata(self, name: str, path: str, flavor: str) -> ControlAnswer:
        """Answer for the metadata server of a machine. It refuses requests without its header."""
        try:
            if flavor != "Google":
                return refusal(GceRefusal(403, "forbidden", "Missing Metadata-Flavor:Google"))
            with self._lock:
                self.cloud.advance(self._clock())
                text = self.cloud.metadata(name, path)
        except GceRefusal as error:
            return refusal(error)
        return ControlAnswer(200, text.encode(), "application/text")

    def serve(
        self, verb: str, path: str, query: Mapping[str, str], data: bytes, token: str
    ) -> ControlAnswer:
        """Answer a request to the API. Raises ConnectionAbortedError if a fault drops it."""
        name = name_of(verb, path)
        with self._lock:
            self.calls[name] += 1
        struck = self._strike(name, Stage.ENTRY)
        if struck is None:
            answer = self._answered(verb, path, query, data, token, name)
            struck = self._strike(name, Stage.ANSWER) or answer
        return struck

    def _answered(
        self, verb: str, path: str, query: Mapping[str, str], data: bytes, token: str, name: str
    ) -> ControlAnswer:
        refused = ""
        if name == "instances.bulkInsert":
            fault = self.faults.strike(FaultTarget(action=name), Stage.STOCK, self._stopped)
            refused = _CODES[fault.kind] if fault else ""
        with self._lock:
            try:
                self._require_token(token)
                body = self._body(verb, path, query, data)
                call = api.Call(path, query, body, self._clock(), refused)
                answer = api.answer(self.cloud, verb, call)
            except GceRefusal as error:
                return refusal(error)
            self.violations += discovery.faults_of_answer(verb, path, answer)
        return ControlAnswer(200, json.dumps(answer).encode(), _JSON)

    def _require_token(self, token: str) -> None:
        with self._lock:
            if token not in self.tokens and not self.cloud.world.anonymous:
                raise GceRefusal(401, "authError", "Invalid Credentials")

    def _body(self, verb: str, path: str, query: Mapping[str, str], data: bytes) -> Any:  # noqa: ANN401
        """Return the body of a request that Google would understand. Raises GceRefusal."""
        try:
            body = json.loads(data) if data else None
        except ValueError:
            raise GceRefusal(400, "parseError", "Parse Error") from None
        violations = discovery.faults_of_request(verb, path, query, body)
        self.checked += discovery.document() is not None
        self.violations += violations
        if violations:
            raise GceRefusal(400, "invalid", "; ".join(violations))
        return body

    def _strike(self, name: str, stage: Stage) -> ControlAnswer | None:
        fault = self.faults.strike(FaultTarget(action=name), stage, self._stopped)
        return None if fault is None else _answer_of_fault(fault)


def _answer_of_fault(fault: Fault) -> ControlAnswer:
    if fault.kind is FaultKind.GARBAGE:
        return ControlAnswer(200, PAGE, "text/html")
    error = _REFUSALS.get(fault.kind)
    if error is None:
        raise ConnectionAbortedError(f"fault {fault.kind}")
    return refusal(error)


def refusal(error: GceRefusal) -> ControlAnswer:
    """Return a refusal in Google's form."""
    reason = {"message": error.message, "domain": "global", "reason": error.reason}
    body = {"error": {"code": error.status, "message": error.message, "errors": [reason]}}
    return ControlAnswer(error.status, json.dumps(body).encode(), _JSON)


def name_of(verb: str, path: str) -> str:
    """Return the name of a call, such as instances.delete."""
    parts = path.split("/")
    place = 3 if "global" in parts[:3] else 4
    resource, tail = (parts[place] if len(parts) > place else parts[2], parts[place + 1 :])
    if len(tail) > 1 or tail in (["bulkInsert"], ["capacityHistory"]):
        return f"{resource}.{tail[-1]}"
    verbs = {"GET": "get" if tail else "list", "POST": "insert", "DELETE": "delete"}
    return f"{resource}.{verbs.get(verb, verb)}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def handler(server: GceServer) -> type[BaseHTTPRequestHandler]:
    """Return the handler of HTTP for a server."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                self._answer(self._answered(unquote(parts.path), parts.query, body))
            except (ConnectionAbortedError, BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _do  # noqa: N815

        def _answered(self, path: str, query: str, body: bytes) -> ControlAnswer:
            if path.startswith(PREFIX):
                return server.control(self.command, path[len(PREFIX) :], body)
            if path == TOKENS:
                return server.token()
            if found := _METADATA.fullmatch(path):
                return server.metadata(
                    found["name"], found["path"], self.headers.get("Metadata-Flavor") or ""
                )
            if not path.startswith(API):
                return ControlAnswer(404, b"", "text/plain")
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            words = dict(parse_qsl(query, keep_blank_values=True))
            return server.serve(self.command, path[len(API) :], words, body, token)

        def _answer(self, answer: ControlAnswer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            log.debug("http " + format, *args)

    return Handler


def http_server(server: GceServer, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of HTTP at a port of loopback (0: any). Raises SandboxError."""
    try:
        return _Server((HOST, port), handler(server))
    except OSError as error:
        raise SandboxError(f"port {port} on {HOST} is not available: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns 2 if it cannot start."""
    parser = argparse.ArgumentParser(prog="slurm_elastic.sandbox.gce.server", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--world", type=Path, help="a JSON file: project, zones, types, images")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Remove the file of an earlier run, which would show us as ready too early.
    (args.dir / "gce" / "ready").unlink(missing_ok=True)
    try:
        server = GceServer(read_world(args.world, GceWorld, sandbox_world))
        serve_until_ended(http_server(server, args.port), args.dir / "gce", server.stop)
    except SlurmElasticError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
