"""The server at which prologs of starting jobs wait: one unix stream socket, one reader of Slurm.

slurmctld runs one PrologSlurmctld for each starting job. Each prolog connects and sends one JSON
line ``{"job": 7, "nodes": "pub[1-2]", "partition": "cloud"}``. It gets a line ``.`` every few
seconds as a sign of life, and finally ``go REASON`` (``policies.repair.prolog_release``). Each
round reads Slurm with two commands, independently of the number of prologs. While no prolog waits,
Slurm is not read.
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
from slurm_elastic.base.processes.periodic import rest_after
from slurm_elastic.base.processes.server import Server, ServerBounds, ServerClient
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.repair.prolog_release import ready_reason

log = logging.getLogger(__name__)

MAX_LINE = 4 << 20
"""Limit of a prolog's line (bytes). 5000 scattered nodes need about 60 KiB."""
_STOP_REASON = "the daemon stops"
_TICK_S = 1.0
_MAX_DESCRIPTORS = 16384


class PrologTimes(Struct, frozen=True, kw_only=True):
    """All times are in seconds.

    ``poll``, ``slow_poll``: the shortest and the longest time between two readings of Slurm.
    ``sign``: the time between two signs of life. ``hello``: time-out for a client's first line.
    ``unreadable``: when Slurm has not answered for this long, all prologs are released.
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
    """Reads Slurm for all waiters at once, and decides which may go. Not thread-safe."""

    def __init__(self, slurm: Slurm, times: PrologTimes) -> None:
        self._slurm = slurm
        self._times = times
        self._jobs: dict[int, SlurmJob] = {}
        self._jobs_read = float("-inf")
        self._jobs_cost = 0.0
        self.pause = times.poll

    def round(self, waiters: Sequence[Waiter], *, queue: bool = False) -> list[tuple[Waiter, str]]:
        """Read Slurm once. Return the waiters that may go, each with the reason. ``queue``: read
        the job queue even if the last reading is recent. SlurmError if Slurm cannot be read.
        """
        began = time.monotonic()
        # Set the slow pace before anything can fail, so that a slurmctld that does not answer is
        # polled slowly.
        self.pause = self._times.slow_poll
        if queue or self._queue_is_due(waiters, began):
            self._read_queue()
        names = sorted({name for waiter in waiters for name in waiter.nodes})
        nodes = self._slurm.nodes(names)
        self.pause = self._next_pause(waiters, began)
        verdicts = (
            (waiter, ready_reason(self._jobs.get(waiter.job), nodes, waiter.nodes))
            for waiter in waiters
            # A waiter that came after this reading of the queue may have a job missing in it. Its
            # absence would look as if the job had ended.
            if waiter.since < self._jobs_read
        )
        return [(waiter, reason) for waiter, reason in verdicts if reason is not None]

    def _queue_is_due(self, waiters: Sequence[Waiter], now: float) -> bool:
        """Whether the last reading of the queue is too old, also because a waiter came after it."""
        newcomer = any(waiter.since >= self._jobs_read for waiter in waiters)
        # squeue loads all jobs, even if only some are asked for. With many thousands this takes
        # seconds. It therefore gets at most a twentieth of the time, or a third if there is a
        # newcomer.
        return now - self._jobs_read >= rest_after(self._jobs_cost, 2 if newcomer else 20)

    def _read_queue(self) -> None:
        began = time.monotonic()
        self._jobs = {job.id: job for job in self._slurm.jobs()}
        # Use the begin of the reading: a job that came during it may be missing.
        self._jobs_read = began
        self._jobs_cost = time.monotonic() - began

    def _next_pause(self, waiters: Sequence[Waiter], began: float) -> float:
        """Return the larger of twice the round's duration and a fortieth of the newest waiter's
        waiting time, within ``poll`` and ``slow_poll``.

        Thus reading takes at most a third of slurmctld's and our time. The end of a boot of one
        minute is noticed at most a second late, and that of a boot of a few seconds at once.
        """
        now = time.monotonic()
        newest = max((waiter.since for waiter in waiters), default=now)
        wanted_pause = max(2 * (now - began), (now - newest) / 40)
        return min(max(wanted_pause, self._times.poll), self._times.slow_poll)


class PrologServer(Server):
    """Releases each waiting prolog when its nodes are up, or when waiting is useless. Runs until
    ``stop`` is set or ``close`` is called.
    """

    parting_message = f"go {_STOP_REASON}\n".encode()

    def __init__(
        self, path: Path, slurm: Slurm, stop: threading.Event, times: PrologTimes | None = None
    ) -> None:
        bounds = ServerBounds(max_clients=_MAX_DESCRIPTORS, max_line_bytes=MAX_LINE, backlog=4096)
        super().__init__("prolog", path, bounds)
        self._stop = stop
        self._times = times or PrologTimes()
        self._watch = QueueWatch(slurm, self._times)
        self._count = itertools.count(1)
        self._waiting: dict[int, tuple[Waiter, asyncio.Future[str]]] = {}
        self._changed = asyncio.Event()
        self._queue_wanted = False
        self._last_read = time.monotonic()
        self._note_start: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start listening. OSError if that fails."""
        _allow_many_descriptors()
        super().start()

    def waiting(self) -> tuple[int, ...]:
        """The ids of the jobs whose prologs wait now."""
        return tuple(sorted(waiter.job for waiter, _ in list(self._waiting.values())))

    def join(self, site: Site) -> Extensions:
        """Connect to the daemon: note the starts of jobs, and react to their ends."""
        self._note_start = lambda: site.job_starts.note(site.monotonic())
        return Extensions(on_job_end=[self.nudge])

    def nudge(self) -> None:
        """Read Slurm's job queue soon, because an epilog reported the end of a job."""
        self.call(self._want_queue)

    def fail(self) -> None:
        """Stop the service so that it restarts. Prologs would otherwise wait in vain."""
        super().fail()
        self._stop.set()

    async def attend(self, client: ServerClient) -> None:
        """Serve one prolog: read its line, wait for its release, send the reason."""
        line = await client.read_line(self._times.hello)
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
            # Slurm was not read while no prolog waited. Count its silence from now on.
            self._last_read = now
        self._waiting[number] = waiter, released
        self._changed.set()
        try:
            reason = await client.wait_for(released)
        except asyncio.CancelledError:
            _log_release(waiter, _STOP_REASON)
            raise
        finally:
            del self._waiting[number]
        _log_release(waiter, reason)
        self._note_start()
        client.push(f"go {reason}\n".encode())

    async def run_beside(self) -> None:
        """Read Slurm in a task of its own, and send signs of life however slowly Slurm answers."""
        reading = asyncio.get_running_loop().create_task(self._read())
        times, signed = self._times, time.monotonic()
        while not self._stop.is_set():
            await asyncio.wait({reading}, timeout=min(_TICK_S, times.sign))
            if reading.done():
                reading.result()
            now = time.monotonic()
            self._release(unreadable(self._waiters(), self._last_read, times, now))
            if now - signed >= times.sign:
                signed = now
                for client in self.clients:
                    client.push(b".\n")

    async def _read(self) -> None:
        hands = self.start_threads("prolog-read")
        while True:
            self._changed.clear()
            if not self._waiting:
                await self._changed.wait()
            waiters = self._waiters()
            queue, self._queue_wanted = self._queue_wanted, False
            try:
                verdicts = await hands.call(self._watch.round, waiters, queue=queue)
            except SlurmError as error:
                log.warning("Slurm cannot be read waiting=%d reason=%s", len(waiters), error)
            except Exception:
                # After any error the loop must continue, so that the waiters are released later by
                # `unreadable`.
                log.exception("watching for prologs failed waiting=%d", len(waiters))
            else:
                self._last_read = time.monotonic()
                self._release(verdicts)
            await self._pause_until_next_round({waiter.id for waiter in waiters})

    async def _pause_until_next_round(self, read_ids: set[int]) -> None:
        """Sleep until the next round. A newcomer shortens the pause to ``poll``."""
        began = time.monotonic()
        until = began + self._watch.pause
        while (remaining_s := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), remaining_s)
            self._changed.clear()
            if self._queue_wanted or self._waiting.keys() - read_ids:
                until = min(until, began + self._times.poll)

    def _waiters(self) -> list[Waiter]:
        return [waiter for waiter, _ in self._waiting.values()]

    def _want_queue(self) -> None:
        self._queue_wanted = True
        self._changed.set()

    def _release(self, verdicts: Iterable[tuple[Waiter, str]]) -> None:
        for waiter, reason in verdicts:
            if waiter.id in self._waiting and not self._waiting[waiter.id][1].done():
                self._waiting[waiter.id][1].set_result(reason)


def unreadable(
    waiters: Iterable[Waiter], read: float, times: PrologTimes, now: float
) -> list[tuple[Waiter, str]]:
    """Return the waiters to release because the last reading of Slurm (at ``read``, monotonic) is
    too old. A waiter that came less than ``sign`` seconds ago is not among them.
    """
    if now - read <= times.unreadable:
        return []
    old = [waiter for waiter in waiters if now - waiter.since > times.sign]
    return [(waiter, "Slurm cannot be read") for waiter in old]


def _log_release(waiter: Waiter, reason: str) -> None:
    waited = time.monotonic() - waiter.since
    log.info("prolog released job=%d waited=%.2f reason=%s", waiter.job, waited, reason)


def _allow_many_descriptors() -> None:
    """Raise the soft limit of open files. Hundreds of jobs may start at once, each with a
    connection, and the usual limit is 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_soft = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if resource.RLIM_INFINITY != soft < new_soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft, hard))
