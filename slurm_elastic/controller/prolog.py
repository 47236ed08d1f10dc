"""Where the prologs of starting jobs wait: one unix stream socket, one watch of Slurm for all.

slurmctld runs one PrologSlurmctld for each starting job. Each connects to ``prolog.sock`` and sends
one JSON line ``{"job": 7, "nodes": "pub[1-2]", "partition": "cloud"}``; it gets a line ``.`` every
few seconds as a sign of life, and at last ``go REASON``. However many wait, Slurm is read by two
commands a round, and not at all when nobody waits.

Two threads: one has all the sockets, so that its signs of life do not depend on how quickly Slurm
answers; the other reads Slurm and decides (``policies.repair.prolog_release``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.controller.notify_socket import bind_socket, remove_socket
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.prolog_release import ready_reason

log = logging.getLogger(__name__)

MAX_LINE = 4 << 20
"""Bytes of a hello: 5000 scattered nodes are about 60 KiB."""
_TICK = 1.0
_DESCRIPTORS = 16384


class Patience(Struct, frozen=True, kw_only=True):
    """Seconds, all of them.

    ``poll`` to ``slow_poll`` is the time between two readings of Slurm, ``sign`` between two signs
    of life. ``hello`` is how long a client may take to say who it is; after ``unreadable`` without
    an answer of Slurm's everyone is let go.
    """

    poll: float = 0.25
    slow_poll: float = 1.0
    sign: float = 5.0
    hello: float = 10.0
    unreadable: float = 30.0


class Waiter(Struct, frozen=True, kw_only=True):
    """A prolog that waits; ``since`` is the monotonic time at which its hello was read."""

    id: int
    job: int
    nodes: tuple[str, ...]
    since: float


class _Hello(Struct, frozen=True, kw_only=True):
    job: int
    nodes: str
    partition: str = ""


class Watch:
    """Reads Slurm for all waiters at once, and says who may go. Not for two threads."""

    def __init__(self, slurm: Slurm, patience: Patience) -> None:
        self._slurm = slurm
        self._patience = patience
        self._jobs: dict[int, SlurmJob] = {}
        self._jobs_read = float("-inf")
        self._jobs_cost = 0.0
        self.pause = patience.poll

    def round(self, waiters: Sequence[Waiter], *, queue: bool = False) -> list[tuple[Waiter, str]]:
        """One reading (SlurmError where it fails); ``queue`` asks for a fresh job queue.

        A waiter that came after the queue was read is left for the next round: its job may not
        have been there yet.
        """
        began = time.monotonic()
        self.pause = self._patience.slow_poll
        if queue or self._queue_is_due(waiters, began):
            self._read_queue()
        names = sorted({name for waiter in waiters for name in waiter.nodes})
        nodes = self._slurm.nodes(names)
        self.pause = self._next_pause(waiters, began)
        verdicts = (
            (waiter, ready_reason(self._jobs.get(waiter.job), nodes, waiter.nodes))
            for waiter in waiters
            if waiter.since < self._jobs_read
        )
        return [(waiter, reason) for waiter, reason in verdicts if reason is not None]

    def _queue_is_due(self, waiters: Sequence[Waiter], now: float) -> bool:
        """Whether it is old, or older than someone's coming.

        squeue loads all jobs, whichever are asked for, and a queue of many thousands takes seconds:
        it gets a twentieth of the time, a third if someone is new.
        """
        newcomer = any(waiter.since >= self._jobs_read for waiter in waiters)
        return now - self._jobs_read >= self._jobs_cost * (2 if newcomer else 20)

    def _read_queue(self) -> None:
        began = time.monotonic()
        self._jobs = {job.id: job for job in self._slurm.jobs()}
        self._jobs_read = began
        self._jobs_cost = time.monotonic() - began

    def _next_pause(self, waiters: Sequence[Waiter], began: float) -> float:
        """Twice what the round took, and a fortieth of how long the newest has waited.

        So the reading takes at most a third of slurmctld's and our time, and a boot of a minute
        ends at most a second late while one of some seconds ends at once.
        """
        now = time.monotonic()
        newest = max((waiter.since for waiter in waiters), default=now)
        wanted = max(2 * (now - began), (now - newest) / 40)
        return min(max(wanted, self._patience.poll), self._patience.slow_poll)


class _Client:
    """A connection; ``waiter`` is None until its hello is read."""

    __slots__ = ("buffer", "connected", "id", "link", "waiter")

    def __init__(self, link: socket.socket, number: int, now: float) -> None:
        self.link = link
        self.id = number
        self.connected = now
        self.buffer = b""
        self.waiter: Waiter | None = None


class PrologServer:
    """Lets waiting prologs go when their nodes are up, or when there is no use in waiting."""

    def __init__(self, path: Path, slurm: Slurm, patience: Patience | None = None) -> None:
        self._path = path
        self._patience = patience or Patience()
        self._watch = Watch(slurm, self._patience)
        self._clients: dict[int, _Client] = {}
        self._count = 0
        # Shared by the two threads, under the condition.
        self._changed = threading.Condition()
        self._waiting: dict[int, Waiter] = {}
        self._queue_wanted = False
        self._released: deque[tuple[int, str]] = deque()
        self._last_read = time.monotonic()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failed = False  # a thread has ended by an error, and has set ``stop``

    def start(self, stop: threading.Event) -> None:
        """Listen (OSError where that fails) until ``stop`` is set or ``close`` is called."""
        _allow_many_descriptors()
        self._stop = stop
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bind_socket(self._listener, self._path, backlog=4096)
        except OSError:
            self._listener.close()
            raise
        self._inode = os.stat(self._path).st_ino
        self._bell_in, self._bell_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (self._listener, self._bell_in, self._bell_out):
            sock.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._bell_out, selectors.EVENT_READ)
        for target in (self._serve, self._observe):
            name = f"prolog-{target.__name__}"
            thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Let all go, and stop listening. Waits for the sockets, not for a slow Slurm."""
        self._closing.set()
        if self._threads:
            self._ring()
            self._threads[0].join(10)

    def waiting(self) -> tuple[int, ...]:
        """The jobs that wait now."""
        with self._changed:
            return tuple(sorted(waiter.job for waiter in self._waiting.values()))

    def nudge(self) -> None:
        """Read Slurm's job queue soon: something happened to a job (an epilog said so)."""
        with self._changed:
            self._queue_wanted = True
            self._changed.notify_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Without one of the threads prologs would wait in vain: the service is to start anew."""
        try:
            work()
        except Exception:
            log.exception("waiting prologs are served no more, the daemon stops")
            self.failed = True
            self._stop.set()

    # The thread that has the sockets.

    def _serve(self) -> None:
        try:
            self._attend_all()
        finally:
            self._finish()

    def _attend_all(self) -> None:
        next_sign = time.monotonic() + self._patience.sign
        while not self._ended():
            for key, _ in self._selector.select(min(_TICK, self._patience.sign)):
                self._attend(key)
            self._release()
            self._drop_stale(time.monotonic())
            if time.monotonic() >= next_sign:
                next_sign = time.monotonic() + self._patience.sign
                for client in list(self._clients.values()):
                    self._send(client, b".\n")

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fileobj is self._bell_out:
            with contextlib.suppress(BlockingIOError):
                self._bell_out.recv(4096)
        elif isinstance(key.data, _Client) and key.data.id in self._clients:
            self._read(key.data)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors or memory. The ones in the queue give up by themselves.
                log.warning("cannot accept a prolog reason=%s", error)
                self._closing.wait(0.1)
                return
            link.setblocking(False)
            self._count += 1
            client = _Client(link, self._count, time.monotonic())
            self._clients[client.id] = client
            self._selector.register(link, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> None:
        try:
            part = client.link.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        client.buffer += part
        if not part or len(client.buffer) > MAX_LINE:
            self._drop(client)
        elif client.waiter is None and b"\n" in client.buffer:
            self._greet(client)

    def _greet(self, client: _Client) -> None:
        line, _, client.buffer = client.buffer.partition(b"\n")
        try:
            hello = msgspec.json.decode(line, type=_Hello)
            nodes = tuple(expand(hello.nodes))
        except (msgspec.DecodeError, HostlistError, UnicodeDecodeError) as error:
            log.warning("prolog turned away reason=%s line=%r", error, line[:200])
            self._drop(client)
            return
        client.waiter = Waiter(id=client.id, job=hello.job, nodes=nodes, since=time.monotonic())
        with self._changed:
            if not self._waiting:
                self._last_read = client.waiter.since
            self._waiting[client.id] = client.waiter
            self._changed.notify_all()

    def _release(self) -> None:
        while self._released:
            number, reason = self._released.popleft()
            client = self._clients.get(number)
            if client is not None:
                self._let_go(client, reason)

    def _let_go(self, client: _Client, reason: str) -> None:
        if client.waiter is not None:
            waited = time.monotonic() - client.waiter.since
            log.info(
                "prolog let go job=%d waited=%.2f reason=%s", client.waiter.job, waited, reason
            )
        self._send(client, f"go {reason}\n".encode())
        self._drop(client)

    def _drop_stale(self, now: float) -> None:
        """The waiting prologs that never said who they are, and all if Slurm cannot be read."""
        unreadable = now - self._last_read > self._patience.unreadable
        for client in list(self._clients.values()):
            if client.waiter is None and now - client.connected > self._patience.hello:
                self._drop(client)
            elif client.waiter and unreadable and now - client.waiter.since > self._patience.sign:
                self._let_go(client, "Slurm cannot be read")

    def _send(self, client: _Client, data: bytes) -> None:
        """A client that is gone or does not read is dropped."""
        try:
            client.link.send(data)
        except OSError:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.id, None) is None:
            return
        with self._changed:
            self._waiting.pop(client.id, None)
        self._selector.unregister(client.link)
        client.link.close()

    def _finish(self) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        remove_socket(self._path, self._inode)
        self._accept()  # who is in the queue must not take a closed socket for a failure
        for client in list(self._clients.values()):
            self._let_go(client, "the daemon stops")
        self._selector.close()
        self._listener.close()
        self._bell_in.close()
        self._bell_out.close()

    # The thread that reads Slurm.

    def _observe(self) -> None:
        while not self._ended():
            with self._changed:
                waiters = list(self._waiting.values())
                queue, self._queue_wanted = self._queue_wanted, False
                if not waiters:
                    self._changed.wait(_TICK)
                    continue
            self._look(waiters, queue)
            self._pause({waiter.id for waiter in waiters})

    def _look(self, waiters: Sequence[Waiter], queue: bool) -> None:
        try:
            verdicts = self._watch.round(waiters, queue=queue)
        except SlurmError as error:
            log.warning("Slurm cannot be read waiting=%d reason=%s", len(waiters), error)
            return
        except Exception:
            # Whatever it is, those who wait must be let go in the end, which _drop_stale does.
            log.exception("watching for prologs failed waiting=%d", len(waiters))
            return
        self._last_read = time.monotonic()
        if verdicts:
            self._released.extend((waiter.id, reason) for waiter, reason in verdicts)
            self._ring()

    def _pause(self, seen: set[int]) -> None:
        """Wait for the next round; a newcomer shortens it to the quickest pace."""
        began = time.monotonic()
        until = began + self._watch.pause
        with self._changed:
            while not self._closing.is_set() and (left := until - time.monotonic()) > 0:
                if self._queue_wanted or self._waiting.keys() - seen:
                    until = min(until, began + self._patience.poll)
                    left = until - time.monotonic()
                self._changed.wait(left)

    def _ended(self) -> bool:
        return self._closing.is_set() or self._stop.is_set()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell_in.send(b"!")


def _allow_many_descriptors() -> None:
    """Hundreds of jobs may start at once, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if resource.RLIM_INFINITY != soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
