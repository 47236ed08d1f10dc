"""EC2's instance metadata service (IMDSv2), as far as our machines and cloud-init use it.

``imds.py FILE`` uses the standard library only. It serves at EC2's address 169.254.169.254, which
this host must have. FILE contains the answers as a JSON object by path and is read at each request.
FILE may be a directory with such a file for each machine, named by the machine's address.
``user-data`` is base64. If ``http-tokens`` is ``optional``, requests without a token are answered,
too (IMDSv1).
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
"""A tree beside meta-data."""


def found(answers: Mapping[str, str], path: str) -> bytes | None:
    """Return the answer to a path after the version: a text, the names in a directory, or None."""
    if path == USER_DATA:
        return base64.b64decode(answers[path]) if path in answers else None
    if path.startswith(BESIDE):
        text = answers.get(path)
        return _listed(answers, path.rstrip("/") + "/") if text is None else text.encode()
    if path.rstrip("/") == "meta-data":
        return _listed(answers, "")
    name = path.removeprefix("meta-data/")
    if path.startswith("meta-data/") and name in answers:
        return answers[name].encode()
    return _listed(answers, name) if name.endswith("/") else None


def _listed(answers: Mapping[str, str], directory: str) -> bytes | None:
    paths = (n.removeprefix(directory) for n in answers if n.startswith(directory))
    names = {name + slash for name, slash, _ in (n.partition("/") for n in paths)}
    return "\n".join(sorted(names - {USER_DATA, TOKENS, BESIDE})).encode() if names else None


class MetadataAnswers(BaseHTTPRequestHandler):
    """Answers requests as the service does: PUT gives a token, and GET answers requests with a
    token. An unknown path gets 404.
    """

    answers: dict[str, str] = {}  # noqa: RUF012 - by path below meta-data/, one set a test

    def known(self) -> Mapping[str, str]:
        """Return the answers for the client of this request."""
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
    """Serve ``answers`` on a free port until the end of the block. Yield the URL up to
    ``/latest/``.
    """
    MetadataAnswers.answers = dict(answers)
    with ThreadingHTTPServer(("127.0.0.1", 0), MetadataAnswers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/latest/"
        server.shutdown()


class Written(MetadataAnswers):
    """Reads the answers from the file FILE at each request."""

    def known(self) -> Mapping[str, str]:
        path = Path(sys.argv[1])
        file = path / self.client_address[0] if path.is_dir() else path
        try:
            answers: dict[str, str] = json.loads(file.read_bytes())
        except FileNotFoundError:
            return {}
        return answers


class MetadataServer(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Do not resolve the address's name, as HTTPServer does: without a name server that takes
        long.
        """
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, 80


if __name__ == "__main__":
    MetadataServer((ADDRESS, 80), Written).serve_forever()
