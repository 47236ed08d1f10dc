"""The actions as a part of the page's server (ASGI)."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from slurm_elastic.watch.door.rights import Person
from slurm_elastic.watch.web import act_pages
from slurm_elastic.watch.web.actions import MAX_BODY, ActAnswer, ActionDesk, Visit
from slurm_elastic.watch.web.policy import ACT_HEADERS, JSON, SESSION_COOKIE
from slurm_elastic.watch.web.visitors import UnknownVisitorError, Visitors

T = TypeVar("T")

BODY_TIMEOUT_S = 10.0
THREADS = 4
"""At most so many actions are planned or carried out at the same time."""


class TooLargeError(Exception):
    """The body has more than MAX_BODY bytes."""


class ActRoutes:
    """The endpoints of actions."""

    def __init__(self, desk: ActionDesk, visitors: Visitors) -> None:
        self._desk, self._visitors = desk, visitors
        self._limiter: CapacityLimiter | None = None

    async def document(self, request: Request) -> Response:
        """Answer with the actions that this visitor may do, for the page's script."""
        document = await self._run(lambda: self._desk.document(self._visit(request)))
        headers = {"Cache-Control": "no-store"}
        return Response(json.dumps(document), headers=headers, media_type=JSON)

    async def page(self, request: Request) -> Response:
        """Answer with a page of actions, or carry out its form."""
        try:
            body = await _body(request) if request.method == "POST" else b""
        except TooLargeError:
            reason = f"a form has at most {MAX_BODY >> 10} KiB"
            return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        except TimeoutError:
            return _refusal(HTTPStatus.REQUEST_TIMEOUT, "the form did not arrive in time")
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        answer = await self._run(lambda: self._desk.answer(self._visit(request, body)))
        return _response(request, answer)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._limiter is None:  # it belongs to the running event loop
            self._limiter = CapacityLimiter(THREADS)
        return await to_thread.run_sync(work, limiter=self._limiter)

    def _visit(self, request: Request, body: bytes = b"") -> Visit:
        person, read_only = None, ""
        try:
            person = visitor_of(request, self._visitors)
        except UnknownVisitorError as error:
            read_only = str(error)
        return Visit(
            method=request.method,
            person=person,
            read_only=read_only,
            headers={name.lower(): value for name, value in request.headers.items()},
            query=request.url.query,
            body=body,
            session=request.cookies.get(_cookie_name(request), ""),
        )


def visitor_of(request: Request, visitors: Visitors) -> Person:
    """The user behind a request. UnknownVisitorError if the connection does not name the user."""
    names = request.headers.getlist(visitors.header) if visitors.header else []
    return visitors.person(getattr(request.state, "peer", None), names)


async def _body(request: Request) -> bytes:
    """The body of the request. We count its bytes, because Content-Length may be
    missing or wrong.
    """
    chunks, size = [], 0
    with anyio.fail_after(BODY_TIMEOUT_S):
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise TooLargeError
            chunks.append(chunk)
    return b"".join(chunks)


def _cookie_name(request: Request) -> str:
    # Browsers share cookies between the ports of a host.
    _, _, port = request.headers.get("host", "").rpartition(":")
    return f"{SESSION_COOKIE}-{port if port.isdecimal() else 80}"


def _refusal(status: HTTPStatus, reason: str) -> Response:
    # The rest of the body is not read, so the connection cannot be used again.
    headers = {**ACT_HEADERS, "Connection": "close"}
    return Response(act_pages.refused(None, reason), status, headers, "text/html")


def _response(request: Request, answer: ActAnswer) -> Response:
    response = Response(answer.html, answer.status, ACT_HEADERS, "text/html")
    if answer.session:
        is_secure = request.headers.get("x-forwarded-proto", "") == "https"
        response.set_cookie(
            _cookie_name(request), answer.session,
            path=None, httponly=True, samesite="strict", secure=is_secure,
        )  # fmt: skip
    return response
