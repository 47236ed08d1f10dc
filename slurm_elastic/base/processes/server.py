"""A server at a unix socket or a TCP port, in one thread, however many or slow its clients are.

The kernel says who the client is, before the first byte is read. The number of clients is bounded,
and for each client the bytes and the seconds. A slow, silent or lost client holds up no other one.
A service answers its clients in a coroutine, and leaves work that may block to ``Hands``. Each
server has an event loop of its own, so that clients of one server do not delay another server.
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

from slurm_elastic.base.counted_users import NO_ACCOUNT, CountedUsers
from slurm_elastic.base.processes.bounded import Exceeded
from slurm_elastic.base.processes.unixsocket import Peer, bind_socket, peer_of, remove_socket

log = logging.getLogger(__name__)

_IP_FREEBIND = 15
"""ip(7): bind the address even before this host has it."""
_READ_SIZE = 64 << 10
_ACCEPT_RETRY_S = 0.1
"""Seconds without new clients after the process ran out of descriptors or memory."""
_MIN_REST_S, _MAX_REST_S = 0.001, 0.5
_LOOKUP_TIMEOUT_S = 2.0
LOOKUP_THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


class ServerBounds(Struct, frozen=True, kw_only=True):
    """Bounds of a server.

    ``max_clients``: connections at once. ``per_user``: connections of one user (``CountedUsers``).
    Trusted users have ``reserved_places`` more. ``max_line_bytes``: bytes of a request with its
    newline. ``backlog``: connections that wait to be accepted. ``rest_factor``: after each round
    the server sleeps this many times the processor time that the round took.
    """

    max_clients: int
    per_user: int | None = None
    reserved_places: int = 0
    max_line_bytes: int = 64 << 10
    backlog: int = 256
    rest_factor: float = 0.0


class Gone(ConnectionError):  # noqa: N818 - read as a word
    """The client has left, or has sent more than its request."""


class ServerClient:
    """A connection.

    ``has_request``: a whole line has come. ``unsent_bytes``: bytes that wait to be sent. ``user``:
    the user whose places the connection counts against, None until the user has been looked up.
    """

    def __init__(self, link: socket.socket, peer: Peer, max_line: int, *, trusted: bool) -> None:
        self.peer, self.trusted, self.has_request, self.unsent_bytes = peer, trusted, False, 0
        self.user: int | None = peer.uid
        self._link, self._max_line = link, max_line
        self._buffer, self._has_ended = b"", False
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(link, self.receive)

    def receive(self) -> None:
        """Read the available bytes."""
        try:
            data = self._link.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._buffer += data
        self.has_request = self.has_request or b"\n" in data
        self._changed.set()
        if not data or len(self._buffer) > self._max_line:
            self.stop_reading()

    def stop_reading(self) -> None:
        """Read nothing more from the client."""
        self._has_ended = True
        self._changed.set()
        self._loop.remove_reader(self._link)

    def close(self) -> None:
        """Close the connection."""
        self.stop_reading()
        self._link.close()

    async def read_line(self, seconds: float) -> bytes:
        """The next line. TimeoutError if it does not come in ``seconds``, Exceeded if it is too
        long, Gone if the client has ended.
        """
        async with asyncio.timeout(seconds):
            while b"\n" not in self._buffer and not self._has_ended:
                self._changed.clear()
                await self._changed.wait()
        if len(self._buffer) > self._max_line:
            raise Exceeded(f"a line of more than {self._max_line} bytes came")
        line, end, self._buffer = self._buffer.partition(b"\n")
        if not end:
            raise Gone
        if not self._has_ended:
            self._changed.clear()
        return line

    async def wait_for(self, work: asyncio.Future[T], seconds: float | None = None) -> T:
        """The result of ``work``. Gone if the client leaves or sends more before it, TimeoutError
        after ``seconds``.
        """
        work.add_done_callback(lambda _: self._changed.set())
        async with asyncio.timeout(seconds):
            await self._changed.wait()
        if not work.done():
            raise Gone
        return work.result()

    async def send(self, document: bytes, seconds: float) -> None:
        """Send all of ``document``. TimeoutError after ``seconds``, OSError without a reader."""
        self.unsent_bytes += len(document)
        try:
            async with asyncio.timeout(seconds):
                await self._loop.sock_sendall(self._link, document)
        finally:
            self.unsent_bytes -= len(document)

    def push(self, message: bytes) -> None:
        """Send the message if that needs no waiting. Drop a client that does not read."""
        try:
            self._link.send(message)
        except OSError:
            self.stop_reading()


class Server(ABC):
    """A server at ``place``: a path (with ``mode`` and ``owner``, a uid) or an address and a port
    (0: any).

    ``busy_message`` is sent to a client without a place, ``parting_message`` to all at the end.
    Other threads may call only ``start``, ``call``, ``end``, ``wait`` and ``close``.
    """

    busy_message = b""
    parting_message = b""

    def __init__(
        self,
        name: str,
        place: Path | tuple[str, int],
        bounds: ServerBounds,
        *,
        mode: int = 0o600,
        owner: int = -1,
    ) -> None:
        self.name, self.bounds, self.failed = name, bounds, False
        self.clients: dict[ServerClient, asyncio.Task[None]] = {}
        """The oldest connection is first."""
        self._place, self._mode, self._owner = place, mode, owner
        self._hands: list[Hands] = []
        self._users = CountedUsers()
        self._lookups = self.start_threads(f"{name}-users", LOOKUP_THREADS)
        self._ending = asyncio.Event()
        self._thread: threading.Thread | None = None

    # For the service to define.

    @abstractmethod
    async def attend(self, client: ServerClient) -> None:
        """Serve a client until the connection ends. OSError if the connection has failed."""

    async def run_beside(self) -> None:
        """Other work of the service in the server's thread. The server ends when this returns."""
        await self._ending.wait()

    def start_threads(self, name: str, count: int = 1) -> Hands:
        """Start threads that live as long as the server."""
        self._hands.append(Hands(name, count))
        return self._hands[-1]

    def refusal(self, peer: Peer) -> bytes:  # noqa: ARG002
        """Why this client may not ask, or b"" if it may. Neither this nor ``trusts`` may block."""
        return b""

    def trusts(self, peer: Peer) -> bool:  # noqa: ARG002
        """Whether this client may use the places reserved for trusted users."""
        return False

    def fail(self) -> None:
        """Called when an error ends the server."""
        self.failed = True

    # For the service's other threads.

    def start(self) -> None:
        """Listen until ``close``. OSError if the place cannot be bound."""
        self._listener = self._bind()
        self._loop = asyncio.SelectorEventLoop(Resting(self.bounds.rest_factor))
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self._listener.getsockname()[1])

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call the function soon, in the server's thread. Do nothing if there is no such thread."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function, *args)

    def end(self) -> None:
        """Stop listening and drop all clients. Before ``start``, the server ends at once."""
        if self._thread is None:
            self._ending.set()
        self.call(self._ending.set)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the server has ended, ``seconds`` at most."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """End the server and wait for that."""
        self.end()
        self.wait(10)

    def _bind(self) -> socket.socket:
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
                log.exception("%s: an error has ended the server", self.name)
                self.fail()
            finally:
                for hands in self._hands:
                    hands.close()

    async def _serve(self) -> None:
        self._listen()
        beside = self._loop.create_task(self.run_beside())
        beside.add_done_callback(lambda _: self._ending.set())
        await self._ending.wait()
        if isinstance(self._place, Path):
            remove_socket(self._place, self._inode)
        self._let_in()  # a client in the queue would take the closed socket for a failure
        self._loop.remove_reader(self._listener)
        for client, task in self.clients.items():
            client.push(self.parting_message)
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
            except OSError as error:  # no descriptors or no memory
                log.warning("%s: new clients must wait: %s", self.name, error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_ACCEPT_RETRY_S, self._listen)
                return
            self._admit(link, address)

    def _admit(self, link: socket.socket, address: Any) -> None:  # noqa: ANN401 - by its family
        """Serve the client, or send it the reason why it has no place."""
        with contextlib.suppress(OSError):
            link.setblocking(False)
            peer = peer_of(link) if link.family == socket.AF_UNIX else Peer(address=address[0])
            trusted = self.trusts(peer)
            refusal = self.refusal(peer)
            if not refusal and self._has_room(peer.uid, trusted=trusted):
                client = ServerClient(link, peer, self.bounds.max_line_bytes, trusted=trusted)
                if self.bounds.per_user and not trusted:
                    client.user = self._users.cached(peer.uid)
                self.clients[client] = task = self._loop.create_task(self._attend(client))
                task.add_done_callback(lambda _: self._remove(client))
                client.receive()  # a client that has asked cannot lose its place to a newer one
                return
            link.send(refusal or self.busy_message)
        link.close()

    def _has_room(self, uid: int, *, trusted: bool) -> bool:
        bounds = self.bounds
        if trusted:
            return len(self.clients) < bounds.max_clients + bounds.reserved_places
        untrusted = [client for client in self.clients if not client.trusted]
        if bounds.per_user and self._places_of(uid, self._users.cached(uid)) >= bounds.per_user:
            return False
        return len(untrusted) < bounds.max_clients or self._send_silent_away(untrusted)

    def _places_of(self, uid: int, user: int | None) -> int:
        return sum(
            client.peer.uid == uid or (user is not None and client.user == user)
            for client in self.clients
            if not client.trusted
        )

    def _send_silent_away(self, clients: Iterable[ServerClient]) -> bool:
        """End the oldest connection that has not sent a request, or whose user has not been looked
        up: otherwise a user with a range of uids (subuid(5)) could take all places. Return whether
        there was such a connection.
        """
        for client in clients:
            client.receive()  # its request may have come just now
            if not client.has_request or client.user is None:
                self.clients.pop(client).cancel()
                return True
        return False

    async def _may_stay(self, client: ServerClient) -> bool:
        """Look the client's user up if necessary. Return whether the user has places left."""
        if client.user is not None:
            return True
        uid = client.peer.uid
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                client.user = await self._lookups.call(self._users.look_up, uid)
        except TimeoutError:  # a directory server is silent: the client must gain no places by that
            client.user = NO_ACCOUNT
        if self._places_of(uid, client.user) <= (self.bounds.per_user or self.bounds.max_clients):
            return True
        client.push(self.busy_message)
        return False

    async def _attend(self, client: ServerClient) -> None:
        try:
            if await self._may_stay(client):
                await self.attend(client)
        except OSError:  # the client is gone, or its request was too slow or too long
            pass
        except Exception:
            log.exception("%s: a client could not be served", self.name)

    def _remove(self, client: ServerClient) -> None:
        self.clients.pop(client, None)
        client.close()


