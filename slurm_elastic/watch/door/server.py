"""The read door's socket: a few threads for any number of users, none of whom holds up another.

One thread has all the connections, with a time limit and a size limit for each, and so many of one
user and of all at once; it looks who asks before it reads a byte. Each of the others answers one
lane of questions, those of one user after the other's, operators' first. All rest in between, so
that no number of questions takes the daemon's processor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.controller.notify_socket import bind_socket, remove_socket
from slurm_elastic.watch.door.answers import Peer, refused
from slurm_elastic.watch.door.asks import Lane, lane_of

log = logging.getLogger(__name__)

MAX_REQUEST = 64 << 10
_BACKLOG = 256
_TICK = 0.5
_PIECE = 256 << 10
_SO_PEERGROUPS = 59
"""asm-generic/socket.h; Python has no name for it, and takes 256 groups at most."""
_BUSY = refused("slurm-elasticd answers as many as it can at once; ask again in a moment")
_BROKEN = refused("slurm-elasticd could not answer this; its log says why")


class Bounds(Struct, frozen=True, kw_only=True):
    """``clients`` at once, of them ``each`` of one user; who is trusted has ``kept`` more.
    ``held``: bytes of answers that are not taken yet, of which one user has half.

    Seconds: for the request, until its answer, and for taking that. ``rest``: times what an answer,
    or a round with the connections, took; ``flood``: a pause when somebody was turned away.
    """

    clients: int = 64
    each: int = 4
    kept: int = 8
    held: int = 128 << 20
    request: float = 5.0
    answer: float = 30.0
    taking: float = 20.0
    rest: float = 3.0
    flood: float = 0.02


class _Client:
    """A connection. ``asked``: its request is read; ``rest`` of its answer is to be sent."""

    __slots__ = ("asked", "buffer", "id", "link", "peer", "rest", "trusted", "until")

    def __init__(
        self, link: socket.socket, number: int, peer: Peer, until: float, *, trusted: bool
    ) -> None:
        self.link, self.id, self.peer, self.until = link, number, peer, until
        self.trusted = trusted
        self.buffer = b""
        self.asked = False
        self.rest = memoryview(b"")


class _Question(NamedTuple):
    client: int
    peer: Peer
    trusted: bool
    line: bytes


class Turns:
    """Questions that wait in a lane: one of each user in turn, of who is trusted before all.
    ``served``: the others of the user who was answered last; whoever comes meanwhile is before.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Question]] = {}
        self._served: dict[int, deque[_Question]] = {}

    def add(self, one: _Question) -> None:
        """It comes after its user's others."""
        users = self._served if one.peer.uid in self._served else self._waiting
        users.setdefault(one.peer.uid, deque()).append(one)

    def withdraw(self, uid: int, client: int) -> None:
        """Its answer is not waited for any more."""
        for users in (self._waiting, self._served):
            if uid in users:  # and stays in its place among the users
                users[uid] = deque(one for one in users[uid] if one.client != client)
        if not self._waiting.get(uid, True):
            del self._waiting[uid]

    def take(self) -> _Question | None:
        """The next one."""
        self._waiting |= {uid: mine for uid, mine in self._served.items() if mine}
        self._served = {}
        users = [uid for uid, mine in self._waiting.items() if mine[0].trusted] or self._waiting
        for uid in users:
            mine = self._waiting.pop(uid)
            self._served = {uid: mine}
            return mine.popleft()
        return None


