"""Where the prologs of starting jobs wait: one unix stream socket, one watch of Slurm for all.

slurmctld runs one PrologSlurmctld for each starting job. Each connects and sends one JSON line
``{"job": 7, "nodes": "pub[1-2]", "partition": "cloud"}``; it gets a line ``.`` every few seconds as
a sign of life, and at last ``go REASON`` (``policies.repair.prolog_release``). However many
wait, Slurm is read by two commands a round, and not at all when nobody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.base.server import Bounds, Client, Server
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.prolog_release import ready_reason

log = logging.getLogger(__name__)

MAX_LINE = 4 << 20
"""Bytes of a hello: 5000 scattered nodes are about 60 KiB."""
_END = "the daemon stops"
_TICK = 1.0
_DESCRIPTORS = 16384


class PrologTimes(Struct, frozen=True, kw_only=True):
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


class QueueWatch:
    """Reads Slurm for all waiters at once, and says who may go. Not for two threads."""

    def __init__(self, slurm: Slurm, patience: PrologTimes) -> None:
        self._slurm = slurm
        self._patience = patience
        self._jobs: dict[int, SlurmJob] = {}
        self._jobs_read = float("-inf")
        self._jobs_cost = 0.0
        self.pause = patience.poll

    def round(self, waiters: Sequence[Waiter], *, queue: bool = False) -> list[tuple[Waiter, str]]:
        """One reading (SlurmError where it fails); ``queue`` asks for a fresh job queue."""
        began = time.monotonic()
        # Set before anything can fail: a slurmctld that does not answer is asked at the slow pace.
        self.pause = self._patience.slow_poll
        if queue or self._queue_is_due(waiters, began):
            self._read_queue()
        names = sorted({name for waiter in waiters for name in waiter.nodes})
        nodes = self._slurm.nodes(names)
        self.pause = self._next_pause(waiters, began)
        verdicts = (
            (waiter, ready_reason(self._jobs.get(waiter.job), nodes, waiter.nodes))
            for waiter in waiters
            # The job of one that came later may not have been in the queue that was read.
            if waiter.since < self._jobs_read
        )
        return [(waiter, reason) for waiter, reason in verdicts if reason is not None]

    def _queue_is_due(self, waiters: Sequence[Waiter], now: float) -> bool:
        """Whether it is old, or older than someone's coming."""
        newcomer = any(waiter.since >= self._jobs_read for waiter in waiters)
        # All jobs are loaded, whichever are asked for, which takes seconds for many thousands:
        # squeue gets a twentieth of the time, a third if someone is new.
        return now - self._jobs_read >= self._jobs_cost * (2 if newcomer else 20)

    def _read_queue(self) -> None:
        began = time.monotonic()
        self._jobs = {job.id: job for job in self._slurm.jobs()}
        # When it began: a job that has come since may not be in it.
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


