"""The part of slurm-elasticd that copies jobs' files: prologs and epilogs wait at its socket.

A client sends one JSON line, ``{"job": 7, "nodes": "pub[1-2]", "partition": "cloud", "phase":
"out", "remaining": 3660}``, or ``"back"``. ``remaining``: for how many seconds it waits. It gets a
line ``.`` every few seconds, and finally ``go`` or ``no REASON``. If the daemon restarts, the
client asks again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.base.processes.background import submit
from slurm_elastic.base.processes.server import Gone, Hands, Server, ServerBounds, ServerClient
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.files.copy_ages import CopyAges
from slurm_elastic.features.files.copying import (
    BACK_AT_ONCE,
    GO,
    OUT_AT_ONCE,
    Copies,
    CopyRequest,
    is_on_nodes,
)
from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.slurm.client.job_files import read_job_files
from slurm_elastic.state.ledger import LedgerState, Machine

log = logging.getLogger(__name__)

SOCKET = "copy.sock"
PERIOD_S = 5.0
"""Seconds between two looks at copies that no epilog waits for, and at nodes that may be lost."""
KEPT_S = 7 * 86400.0
"""How long the ledger keeps finished copies."""
_SIGN_S = 5.0
_HELLO_S = 10.0
_WAITING = 512
"""Prologs and epilogs that may wait at a time."""
_NOTES_AT_ONCE = 4
"""Threads that only write down what has happened to a job, so that no copy delays that."""
_ANSWER_S, _GRACE_S = 10.0, 5.0
"""A copy out ends _ANSWER_S seconds before its client's time is over. A job that still waits for a
thread _GRACE_S seconds later is refused.
"""
NO_TIME = (
    "there was no time left: too many jobs copy at once, or PrologEpilogTimeout of slurm.conf is"
    " too short for a boot and a copy"
)
_MAX_LINE = 4 << 20
RowKey = tuple[int, int, str]
"""A copy by job, restarts and node."""


class _Hello(Struct, frozen=True, kw_only=True):
    job: int
    nodes: str
    phase: str
    partition: str = ""
    remaining: float = math.inf


def join(site: Site) -> Extensions | None:
    """Join if files are copied to some cloud, or are still to come back from one. Nothing is copied
    without ``join.ssh``, but machines with files are kept as long as otherwise: the setting may
    return in time.
    """
    copying = any(cloud.data is Data.COPY for cloud in site.clouds.values())
    ssh = site.config.join.ssh
    is_open = bool(site.ledger.copies.open())
    if ssh is None and is_open:
        log.warning("join.ssh is missing, so files of jobs cannot come back from machines")
        return Extensions(find_unfinished=[Unfinished(site)])
    if ssh is None or not (copying or is_open):
        return None
    try:
        from slurm_elastic.features.files.copy_runner import CopyRunner
    except ModuleNotFoundError as error:
        raise ConfigError(f"data: copy: {missing_module(error, 'ssh')}") from error
    copies = Copies(site, CopyRunner(site.config, ssh), partial(read_job_files, site.slurm))
    unfinished = Unfinished(site)
    return Extensions(
        parts=[("copies", lambda worker: CopyPart(site, copies, unfinished, worker))],
        find_unfinished=[unfinished],
    )


class Unfinished:
    """Finds the machines that have files of ended runs, or may have them: files of a run that no
    look of the part has seen alive, for example because slurm-elasticd was away at its end.

    ``live_runs``: the runs (job, restarts) that the last look saw. No machine is kept for ever. If
    it may have files, it is kept for ``copy.back_within`` after its end was first wanted. If it has
    files, it is kept for twice that time, because the part gives files up after
    ``copy.back_within``. That time begins anew while another copy is busy in the same directory, so
    no machine is kept for more than ``copy.out_within`` beyond it: the busy process may be one that
    hangs, or a user's.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.live_runs: Collection[tuple[int, int]] = frozenset()
        # Monotonic s, by machine. If the clock is set, a machine must neither end with files on it,
        # nor be kept and paid for as long as the clock was set back.
        self._wanted_at: dict[str, float] = {}
        # A row of an impossible age keeps a machine no longer than others, as its end is wanted.
        bound_s = 2 * site.config.copy.back_within
        self._ages = CopyAges(site, bound_s, if_unknown_s=bound_s)

    def __call__(self, machines: Sequence[Machine]) -> Collection[Machine]:
        rows = [row for row in self._site.ledger.copies.open() if self._has_files(row)]
        holders = {row.machine for row in rows}
        self._wanted_at = {
            machine: wanted_at
            for machine, wanted_at in self._wanted_at.items()
            if machine in holders
        }
        for machine in machines:
            if machine.instance.id in holders:
                # The first time counts, or each round would prolong the wait.
                self._wanted_at.setdefault(machine.instance.id, self._site.monotonic())
        self._ages.forget_finished()
        kept = {row.machine for row in rows if self._is_in_time(row)}
        return [machine for machine in machines if machine.instance.id in kept]

    def _has_files(self, row: JobCopy) -> bool:
        if row.state is CopyState.THERE:
            return (row.job, row.restarts) not in self.live_runs
        return row.state is CopyState.OWED

    def _is_in_time(self, row: JobCopy) -> bool:
        limit = self._site.config.copy.back_within * (2 if row.state is CopyState.OWED else 1)
        now = self._site.monotonic()
        wanted_s = now - self._wanted_at.get(row.machine, now)
        most_s = limit + self._site.config.copy.out_within
        return min(wanted_s, self._ages.age_s(row)) < limit and wanted_s < most_s


