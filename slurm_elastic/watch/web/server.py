"""HTTP for the page: static files, ``api/NAME`` for documents, ``api/events`` for news about them.

Visitors of a loopback port need the key, and the page is read-only there. The kernel names the
visitor of a unix socket, who may act if the rules of the command line allow it (``act``).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import signal
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

import anyio
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.signals import accept_ends, bound_end
from slurm_elastic.watch.web.acting import ActRoutes, visitor_of
from slurm_elastic.watch.web.actions import NO_ACTIONS
from slurm_elastic.watch.web.connection import Connection
from slurm_elastic.watch.web.documents import VISITOR, CachedDocument, Documents, Query
from slurm_elastic.watch.web.policy import HEADERS, JSON, STATIC
from slurm_elastic.watch.web.visitors import UnknownVisitorError, Visitors

OWN_NAMES = ("localhost", "127.0.0.1")
"""Names by which a browser reaches loopback, directly or by ``ssh -L``."""
STREAM = "text/event-stream"
KEY, COOKIE = "key", "slurm-elastic-key"
PERIOD_S = 5.0  # interval of checks for a new status while the page is open
MAX_STREAMS = 32
REFUSED = (400, 403)  # wrong host name; missing key
_KEYLESS = "This page needs the address that `slurm-elastic web` printed, with its key.\n"


def application(
    documents: Documents,
    *,
    names: Sequence[str] = OWN_NAMES,
    key: str = "",
    period: float = PERIOD_S,
    acting: ActRoutes | None = None,
    visitors: Visitors | None = None,
) -> Starlette:
    """The page for browsers that use a host name of ``names`` and have the ``key``, if any.

    Without ``acting`` it has no actions. Without ``visitors`` it knows no user.
    """
    answers = PageAnswers(documents, period, visitors)
    act_routes = [Route("/api/actions", no_actions)] if acting is None else [
        Route("/api/actions", acting.document),
        Route("/act", acting.page, methods=["GET", "POST"]),
    ]  # fmt: skip
    routes = [
        *act_routes,
        Route("/api/events", answers.stream),
        # Starlette takes the first route that fits, so this one comes after those with fixed names.
        Route("/api/{name}", answers.document),
        Route("/report", answers.report),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    # Also with a unix socket: through `ssh -L` a browser uses a host name and a port.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=list(names), www_redirect=False)
    guards = [Middleware(KeyedAccess, key=key)] if key else []
    # From outside to inside: the refusals of the other two must have our headers, too.
    app = Starlette(routes=routes, middleware=[Middleware(Headed), hosts, *guards])
    app.state.ending = answers.ending
    return app


class PageServer(uvicorn.Server):
    """uvicorn, which ends streams before it waits for open answers.

    ``group``: the group that may use a unix socket.
    """

    def __init__(self, app: Starlette, group: int | None = None) -> None:
        settings = uvicorn.Config(
            app, http=type("Visit", (Connection,), {"group": group}), ws="none",
            log_level="error",  # any stranger who speaks no HTTP causes a warning
            access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=3, proxy_headers=False,
        )  # fmt: skip
        super().__init__(settings)
        self._ending = app.state.ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first, then shut down; uvicorn calls it in its event loop."""
        self._ending.set()
        await super().shutdown(sockets)


