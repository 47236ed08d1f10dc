"""EC2's instance metadata service (IMDSv2), as far as a machine of ours asks it.

``imds.py FILE``, standard library only, serves where EC2 does (169.254.169.254, an address that
this host has to have); FILE has the answers of now as a JSON object. A directory has such a file
for each machine, by its address. With ``user-data`` (base64) and the like cloud-init reads it, too,
and where ``http-tokens`` is ``optional`` without a token (IMDSv1).
"""

from __future__ import annotations

import base64
import json
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ADDRESS = "169.254.169.254"
USER_DATA = "user-data"
TOKENS = "http-tokens"
BESIDE = "dynamic/"
"""A tree of its own, beside meta-data."""


def found(answers: Mapping[str, str], path: str) -> bytes | None:
    """The answer to a path after the version: a text, or what is in a directory."""
    if path == USER_DATA:
        return base64.b64decode(answers[path]) if path in answers else None
    if path.startswith(BESIDE):
        said = answers.get(path)
        return _listed(answers, path.rstrip("/") + "/") if said is None else said.encode()
    if path.rstrip("/") == "meta-data":
        return _listed(answers, "")
    name = path.removeprefix("meta-data/")
    if path.startswith("meta-data/") and name in answers:
        return answers[name].encode()
    return _listed(answers, name) if name.endswith("/") else None


def _listed(answers: Mapping[str, str], directory: str) -> bytes | None:
    below = (n.removeprefix(directory) for n in answers if n.startswith(directory))
    names = {first + slash for first, slash, _ in (n.partition("/") for n in below)}
    return "\n".join(sorted(names - {USER_DATA, TOKENS, BESIDE})).encode() if names else None


class Metadata(BaseHTTPRequestHandler):
    """A token first, then everything with it; 404 for what is not there."""

    answers: dict[str, str] = {}  # noqa: RUF012 - by path below meta-data/, one set a test

    def known(self) -> Mapping[str, str]:
        """The answers for who asks."""
        return self.answers

    def do_PUT(self) -> None:
        if not self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
            self._say(400, b"")
            return
        self._say(200, b"tok" if self.path == "/latest/api/token" else b"")

    def do_GET(self) -> None:
        optional = self.known().get(TOKENS) == "optional"
        if self.headers["X-aws-ec2-metadata-token"] != "tok" and not optional:
            self._say(401, b"")
            return
        _, _, path = self.path.lstrip("/").partition("/")  # after the version
        answer = found(self.known(), path)
        self._say(404 if answer is None else 200, answer or b"")

    def _say(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(**answers: str) -> Iterator[str]:
    """On a free port, until the end of the block; its address up to ``/latest/``."""
    Metadata.answers = dict(answers)
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/latest/"
        server.shutdown()


class Written(Metadata):
    """The text of a file at that moment."""

    def known(self) -> Mapping[str, str]:
        place = Path(sys.argv[1])
        file = place / self.client_address[0] if place.is_dir() else place
        try:
            said: dict[str, str] = json.loads(file.read_bytes())
        except FileNotFoundError:
            return {}
        return said


class Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Without asking for the address's name: where no name server answers, that takes long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, 80


if __name__ == "__main__":
    Server((ADDRESS, 80), Written).serve_forever()
