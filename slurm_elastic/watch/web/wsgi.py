"""The page as a WSGI application (PEP 3333), for web servers such as Open OnDemand.

Such a server starts one process per user.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.watch.web import act_pages
from slurm_elastic.watch.web.actions import MAX_BODY, ActionDesk, Visit
from slurm_elastic.watch.web.documents import Documents
from slurm_elastic.watch.web.policy import ACT_HEADERS, HEADERS, HTML, JSON, SESSION_COOKIE, STATIC
from slurm_elastic.watch.web.visitors import Visitors

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


class _Answer(Struct, frozen=True):
    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = {}


def application(
    documents: Documents, desk: ActionDesk | None = None, visitors: Visitors | None = None
) -> WSGIApplication:
    """Serves static files, ``api/NAME`` and (with a desk) actions, below any path that it is
    mounted at.
    """
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}

    def serve(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = str(environment.get("PATH_INFO", "")).removeprefix("/")
        if desk and visitors and path in (act_pages.PLACE, "api/actions"):
            answer = _acted(environment, path, desk, visitors)
        else:
            answer = _answered(environment, path, documents, files)
        kept = "no-store" if answer.kind in (JSON, HTML) else "no-cache"
        about = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body))}
        headers = {**HEADERS, "Cache-Control": kept, **answer.headers, **about}
        start(f"{answer.status.value} {answer.status.phrase}", list(headers.items()))
        return [answer.body]

    return serve


def _acted(
    environment: WSGIEnvironment, path: str, desk: ActionDesk, visitors: Visitors
) -> _Answer:
    method = environment["REQUEST_METHOD"]
    allowed = ("GET", "HEAD", "POST") if path == act_pages.PLACE else ("GET", "HEAD")
    if method not in allowed:
        return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"this only reads\n")
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environment.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    length = environment.get("CONTENT_LENGTH") or "0"
    # A WSGI server says the length, and passes on no more than that.
    if not length.isdecimal() or int(length) > MAX_BODY:
        page = act_pages.refused(None, f"a form has at most {MAX_BODY >> 10} KiB")
        return _Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTML, page.encode(), ACT_HEADERS)
    body = environment["wsgi.input"].read(int(length)) if method == "POST" else b""
    visit = Visit(
        method=method,
        person=visitors.person(None, ()),
        headers=headers,
        query=environment.get("QUERY_STRING", ""),
        body=body,
        session=_session(headers.get("cookie", "")),
    )
    if path != act_pages.PLACE:
        return _Answer(HTTPStatus.OK, JSON, json.dumps(desk.document(visit)).encode())
    answer = desk.answer(visit)
    cookie = {}
    if answer.session:
        secure = "; Secure" if environment.get("wsgi.url_scheme") == "https" else ""
        text = f"{SESSION_COOKIE}={answer.session}; HttpOnly; SameSite=Strict{secure}"
        cookie = {"Set-Cookie": text}
    html = answer.html.encode("utf-8", "backslashreplace")
    return _Answer(answer.status, HTML, html, {**ACT_HEADERS, **cookie})


def _session(cookies: str) -> str:
    try:
        jar = SimpleCookie(cookies)
    except CookieError:
        return ""
    return jar[SESSION_COOKIE].value if SESSION_COOKIE in jar else ""


def _answered(
    environment: WSGIEnvironment, path: str, documents: Documents, files: Mapping[str, bytes]
) -> _Answer:
    if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"this only reads\n")
    name = path.removeprefix("api/")
    if (path.startswith("api/") or path == "report") and name in documents:
        return _document(documents, name, dict(parse_qsl(environment.get("QUERY_STRING", ""))))
    name = path or "index.html"
    if name not in files:
        return _Answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such file\n")
    suffix = f".{name.rpartition('.')[2]}"
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    return _Answer(HTTPStatus.OK, f"{kind}; charset=utf-8", files[name])


def _document(documents: Documents, name: str, query: dict[str, str]) -> _Answer:
    try:
        reading = documents.get(name, query)
    except SlurmElasticError as error:
        body = json.dumps({"error": str(error)}).encode()
        return _Answer(HTTPStatus.UNPROCESSABLE_ENTITY, JSON, body)
    return _Answer(HTTPStatus.OK, reading.kind, reading.body)
