"""HTTP for the page: static files, ``api/NAME`` for documents, ``api/events`` for news about them.

It is read-only. At a loopback port visitors need its key; at a unix socket the kernel says who
comes.
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
from slurm_elastic.watch.web.connection import Connection
from slurm_elastic.watch.web.documents import Documents, Query, Reading
from slurm_elastic.watch.web.policy import HEADERS, JSON, STATIC

OWN_NAMES = ("localhost", "127.0.0.1")
"""Names by which a browser reaches loopback, directly or by ``ssh -L``."""
STREAM = "text/event-stream"
KEY, COOKIE = "key", "slurm-elastic-key"
PERIOD = 5.0  # seconds between two looks while somebody has the page open
MOST_STREAMS = 32
REFUSED = (400, 403)  # for a name that is not ours; without the key
_KEYLESS = "This page needs the address that `slurm-elastic web` printed, with its key.\n"


def application(
    documents: Documents, *, names: Sequence[str] = OWN_NAMES, key: str = "", period: float = PERIOD
) -> Starlette:
    """The page for browsers that ask by one of ``names`` and have the ``key``, if there is one."""
    answers = PageAnswers(documents, period)
    routes = [
        Route("/api/events", answers.stream),
        Route("/api/{name}", answers.document),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    # In any case: by `ssh -L` a browser comes from a port also where we have a unix socket.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=list(names), www_redirect=False)
    guards = [Middleware(Keyed, key=key)] if key else []
    app = Starlette(routes=routes, middleware=[Middleware(Headed), hosts, *guards])
    app.state.ending = answers.ending
    return app


class PageServer(uvicorn.Server):
    """uvicorn, ending streams before it waits for answers. ``group``: who may use a unix socket."""

    def __init__(self, app: Starlette, group: int | None = None) -> None:
        settings = uvicorn.Config(
            app, http=type("Visit", (Connection,), {"group": group}), ws="none",
            log_level="error",  # a warning is any stranger's who speaks no HTTP
            access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=3, proxy_headers=False,
        )  # fmt: skip
        super().__init__(settings)
        self._ending = app.state.ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called in its loop."""
        self._ending.set()
        await super().shutdown(sockets)


def serve(app: Starlette, link: socket.socket, group: int | None = None) -> None:
    """Serve until SIGINT or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has ended
        signal.signal(number, lambda *_: None)
    PageServer(app, group).run(sockets=[link])


def _json(document: object, status: int) -> Response:
    return Response(json.dumps(document), status, {"Cache-Control": "no-store"}, media_type=JSON)


class PageAnswers:
    """Hands out documents, and tells pages of a new status, which is read once for all."""

    def __init__(self, documents: Documents, period: float) -> None:
        self._documents, self._period = documents, period
        self._open = 0
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.ending = asyncio.Event()

    async def document(self, request: Request) -> Response:
        """What a command prints; 422 with its sentence if it fails."""
        name, query = request.path_params["name"], dict(request.query_params)
        if name not in self._documents:
            return _json({"error": f"there is no document {name!r}"}, 404)
        try:
            made = await self._made(name, query)
        except SlurmElasticError as error:
            return _json({"error": str(error)}, 422)
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if made.packed and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(made.packed, headers=headers, media_type=JSON)
        return Response(made.body, headers=headers, media_type=JSON)

    async def _made(self, name: str, query: Query) -> Reading:
        """Each document has one thread, so those that wait for a slow one hold up no other."""
        async with self._turns[name]:
            return await to_thread.run_sync(self._documents.get, name, query)

    async def stream(self, request: Request) -> Response:
        """Server-sent events (HTML Living Standard, 9.2)."""
        if self._open >= MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._news(request), headers=headers, media_type=STREAM)

    async def _news(self, request: Request) -> AsyncIterator[str]:
        self._open += 1
        seen: Reading | None = None
        try:
            yield f"retry: {self._period * 1000:.0f}\n\n"
            while not (self.ending.is_set() or await request.is_disconnected()):
                try:
                    made = await self._made("status", {})
                except SlurmElasticError as error:
                    yield _event("trouble", str(error))
                    await self._wait(self._period)
                    continue
                if seen is not None and made is not seen:  # the page has just read the first one
                    yield _event("fresh", "")
                seen = made
                await self._wait(max(made.until - time.monotonic(), 0.0) + 0.05)
        finally:
            self._open -= 1

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.ending.wait()


def _event(name: str, text: str) -> str:
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"


class Headed:
    """Gives every answer HEADERS, refusals, too. A REFUSED visitor's connection is closed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-cache")
                # A stranger who takes no answers would keep it busy, and with it one of our places.
                if message["status"] in REFUSED:
                    headers["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, headed)


class Keyed:
    """Lets in those who have the key: in the address the first time, in a cookie afterwards."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        asked = HTTPConnection(scope)
        port = asked.url.port or 80  # cookies belong to a host, whatever the port
        name = f"{COOKIE}-{port}"
        if self._fits(asked.query_params.get(KEY, "")):
            welcome = RedirectResponse(".", 303)
            welcome.set_cookie(name, self._key, httponly=True, samesite="strict")
            await welcome(scope, receive, send)
        elif self._fits(asked.cookies.get(name, "")):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(_KEYLESS, 403)(scope, receive, send)

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._key.encode())