class Hands:
    """Daemon threads, at most ``count``, for work that may block. No exit waits for them."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._busy = self._threads = 0

    async def call(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call the function in a thread of these. Return its result or raise its error."""
        done: Future[T] = Future()
        # Work in the queue is always done, even if its caller is cancelled.
        done.set_running_or_notify_cancel()

        def work() -> None:
            try:
                done.set_result(function(*args, **named))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                done.set_exception(error)
            except BaseException as error:
                # As an ordinary error, because a SystemExit would end the server's loop.
                log.exception("%s: a library tried to end the thread", self._name)
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
        """Let the threads end after the work that they have begun."""
        for _ in range(self._threads):
            self._work.put(None)


class Resting(selectors.DefaultSelector):
    """A selector that sleeps ``rest`` times the processor time of each round of its loop. So
    clients that connect or send without pause get a share of one processor and not all of it.
    """

    def __init__(self, rest_factor: float) -> None:
        super().__init__()
        self._rest_factor, self._rest_owed_s = rest_factor, 0.0
        self._round_began_at: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events as any selector does. The loop calls this once in each round."""
        if self._rest_factor and self._round_began_at is not None:
            self._rest_owed_s += self._rest_factor * (time.thread_time() - self._round_began_at)
            if self._rest_owed_s > _MIN_REST_S:  # shorter sleeps cost more than they save
                time.sleep(min(self._rest_owed_s, _MAX_REST_S))
                self._rest_owed_s = 0.0
        events = super().select(timeout)
        self._round_began_at = time.thread_time()
        return events
