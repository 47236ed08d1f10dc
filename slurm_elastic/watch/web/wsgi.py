"""The page as a WSGI application (PEP 3333), for web servers such as Open OnDemand.

Such a server starts one process per user.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.watch.web.documents import Documents
from slurm_elastic.watch.web.policy import HEADERS, JSON, STATIC

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


def application(documents: Documents) -> WSGIApplication:
    """Serves static files and ``api/NAME``, below any path that it is mounted at."""
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        status, kind, body = _answered(environment, documents, files)
        kept = "no-store" if kind == JSON else "no-cache"
        about = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": kept}
        start(status, [*HEADERS.items(), *about.items()])
        return [body]

    return answer


def _answered(
    environment: WSGIEnvironment, documents: Documents, files: Mapping[str, bytes]
) -> tuple[str, str, bytes]:
    path = str(environment.get("PATH_INFO", "")).removeprefix("/")
    if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return "405 Method Not Allowed", "text/plain", b"this page is read-only\n"
    name = path.removeprefix("api/")
    if path.startswith("api/") and name in documents:
        return _document(documents, name, dict(parse_qsl(environment.get("QUERY_STRING", ""))))
    name = path or "index.html"
    if name not in files:
        return "404 Not Found", "text/plain", b"there is no such file\n"
    suffix = f".{name.rpartition('.')[2]}"
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    return "200 OK", f"{kind}; charset=utf-8", files[name]


def _document(documents: Documents, name: str, query: dict[str, str]) -> tuple[str, str, bytes]:
    try:
        return "200 OK", JSON, documents.get(name, query).body
    except SlurmElasticError as error:
        return "422 Unprocessable Content", JSON, json.dumps({"error": str(error)}).encode()
