"""One server for whoever asks a service, at a unix socket or a TCP port: one thread, whoever comes
and however slowly.

The kernel says who asks before a byte is read; so many are let in, each for so many bytes and
seconds, and nobody who is slow, silent or gone holds another one up. What is said to a client is
the service's own: a coroutine, which leaves what may block to ``Hands``. Each server has a loop of
its own, so that strangers at one are in nobody's way at another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from slurm_elastic.base.bounded import Exceeded
from slurm_elastic.base.counted_users import NO_ACCOUNT, CountedUsers
from slurm_elastic.base.unixsocket import Peer, bind_socket, peer_of, remove_socket

log = logging.getLogger(__name__)

_IP_FREEBIND = 15
"""ip(7): also before this host has the address."""
_PART = 64 << 10
_SHORT = 0.1
"""Seconds for which nobody is let in where there are no descriptors or no memory."""
_OWED, _MOST_OWED = 0.001, 0.5
_LOOKUP_TIMEOUT_S = 2.0
LOOKUP_THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


class Bounds(Struct, frozen=True, kw_only=True):
    """``clients`` at once, of them ``each`` of one user (``CountedUsers``); who is trusted has
    ``kept`` more. A request has ``line`` bytes at most, its end included; ``backlog`` wait to be
    let in. It rests ``rest`` times what a round with the connections took of the processor.
    """

    clients: int
    each: int | None = None
    kept: int = 0
    line: int = 64 << 10
    backlog: int = 256
    rest: float = 0.0


class Gone(ConnectionError):  # noqa: N818 - read as a word
    """The client has left, or says more than it was asked."""


class Client:
    """A connection. ``asked``: a whole line of it has come; ``held``: bytes that it has yet to
    take. ``user``: as whom it counts, None until that was looked up.
    """

    def __init__(self, link: socket.socket, peer: Peer, most: int, *, trusted: bool) -> None:
        self.peer, self.trusted, self.asked, self.held = peer, trusted, False, 0
        self.user: int | None = peer.uid
        self._link, self._most = link, most
        self._buffer, self._over = b"", False
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(link, self.hear)

    def hear(self) -> None:
        """Take what has come."""
        try:
            part = self._link.recv(_PART)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._buffer += part
        self.asked = self.asked or b"\n" in part
        self._news.set()
        if not part or len(self._buffer) > self._most:
            self.leave()

    def leave(self) -> None:
        """It is not listened to any more."""
        self._over = True
        self._news.set()
        self._loop.remove_reader(self._link)

    def close(self) -> None:
        """End the connection."""
        self.leave()
        self._link.close()

    async def line(self, seconds: float) -> bytes:
        """The next line. TimeoutError where it does not come in time, Exceeded where it is too
        long, Gone where none comes.
        """
        async with asyncio.timeout(seconds):
            while b"\n" not in self._buffer and not self._over:
                self._news.clear()
                await self._news.wait()
        if len(self._buffer) > self._most:
            raise Exceeded(f"a line of more than {self._most} bytes came")
        line, end, self._buffer = self._buffer.partition(b"\n")
        if not end:
            raise Gone
        if not self._over:
            self._news.clear()
        return line

    async def meanwhile(self, work: asyncio.Future[T], seconds: float | None = None) -> T:
        """What ``work`` gives; before that Gone where the client leaves or talks on, TimeoutError
        after these seconds.
        """
        work.add_done_callback(lambda _: self._news.set())
        async with asyncio.timeout(seconds):
            await self._news.wait()
        if not work.done():
            raise Gone
        return work.result()

    async def send(self, document: bytes, seconds: float) -> None:
        """All of it. TimeoutError, OSError."""
        self.held += len(document)
        try:
            async with asyncio.timeout(seconds):
                await self._loop.sock_sendall(self._link, document)
        finally:
            self.held -= len(document)

    def push(self, word: bytes) -> None:
        """Send it if that takes no waiting; who does not read is as good as gone."""
        try:
            self._link.send(word)
        except OSError:
            self.leave()


class Server(ABC):
    """At ``place``, a path (with ``mode`` and ``owner``, a uid) or an address and port (0: any).
    ``busy`` is told to who is one too many, ``parting`` to whoever is there at the end. All but
    ``start``, ``call``, ``end``, ``wait`` and ``close`` is of its thread alone.
    """

    busy = b""
    parting = b""

    def __init__(
        self,
        name: str,
        place: Path | tuple[str, int],
        bounds: Bounds,
        *,
        mode: int = 0o600,
        owner: int = -1,
    ) -> None:
        self.name, self.bounds, self.failed = name, bounds, False
        self.clients: dict[Client, asyncio.Task[None]] = {}
        """The oldest one first."""
        self._place, self._mode, self._owner = place, mode, owner
        self._hands: list[Hands] = []
        self._users = CountedUsers()
        self._lookups = self.hands(f"{name}-users", LOOKUP_THREADS)
        self._ending = asyncio.Event()
        self._thread: threading.Thread | None = None

    # What a service says itself.

    @abstractmethod
    async def attend(self, client: Client) -> None:
        """All that is said to a client, until the connection ends; OSError where it has."""

    async def beside(self) -> None:
        """What else is done in its thread; when that ends, so does the server."""
        await self._ending.wait()

    def hands(self, name: str, count: int = 1) -> Hands:
        """Threads for as long as it serves."""
        self._hands.append(Hands(name, count))
        return self._hands[-1]

    def refusal(self, peer: Peer) -> bytes:  # noqa: ARG002
        """Why this one may not ask; b"" where it may. It may not block, nor may ``trusts``."""
        return b""

    def trusts(self, peer: Peer) -> bool:  # noqa: ARG002
        """Whether this one has places of its own."""
        return False

    def fail(self) -> None:
        """Called where it ends by an error."""
        self.failed = True

    # For the service's other threads.

    def start(self) -> None:
        """Listen until ``close`` (OSError where that cannot be)."""
        self._listener = self._listening()
        self._loop = asyncio.SelectorEventLoop(Resting(self.bounds.rest))
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Have it called in the server's thread, soon; without one, not at all."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function, *args)

    def end(self) -> None:
        """Have it stop listening and leave all clients; also at once, before it starts."""
        if self._thread is None:
            self._ending.set()
        self.call(self._ending.set)

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """End it."""
        self.end()
        self.wait(10)

    def _listening(self) -> socket.socket:
        place, backlog = self._place, self.bounds.backlog
        unix = isinstance(place, Path)
        sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            if isinstance(place, Path):
                bind_socket(sock, place, mode=self._mode, owner=self._owner, backlog=backlog)
                self._inode = os.stat(place).st_ino
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
                sock.bind(place)
                sock.listen(backlog)
        except OSError:
            sock.close()
            raise
        return sock

    # The server's thread.

    def _run(self) -> None:
        with self._listener, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except Exception:
                log.exception("%s: nobody is served any more", self.name)
                self.fail()
            finally:
                for hands in self._hands:
                    hands.close()

    async def _serve(self) -> None:
        self._listen()
        beside = self._loop.create_task(self.beside())
        beside.add_done_callback(lambda _: self._ending.set())
        await self._ending.wait()
        if isinstance(self._place, Path):
            remove_socket(self._place, self._inode)
        self._let_in()  # who is in the queue must not take a closed socket for a failure
        self._loop.remove_reader(self._listener)
        for client, task in self.clients.items():
            client.push(self.parting)
            task.cancel()
        await asyncio.gather(*self.clients.values(), return_exceptions=True)
        if beside.done():
            beside.result()

    def _listen(self) -> None:
        if not self._ending.is_set():
            self._loop.add_reader(self._listener, self._let_in)

    def _let_in(self) -> None:
        for _ in range(self.bounds.backlog):
            try:
                link, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors or memory
                log.warning("%s: nobody can be let in now: %s", self.name, error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_SHORT, self._listen)
                return
            self._admit(link, address)

    def _admit(self, link: socket.socket, address: Any) -> None:  # noqa: ANN401 - by its family
        """Who is refused or one too many gets a sentence and no place."""
        with contextlib.suppress(OSError):
            link.setblocking(False)
            peer = peer_of(link) if link.family == socket.AF_UNIX else Peer(address=address[0])
            trusted = self.trusts(peer)
            why = self.refusal(peer)
            if not why and self._has_room(peer.uid, trusted=trusted):
                client = Client(link, peer, self.bounds.line, trusted=trusted)
                if self.bounds.each and not trusted:
                    client.user = self._users.cached(peer.uid)
                self.clients[client] = task = self._loop.create_task(self._attend(client))
                task.add_done_callback(lambda _: self._left(client))
                client.hear()  # once it has asked, its place is its own
                return
            link.send(why or self.busy)
        link.close()

    def _has_room(self, uid: int, *, trusted: bool) -> bool:
        bounds = self.bounds
        if trusted:
            return len(self.clients) < bounds.clients + bounds.kept
        others = [client for client in self.clients if not client.trusted]
        if bounds.each and self._places_of(uid, self._users.cached(uid)) >= bounds.each:
            return False
        return len(others) < bounds.clients or self._send_silent_away(others)

    def _places_of(self, uid: int, user: int | None) -> int:
        return sum(
            client.peer.uid == uid or (user is not None and client.user == user)
            for client in self.clients
            if not client.trusted
        )

    def _send_silent_away(self, clients: Iterable[Client]) -> bool:
        """End the oldest connection that has not asked yet, or whose user was not looked up yet: a
        user with a range of uids (subuid(5)) could take all places with those. Whether there was
        such a connection.
        """
        for client in clients:
            client.hear()  # its question may have come just now
            if not client.asked or client.user is None:
                self.clients.pop(client).cancel()
                return True
        return False

    async def _may_stay(self, client: Client) -> bool:
        """Whether its user, who may have to be looked up, has no more places than ``each``."""
        if client.user is not None:
            return True
        uid = client.peer.uid
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                client.user = await self._lookups.do(self._users.look_up, uid)
        except TimeoutError:  # a directory server does not answer: nobody gains places by that
            client.user = NO_ACCOUNT
        if self._places_of(uid, client.user) <= (self.bounds.each or self.bounds.clients):
            return True
        client.push(self.busy)
        return False

    async def _attend(self, client: Client) -> None:
        try:
            if await self._may_stay(client):
                await self.attend(client)
        except OSError:  # it is gone, too slow or too long
            pass
        except Exception:
            log.exception("%s: a client could not be served", self.name)

    def _left(self, client: Client) -> None:
        self.clients.pop(client, None)
        client.close()


class Hands:
    """Daemon threads for what may block, ``count`` at most: at the end nobody waits for them."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._busy = self._threads = 0

    async def do(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What it gives or raises, in a thread."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # once it is there it is done, whoever waits

        def work() -> None:
            try:
                done.set_result(function(*args, **named))
            except Exception as error:  # noqa: BLE001 - whoever waits for it has it
                done.set_exception(error)
            except BaseException as error:
                # As an ordinary error: a SystemExit of one answer must not end the server's loop.
                log.exception("%s: a library ends the thread", self._name)
                done.set_exception(RuntimeError(f"{self._name}: {type(error).__name__}: {error}"))

        self._work.put(work)
        self._busy += 1
        try:
            if self._threads < min(self._busy, self._count):
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            return await asyncio.wrap_future(done)
        finally:
            self._busy -= 1

    def _run(self) -> None:
        while work := self._work.get():
            work()

    def close(self) -> None:
        """They end when they have done what they are at."""
        for _ in range(self._threads):
            self._work.put(None)


class Resting(selectors.DefaultSelector):
    """A loop's selector that rests ``rest`` times what the loop's rounds take of the processor:
    whoever connects, drips or asks in a loop has a part of one, and not the service's.
    """

    def __init__(self, rest: float) -> None:
        super().__init__()
        self._rest, self._owed = rest, 0.0
        self._since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As any selector's; the loop calls it once a round."""
        if self._rest and self._since is not None:
            self._owed += self._rest * (time.thread_time() - self._since)
            if self._owed > _OWED:  # a sleep takes some time itself
                time.sleep(min(self._owed, _MOST_OWED))
                self._owed = 0.0
        found = super().select(timeout)
        self._since = time.thread_time()
        return found