class CopyServer(Server):
    """Serves waiting prologs and epilogs."""

    def __init__(self, site: Site, copies: Copies) -> None:
        bounds = ServerBounds(max_clients=_WAITING, max_line_bytes=_MAX_LINE, backlog=_WAITING)
        super().__init__("copies", site.config.state / SOCKET, bounds)
        self._copies, self._out_within = copies, site.config.copy.out_within
        self._out_workers = self.start_threads("copy-out", OUT_AT_ONCE)
        self._back_workers = self.start_threads("copy-back", BACK_AT_ONCE)
        self._note_workers = self.start_threads("copy-notes", _NOTES_AT_ONCE)

    async def attend(self, client: ServerClient) -> None:
        """Serve one client: read its line, copy, send the answer."""
        line = await client.read_line(_HELLO_S)
        try:
            hello = msgspec.json.decode(line, type=_Hello)
            nodes = tuple(expand(hello.nodes))
        except (msgspec.DecodeError, HostlistError, UnicodeDecodeError, RecursionError) as error:
            log.warning("client turned away reason=%s line=%r", error, line[:200])
            return
        with self._copies.claim(hello.job):
            if hello.phase == "back":
                reason = await self._serve_epilog(client, hello.job)
            else:
                reason = await self._serve_prolog(client, hello, nodes)
        # A line feed, as in the name of a directory, would begin another answer.
        text = " ".join(reason.split())
        client.push(b"go\n" if reason == GO else f"no {text}\n".encode())

    async def _serve_epilog(self, client: ServerClient, job: int) -> str:
        request = CopyRequest(job=job, nodes=(), back=True)
        await self._note_workers.call(self._copies.owe, job)
        # If the client leaves, the part's next look continues.
        return await client.wait_for(self._work_on(self._back_workers, request, threading.Event()))

    async def _serve_prolog(
        self, client: ServerClient, hello: _Hello, nodes: tuple[str, ...]
    ) -> str:
        # Our answer must come before Slurm kills the prolog, or the job is requeued without a
        # reason.
        copy_s = max(min(self._out_within, hello.remaining - _ANSWER_S), 0.0)
        until = time.monotonic() + copy_s
        request = CopyRequest(job=hello.job, nodes=nodes, back=False, until=until)
        if not copy_s:
            return await self._refuse(request)
        cancelled = threading.Event()
        work = self._work_on(self._out_workers, request, cancelled)
        try:
            return await client.wait_for(work, copy_s + _GRACE_S)
        except TimeoutError:
            return await self._refuse(request)
        except Gone:
            if time.monotonic() >= until:  # Slurm has killed it because its time was over
                await self._refuse(request)
            raise
        finally:
            cancelled.set()
            # Both: the task may not have begun, or its thread may be in the middle of a copy.
            work.cancel()

    def _work_on(
        self, workers: Hands, request: CopyRequest, cancelled: threading.Event
    ) -> asyncio.Task[str]:
        work = asyncio.get_running_loop().create_task(self._repeat(workers, request, cancelled))
        work.add_done_callback(_retrieve)
        return work

    async def _repeat(
        self, workers: Hands, request: CopyRequest, cancelled: threading.Event
    ) -> str:
        while (answer := await workers.call(self._copies.attempt, request, cancelled)) is None:
            await asyncio.sleep(self._copies.pause)
        return answer

    async def _refuse(self, request: CopyRequest) -> str:
        return await self._note_workers.call(self._copies.refuse, request, NO_TIME)

    async def run_beside(self) -> None:
        """Send signs of life."""
        while True:
            await asyncio.sleep(_SIGN_S)
            for client in self.clients:
                client.push(b".\n")


