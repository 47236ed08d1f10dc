"""An OpenNebula front end on loopback, for rehearsals and tests. It emulates oned's XML-RPC API.

``python -m slurm_elastic.sandbox.opennebula --dir DIR [--port N] [--world FILE]`` serves it. The
program writes ``DIR/one/ready`` (``{"port", "pid"}``) when it answers, and ends on SIGTERM.
``one_control`` steers it: faults, quotas, hosts, durations. Its state is in memory and is lost with
the process.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
import xmlrpc.client
from collections import Counter
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from xml.parsers.expat import ExpatError
from xml.sax.saxutils import escape

from slurm_elastic.base.errors import SandboxError, SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.sandbox.ec2.faults import PAGE, Fault, FaultKind, Faults, FaultTarget, Stage
from slurm_elastic.sandbox.nebula import api as one_api
from slurm_elastic.sandbox.nebula import control as one_control
from slurm_elastic.sandbox.nebula.cloud import Cloud, OneRefusal
from slurm_elastic.sandbox.nebula.world import OneWorld, sandbox_world
from slurm_elastic.sandbox.steering import (
    HOST,
    PREFIX,
    ControlAnswer,
    answer_order,
    read_world,
    serve_until_ended,
)

log = logging.getLogger(__name__)

PATH = "/RPC2"
INSTANTIATE = ("one.template.instantiate", "one.vm.allocate")
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<methodResponse>\n'
_INTERNAL = OneRefusal(0x2000, "Error in the database: database is locked")
_ERRORS = {
    FaultKind.CAPACITY: OneRefusal(
        0x4000,
        "Error allocating a new virtual machine template. "
        "Cannot get IP/MAC lease from virtual network 0.",
    ),
    FaultKind.QUOTA: OneRefusal(
        0x0200, "User [2] : user [2] limit of 0 reached for VMS quota in VM."
    ),
    FaultKind.AUTH: OneRefusal(0x0100, "User couldn't be authenticated, aborting call."),
    FaultKind.INTERNAL: _INTERNAL,
    FaultKind.INTERNAL_AFTER: _INTERNAL,
}


class OneFront:
    """Answers all requests. ``clock`` returns Unix time."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("cloud", "calls")}

    def __init__(self, world: OneWorld, clock: Callable[[], float] = time.time) -> None:
        self.cloud = Cloud(world)
        self.faults = Faults()
        self.calls: Counter[str] = Counter()
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the waiting calls."""
        self._stopped.set()

    def control(self, method: str, name: str, body: bytes) -> ControlAnswer:
        """Carry out an order of ``one_control``."""
        with self._lock:
            now = self._clock()
            self.cloud.advance(now)
            request = (method, name, body)
            return answer_order(
                one_control.ORDERS, self, request, now, lambda: one_control.view(self)
            )

    def rpc(self, body: bytes) -> ControlAnswer:
        """Answer an XML-RPC call. Raises ConnectionError if a fault drops the connection."""
        try:
            params, name = xmlrpc.client.loads(body)
        except (ExpatError, xmlrpc.client.ResponseError):
            return ControlAnswer(200, _fault(-503, "Call is not valid XML."))
        method = name or ""
        with self._lock:
            self.calls[method] += 1
        struck = self._strike(method, Stage.ENTRY)
        if struck is None and method in INSTANTIATE:
            struck = self._strike(method, Stage.STOCK)
        if struck is None:
            answer = self._serve(method, params)
            struck = self._strike(method, Stage.ANSWER) or answer
        return struck

    def _serve(self, method: str, params: Sequence[object]) -> ControlAnswer:
        try:
            with self._lock:
                result = one_api.call(self.cloud, method, params, self._clock())
        except OneRefusal as error:
            return ControlAnswer(200, refusal(method, error))
        except xmlrpc.client.Fault as error:
            return ControlAnswer(200, _fault(error.faultCode, error.faultString))
        return ControlAnswer(200, success(result))

    def _strike(self, method: str, stage: Stage) -> ControlAnswer | None:
        fault = self.faults.strike(FaultTarget(action=method), stage, self._stopped)
        if fault is None:
            return None
        if fault.kind is FaultKind.GARBAGE:
            return ControlAnswer(200, PAGE, "text/html")
        return _answer_of_fault(fault, method)


def _answer_of_fault(fault: Fault, method: str) -> ControlAnswer:
    """Return the answer of a fault. A throttle looks like a proxy's, because oned has none."""
    if fault.kind is FaultKind.THROTTLE:
        return ControlAnswer(503, b"Service Unavailable", "text/plain")
    error = _ERRORS.get(fault.kind)
    if error is None:
        raise ConnectionAbortedError(f"fault {fault.kind}")
    return ControlAnswer(200, refusal(method, error))


