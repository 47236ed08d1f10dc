"""EC2's instance metadata service (IMDSv2), as far as a machine of ours asks it.

``imds.py FILE``, standard library only, serves a machine where EC2 does (169.254.169.254, an address that
the machine has to have); FILE has the answers of now as a JSON object.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ADDRESS = "169.254.169.254"


class Metadata(BaseHTTPRequestHandler):
    """A token first, then everything with it; 404 for what is not there."""

    answers: dict[str, str] = {}  # noqa: RUF012 - by path below meta-data/, one set a test

    def known(self) -> Mapping[str, str]:
        return self.answers

    def do_PUT(self) -> None:
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._say(200, "tok" if self.path == "/latest/api/token" else "")

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != "tok":
            self._say(401, "")
            return
        answer = self.known().get(self.path.removeprefix("/latest/meta-data/"))
        self._say(404 if answer is None else 200, answer or "")

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

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
    """What a file says at that moment."""

    def known(self) -> Mapping[str, str]:
        said: dict[str, str] = json.loads(Path(sys.argv[1]).read_bytes())
        return said


class Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Without asking for the address's name: where no name server answers, that takes long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, 80


if __name__ == "__main__":
    Server((ADDRESS, 80), Written).serve_forever()