class Door:
    """Serves ``answer`` at ``path``. Whatever happens here, the daemon goes on. ``trusts``: who has
    places of their own and is answered first; it may not wait.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[Peer, bytes], bytes],
        trusts: Callable[[Peer], bool],
        bounds: Bounds | None = None,
    ) -> None:
        self._path, self._answer, self._trusts = path, answer, trusts
        self._bounds = bounds or Bounds()
        self._clients: dict[int, _Client] = {}
        self._count = 0
        # Shared by the threads, under the condition.
        self._changed = threading.Condition()
        self._asked = {lane: Turns() for lane in Lane}
        self._answered: deque[tuple[int, bytes]] = deque()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._trouble = ""

    def start(self) -> None:
        """Listen until ``close`` (OSError where the socket cannot be made)."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Whoever may come is asked for by the kernel (SO_PEERCRED), not by the mode.
            bind_socket(self._listener, self._path, mode=0o666, backlog=_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._inode = os.stat(self._path).st_ino
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._threads.append(threading.Thread(target=self._serve, name="door", daemon=True))
        for lane in Lane:
            thread = threading.Thread(
                target=self._work, args=(lane,), name=f"door-{lane}", daemon=True
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening; an answer that is being made is not waited for."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._threads:
            self._ring()
            self._threads[0].join(10)
            until = time.monotonic() + 1
            for thread in self._threads[1:]:
                thread.join(max(until - time.monotonic(), 0))

    # The thread that has the sockets.

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                before = time.thread_time()
                try:
                    self._round()
                    self._closing.wait(min(self._bounds.rest * (time.thread_time() - before), 0.5))
                except Exception:
                    log.exception("a round of the read door failed, it goes on")
                    self._closing.wait(1.0)
        finally:
            remove_socket(self._path, self._inode)
            for client in list(self._clients.values()):
                self._drop(client)
            self._selector.close()
            self._listener.close()

    def _round(self) -> None:
        for key, _ in self._selector.select(_TICK):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Client):
                self._attend(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
        self._hand_out()
        now = time.monotonic()
        for client in list(self._clients.values()):
            if now > client.until and client.asked and not client.rest:
                self._withdraw(client)
                self._give(client, _BUSY)
            elif now > client.until:
                self._drop(client)

    def _accept(self) -> None:
        """As many as fit; who is one too many gets a sentence and no place."""
        turned_away = False
        for _ in range(_BACKLOG):
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                break
            except OSError as error:  # out of descriptors or memory
                log.warning("cannot accept a user at the read door: %s", error)
                self._closing.wait(1.0)
                return
            turned_away |= not self._let_in(link)
        if turned_away:
            self._closing.wait(self._bounds.flood)

    def _let_in(self, link: socket.socket) -> bool:
        try:
            link.setblocking(False)
            peer = peer_of(link)
            trusted = self._trusts(peer)
            if self._has_room(peer.uid, trusted=trusted):
                self._count += 1
                until = time.monotonic() + self._bounds.request
                client = _Client(link, self._count, peer, until, trusted=trusted)
                self._selector.register(link, selectors.EVENT_READ, client)
                self._clients[client.id] = client
                self._attend(client)  # once it has asked, its place is its own
                return True
            link.send(_BUSY)
        except OSError:
            pass
        link.close()
        return False

    def _has_room(self, uid: int, *, trusted: bool) -> bool:
        bounds = self._bounds
        if trusted:
            return len(self._clients) < bounds.clients + bounds.kept
        others = [client for client in self._clients.values() if not client.trusted]
        if sum(client.peer.uid == uid for client in others) >= bounds.each:
            return False
        if len(others) < bounds.clients:
            return True
        return self._send_silent_away([client for client in others if not client.asked])

    def _send_silent_away(self, silent: Iterable[_Client]) -> bool:
        """Who has a range of uids (subuid(5)) could take all places and ask nothing: the oldest of
        such gives room, whether or not there was one.
        """
        for client in silent:
            self._attend(client)  # its question may have come just now
            if not client.asked:
                self._drop(client)
                return True
        return False

    def _attend(self, client: _Client) -> None:
        if client.id not in self._clients:
            return
        if client.rest:
            self._send(client)
            return
        try:
            part = client.link.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        client.buffer += part
        # One line and no more: who goes on talking is not waiting for an answer.
        if not part or client.asked or len(client.buffer) > MAX_REQUEST:
            self._drop(client)
        elif b"\n" in client.buffer:
            line = client.buffer.partition(b"\n")[0]
            client.asked = True
            client.until = time.monotonic() + self._bounds.answer
            lane = lane_of(line, trusted=client.trusted)
            with self._changed:
                question = _Question(client.id, client.peer, client.trusted, line)
                self._asked[lane].add(question)
                self._changed.notify_all()

    def _hand_out(self) -> None:
        while True:
            with self._changed:
                if not self._answered:
                    return
                number, document = self._answered.popleft()
            client = self._clients.get(number)
            if client is not None and not client.rest:  # else it has waited for too long
                self._give(client, document if self._may_hold(client) else _BUSY)

    def _may_hold(self, client: _Client) -> bool:
        held = [(one.peer.uid, len(one.rest)) for one in self._clients.values()]
        mine = sum(size for uid, size in held if uid == client.peer.uid)
        most = self._bounds.held
        return mine <= most // 2 and sum(size for _, size in held) <= most

    def _withdraw(self, client: _Client) -> None:
        with self._changed:
            for turns in self._asked.values():
                turns.withdraw(client.peer.uid, client.id)

    def _give(self, client: _Client, document: bytes) -> None:
        client.rest = memoryview(document)
        client.until = time.monotonic() + self._bounds.taking
        self._selector.modify(client.link, selectors.EVENT_WRITE, client)
        self._send(client)

    def _send(self, client: _Client) -> None:
        try:
            sent = client.link.send(client.rest[:_PIECE])
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.rest = client.rest[sent:]
        if not client.rest:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.id, None) is not None:
            self._withdraw(client)
            self._selector.unregister(client.link)
            client.link.close()

    # The threads that answer.

    def _work(self, lane: Lane) -> None:
        while not self._closing.is_set():
            with self._changed:
                one = self._asked[lane].take()
                if one is None:
                    self._changed.wait(_TICK)
                    continue
            client = self._clients.get(one.client)
            if client is None or client.rest:  # gone, or told to come again
                continue
            began = time.monotonic()
            try:
                document = self._answer(one.peer, one.line)
            except Exception as error:
                document = _BROKEN
                if repr(error) != self._trouble:  # users may ask the same again and again
                    log.exception("no answer at the read door uid=%d", one.peer.uid)
                self._trouble = repr(error)
            with self._changed:
                self._answered.append((one.client, document))
            self._ring()
            self._closing.wait(min(self._bounds.rest * (time.monotonic() - began), 2.0))

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)


def peer_of(link: socket.socket) -> Peer:
    """Who is at the other end, with all groups, as it was when it connected (unix(7))."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", raw)
    groups: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        raw = link.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
        groups = struct.unpack(f"{len(raw) // 4}I", raw)
    return Peer(uid=uid, groups=frozenset((gid, *groups)))