def _retrieve(work: asyncio.Future[str]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.error("a copy has failed: %r", error)


class OutputPulls:
    """Pulls the output of running jobs in ``OUT_AT_ONCE`` threads. No user has more than half of
    them: a user can make a pull take long. The next pulls of such a user wait for the user's own.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_due", "_running", "_threads")}

    def __init__(self, pull: Callable[[JobCopy], None]) -> None:
        self._pull = pull
        self._pool = ThreadPoolExecutor(OUT_AT_ONCE, thread_name_prefix="outputs")
        self._lock = threading.Lock()
        self._due: dict[int, dict[RowKey, JobCopy]] = {}
        self._running: set[RowKey] = set()
        self._threads = Counter[int]()

    def add(self, row: JobCopy) -> None:
        """Pull this output as soon as the user has a thread, unless it is being pulled."""
        with self._lock:
            if _key(row) in self._running:
                return
            self._due.setdefault(row.uid, {})[_key(row)] = row
            if self._threads[row.uid] >= OUT_AT_ONCE // 2:
                return
            self._threads[row.uid] += 1
        submit(self._pool, f"outputs of uid {row.uid}", self._pull_all, row.uid)

    def _pull_all(self, uid: int) -> None:
        """Pull what is due of the user, until nothing is."""
        while (row := self._next(uid)) is not None:
            try:
                self._pull(row)
            except Exception:
                log.exception("output not copied job=%d node=%s", row.job, row.node)
            with self._lock:
                self._running.discard(_key(row))

    def _next(self, uid: int) -> JobCopy | None:
        with self._lock:
            rows = self._due.get(uid)
            if rows:
                key = next(iter(rows))
                self._running.add(key)
                return rows.pop(key)
            self._due.pop(uid, None)
            self._threads[uid] -= 1
            if not self._threads[uid]:
                del self._threads[uid]
            return None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _key(row: JobCopy) -> RowKey:
    return row.job, row.restarts, row.node


class CopyPart(Part):
    """``task``: the periodic task that the daemon runs. It brings back the files for which no
    epilog waits, such as after a restart, and the output of running jobs.
    """

    def __init__(
        self, site: Site, copies: Copies, unfinished: Unfinished, worker: Executor
    ) -> None:
        self._site, self._copies, self._unfinished = site, copies, unfinished
        self._pulls = OutputPulls(copies.pull_outputs)
        self._returners = ThreadPoolExecutor(BACK_AT_ONCE, thread_name_prefix="files")
        self._returns: dict[int, Future[str | None]] = {}
        self._pulled_at: dict[RowKey, float] = {}
        self._server = CopyServer(site, copies)
        self._server.start()
        self.task = SiteTask(
            site, worker, self.look, "copies", period=PERIOD_S, pace=5.0, idle=self._is_idle
        )

    def close(self) -> None:
        self._server.close()
        # Without a wait: a lost machine would hold the end of the service for minutes. The next
        # start continues.
        self._pulls.close()
        self._returners.shutdown(wait=False, cancel_futures=True)

    def _is_idle(self, _: LedgerState) -> bool:
        return self._site.ledger.copies.is_empty()

    def look(self) -> None:
        """Bring files back for which no epilog waits, and the output of jobs that run. Hold the
        refused jobs that no thread has held.
        """
        site = self._site
        site.ledger.copies.forget(site.now(), KEPT_S)
        self._unfinished.live_runs = frozenset()  # if Slurm does not answer now, none is proved
        self._copies.hold_unsent()
        rows = site.ledger.copies.open()
        if not rows:
            return
        running = {(j.id, j.restarts) for j in site.slurm.jobs() if "RUNNING" in j.states}
        ended: dict[int, set[int]] = {}
        for row in rows:
            if (row.job, row.restarts) not in running:
                ended.setdefault(row.job, set()).add(row.restarts)
        # A prolog or an epilog of these jobs already does the work.
        for job in self._copies.busy_jobs:
            ended.pop(job, None)
        starting = self._bring_back(ended)
        self._unfinished.live_runs = running | starting
        self._pull([row for row in rows if row.state is CopyState.THERE
                    and (row.job, row.restarts) in running])  # fmt: skip

    def _bring_back(self, ended: Mapping[int, Set[int]]) -> Set[tuple[int, int]]:
        """Let a thread try to bring the files of these runs of jobs back; each look, if necessary.
        Return the runs not ended yet, because they are about to start.
        """
        self._returns = {job: future for job, future in self._returns.items() if not future.done()}
        starting = set()
        for job, restarts in sorted(ended.items()):
            if job in self._returns:
                continue
            files = read_job_files(self._site.slurm, job)
            if files is not None and is_on_nodes(files):
                starting.add((job, files.restarts))
                # The files of earlier runs come back while the job runs elsewhere.
                restarts = {number for number in restarts if number < files.restarts}
            if not restarts:
                continue
            # Only these: a later run may have started since Slurm was asked.
            self._copies.owe(job, restarts)
            request = CopyRequest(job=job, nodes=(), back=True)
            self._returns[job] = submit(
                self._returners, f"files of job {job}", self._copies.attempt, request,
                threading.Event(),
            )  # fmt: skip
        return starting

    def _pull(self, rows: Sequence[JobCopy]) -> None:
        site, clock = self._site, self._site.monotonic()
        keys = {_key(row): row for row in rows}
        self._pulled_at = {
            key: pulled_at for key, pulled_at in self._pulled_at.items() if key in keys
        }
        if not keys:
            return
        nodes = site.slurm.nodes(sorted({row.node for row in rows}))
        for key, row in keys.items():
            node = nodes.get(row.node)
            # A drained node may be about to go: a notice drains it.
            hurried = node is not None and "DRAIN" in node.states
            pause = PERIOD_S if hurried else site.config.copy.outputs_every
            is_due = clock - self._pulled_at.setdefault(key, clock - pause + PERIOD_S) >= pause
            if is_due:
                self._pulled_at[key] = clock
                self._pulls.add(row)