def serve(app: Starlette, link: socket.socket, group: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has ended
        # A visitor's question may take minutes, and Python waits for its thread.
        signal.signal(number, lambda *_: bound_end())
    accept_ends()
    PageServer(app, group).run(sockets=[link])


def _json(document: object, status: int) -> Response:
    return Response(json.dumps(document), status, {"Cache-Control": "no-store"}, media_type=JSON)


def visitor_name(request: Request, visitors: Visitors | None) -> str:
    """The user who looks at the page; "" if the user is not named, as at a port."""
    try:
        return visitor_of(request, visitors).name if visitors else ""
    except UnknownVisitorError:
        return ""


async def no_actions(_: Request) -> Response:
    """Tell the page's script that this page has no actions."""
    return _json(NO_ACTIONS, 200)


class PageAnswers:
    """Answers requests for documents, and notifies open pages of a new status."""

    def __init__(self, documents: Documents, period: float, visitors: Visitors | None) -> None:
        self._documents, self._period, self._visitors = documents, period, visitors
        self._open = 0
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.ending = asyncio.Event()

    async def document(self, request: Request) -> Response:
        """The document of a command; 422 with the error's sentence if it fails."""
        name = request.path_params["name"]
        query = dict(request.query_params) | {VISITOR: visitor_name(request, self._visitors)}
        if name not in self._documents:
            return _json({"error": f"there is no document {name!r}"}, 404)
        try:
            reading = await self._reading(name, query)
        except SlurmElasticError as error:
            return _json({"error": str(error)}, 422)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if reading.packed and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(reading.packed, headers=headers, media_type=reading.kind)
        return Response(reading.body, headers=headers, media_type=reading.kind)

    async def report(self, request: Request) -> Response:
        """The report of a month, which is a page of its own."""
        try:
            reading = await self._reading("report", dict(request.query_params))
        except (SlurmElasticError, KeyError) as error:  # KeyError: this server has no report
            text = str(error) if isinstance(error, SlurmElasticError) else "there is no report"
            return PlainTextResponse(f"{text}\n", 422)
        return Response(
            reading.body, headers={"Cache-Control": "no-store"}, media_type=reading.kind
        )

    async def _reading(self, name: str, query: Query) -> CachedDocument:
        """Make a document, one thread per name, so that a slow document delays no other."""
        async with self._turns[name]:
            return await to_thread.run_sync(self._documents.get, name, query)

    async def stream(self, request: Request) -> Response:
        """The stream of server-sent events (HTML Living Standard, 9.2)."""
        if self._open >= MAX_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        # nginx would otherwise hold events back until its buffer is full.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._news(request), headers=headers, media_type=STREAM)

    async def _news(self, request: Request) -> AsyncIterator[str]:
        self._open += 1
        last_reading: CachedDocument | None = None
        try:
            # After so many milliseconds a browser that has lost the stream connects again.
            yield f"retry: {self._period * 1000:.0f}\n\n"
            while not (self.ending.is_set() or await request.is_disconnected()):
                try:
                    reading = await self._reading("status", {})
                except SlurmElasticError as error:
                    yield _event("trouble", str(error))
                    await self._wait(self._period)
                    continue
                if (
                    last_reading is not None and reading is not last_reading
                ):  # the page has just read the first one
                    yield _event("fresh", "")
                last_reading = reading
                # A little later than its end, so that the next reading is a new one.
                await self._wait(max(reading.until - time.monotonic(), 0.0) + 0.05)
        finally:
            self._open -= 1

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.ending.wait()


def _event(name: str, text: str) -> str:
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"


class Headed:
    """Adds HEADERS to every answer, also to refusals. It closes a REFUSED visitor's connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache")
                # A stranger who reads no answers would keep one of our connections busy.
                if message["status"] in REFUSED:
                    headers["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, headed)


class KeyedAccess:
    """Admits visitors with the key: in the address the first time, in a cookie afterwards."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""
        if scope["type"] != "http":
            return
        asked = HTTPConnection(scope)
        # The port is part of the cookie's name: browsers share cookies between ports of a host.
        port = asked.url.port or 80
        name = f"{COOKIE}-{port}"
        if self._fits(asked.query_params.get(KEY, "")):
            welcome = RedirectResponse(".", 303)
            welcome.set_cookie(name, self._key, httponly=True, samesite="strict")
            await welcome(scope, receive, send)
        elif self._fits(asked.cookies.get(name, "")):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(_KEYLESS, 403)(scope, receive, send)

    def _fits(self, candidate: str) -> bool:
        # As bytes: compare_digest takes only ASCII text.
        return hmac.compare_digest(candidate.encode(), self._key.encode())