class PrologServer(Server):
    """Lets waiting prologs go when their nodes are up, or when there is no use in waiting, until
    ``stop`` is set or ``close`` is called.
    """

    parting = f"go {_END}\n".encode()

    def __init__(
        self, path: Path, slurm: Slurm, stop: threading.Event, patience: PrologTimes | None = None
    ) -> None:
        bounds = Bounds(clients=_DESCRIPTORS, line=MAX_LINE, backlog=4096)
        super().__init__("prolog", path, bounds)
        self._stop = stop
        self._patience = patience or PrologTimes()
        self._watch = QueueWatch(slurm, self._patience)
        self._count = itertools.count(1)
        self._waiting: dict[int, tuple[Waiter, asyncio.Future[str]]] = {}
        self._news = asyncio.Event()
        self._queue_wanted = False
        self._last_read = time.monotonic()
        self._note_start: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Listen (OSError where that fails)."""
        _allow_many_descriptors()
        super().start()

    def waiting(self) -> tuple[int, ...]:
        """The jobs that wait now."""
        return tuple(sorted(waiter.job for waiter, _ in list(self._waiting.values())))

    def join(self, site: Site) -> Extensions:
        """Hear of the ends of jobs, and tell of their starts."""
        self._note_start = lambda: site.job_starts.note(site.monotonic())
        return Extensions(on_job_end=[self.nudge])

    def nudge(self) -> None:
        """Read Slurm's job queue soon: something happened to a job (an epilog said so)."""
        self.call(self._want_queue)

    def fail(self) -> None:
        """Prologs would wait in vain: the service is to start anew."""
        super().fail()
        self._stop.set()

    async def attend(self, client: Client) -> None:
        """It says hello, and is told in the end why it may go."""
        line = await client.line(self._patience.hello)
        try:
            hello = msgspec.json.decode(line, type=_Hello)
            nodes = tuple(expand(hello.nodes))
        except (msgspec.DecodeError, HostlistError, UnicodeDecodeError, RecursionError) as error:
            log.warning("prolog turned away reason=%s line=%r", error, line[:200])
            return
        number, now = next(self._count), time.monotonic()
        waiter = Waiter(id=number, job=hello.job, nodes=nodes, since=now)
        released: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            # While nobody waited Slurm was not read: that silence is no failure.
            self._last_read = now
        self._waiting[number] = waiter, released
        self._news.set()
        try:
            reason = await client.meanwhile(released)
        except asyncio.CancelledError:
            _tell(waiter, _END)
            raise
        finally:
            del self._waiting[number]
        _tell(waiter, reason)
        self._note_start()
        client.push(f"go {reason}\n".encode())

    async def beside(self) -> None:
        """Give signs of life, which do not depend on how quickly Slurm answers, and read it."""
        reading = asyncio.get_running_loop().create_task(self._read())
        patience, signed = self._patience, time.monotonic()
        while not self._stop.is_set():
            await asyncio.wait({reading}, timeout=min(_TICK, patience.sign))
            if reading.done():
                reading.result()
            now = time.monotonic()
            self._release(unreadable(self._waiters(), self._last_read, patience, now))
            if now - signed >= patience.sign:
                signed = now
                for client in self.clients:
                    client.push(b".\n")

    async def _read(self) -> None:
        hands = self.hands("prolog-read")
        while True:
            self._news.clear()
            if not self._waiting:
                await self._news.wait()
            waiters = self._waiters()
            queue, self._queue_wanted = self._queue_wanted, False
            try:
                verdicts = await hands.do(self._watch.round, waiters, queue=queue)
            except SlurmError as error:
                log.warning("Slurm cannot be read waiting=%d reason=%s", len(waiters), error)
            except Exception:
                # Whatever it is, those who wait must be let go in the end, as unreadable.
                log.exception("watching for prologs failed waiting=%d", len(waiters))
            else:
                self._last_read = time.monotonic()
                self._release(verdicts)
            await self._rest({waiter.id for waiter in waiters})

    async def _rest(self, seen: set[int]) -> None:
        """Until the next round; a newcomer shortens it to the quickest pace."""
        began = time.monotonic()
        until = began + self._watch.pause
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
            self._news.clear()
            if self._queue_wanted or self._waiting.keys() - seen:
                until = min(until, began + self._patience.poll)

    def _waiters(self) -> list[Waiter]:
        return [waiter for waiter, _ in self._waiting.values()]

    def _want_queue(self) -> None:
        self._queue_wanted = True
        self._news.set()

    def _release(self, verdicts: Iterable[tuple[Waiter, str]]) -> None:
        for waiter, reason in verdicts:
            if waiter.id in self._waiting and not self._waiting[waiter.id][1].done():
                self._waiting[waiter.id][1].set_result(reason)


def unreadable(
    waiters: Iterable[Waiter], read: float, patience: PrologTimes, now: float
) -> list[tuple[Waiter, str]]:
    """Whom nothing is gained by waiting for longer, where Slurm was ``read`` too long ago."""
    if now - read <= patience.unreadable:
        return []
    old = [waiter for waiter in waiters if now - waiter.since > patience.sign]
    return [(waiter, "Slurm cannot be read") for waiter in old]


def _tell(waiter: Waiter, reason: str) -> None:
    waited = time.monotonic() - waiter.since
    log.info("prolog let go job=%d waited=%.2f reason=%s", waiter.job, waited, reason)


def _allow_many_descriptors() -> None:
    """Hundreds of jobs may start at once, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if resource.RLIM_INFINITY != soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