def success(result: int | str) -> bytes:
    """Return the answer ``[true, result, 0]``."""
    value = (
        f"<i4>{result}</i4>" if isinstance(result, int) else f"<string>{escape(result)}</string>"
    )
    return _array("<boolean>1</boolean>", value, "<i4>0</i4>")


def refusal(method: str, error: OneRefusal) -> bytes:
    """Return ``[false, message, code, object, replication]``. pyone reads the first three."""
    return _array(
        "<boolean>0</boolean>",
        f"<string>[{method}] {escape(error.message)}</string>",
        f"<i4>{error.code}</i4>",
        f"<i4>{error.about}</i4>",
        "<i8>-1</i8>",
    )


def _array(*values: str) -> bytes:
    lines = "\n".join(f"<value>{value}</value>" for value in values)
    text = (
        f"{_HEAD}<params>\n<param><value><array><data>\n{lines}\n</data></array></value></param>\n"
    )
    return f"{text}</params>\n</methodResponse>\n".encode()


def _fault(code: int, text: str) -> bytes:
    members = (
        f"<member><name>faultCode</name>\n<value><i4>{code}</i4></value></member>\n"
        f"<member><name>faultString</name>\n<value><string>{escape(text)}</string></value></member>\n"
    )
    return (
        f"{_HEAD}<fault>\n<value><struct>\n{members}</struct></value>\n</fault>\n</methodResponse>\n"
    ).encode()


def default_world() -> OneWorld:
    """Return a world with an administrator and a user (both have the password ``sandbox``) and a
    template with 2 CPUs.
    """
    small = {"cpus": 2, "memory": 2048, "template": 0}
    return sandbox_world([{"types": {"worker": small}}], "sandbox")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def _handler(front: OneFront) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.startswith(PREFIX):
                self._answer(front.control("POST", self.path[len(PREFIX) :], body))
            elif self.path == PATH:
                self._rpc(body)
            else:
                self._answer(ControlAnswer(404, b"", "text/plain"))

        def do_GET(self) -> None:
            if self.path.startswith(PREFIX):
                self._answer(front.control("GET", self.path[len(PREFIX) :], b""))
            else:
                self._answer(ControlAnswer(404, b"", "text/plain"))

        def _rpc(self, body: bytes) -> None:
            try:
                answer = front.rpc(body)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            self._answer(answer)

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


def serve(directory: Path, port: int, world: OneWorld) -> None:
    """Serve until SIGTERM or SIGINT. ``port`` 0: any free port. Raises SandboxError."""
    front = OneFront(world)
    try:
        server = _Server((HOST, port), _handler(front))
    except OSError as error:
        raise SandboxError(f"port {port} on {HOST} is not available: {error}") from error
    serve_until_ended(server, directory / "one", front.stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns 2 if it cannot start."""
    parser = argparse.ArgumentParser(prog="slurm_elastic.sandbox.opennebula", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--world", type=Path, help="a JSON file: accounts, templates, hosts, nets")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Remove the file of an earlier run, which would show us as ready too early.
    (args.dir / "one" / "ready").unlink(missing_ok=True)
    try:
        serve(args.dir, args.port, read_world(args.world, OneWorld, default_world))
    except SlurmElasticError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
