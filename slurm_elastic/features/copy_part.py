"""The part of slurm-elasticd that copies jobs' files: prologs and epilogs wait at its socket.

A client sends one JSON line, ``{"job": 7, "nodes": "pub[1-2]", "partition": "cloud", "phase":
"out"}``, or ``"back"``. It gets a line ``.`` every few seconds, and finally ``go`` or ``no
REASON``. If the daemon restarts, the client asks again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import msgspec
from msgspec import Struct

from slurm_elastic.base.background import submit
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.base.server import Gone, Server, ServerBounds, ServerClient
from slurm_elastic.config.copying import Data
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.copying import GO, Copies, CopyRequest
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
_OUT_AT_ONCE, _BACK_AT_ONCE = 16, 48
"""Jobs whose files are copied at a time. A copy back may wait for a machine that is lost."""
_MAX_LINE = 4 << 20


class _Hello(Struct, frozen=True, kw_only=True):
    job: int
    nodes: str
    phase: str
    partition: str = ""


def join(site: Site) -> Extensions | None:
    """Join if files are copied to some cloud, or are still to come back from one."""
    copying = any(cloud.data is Data.COPY for cloud in site.clouds.values())
    ssh = site.config.join.ssh
    is_open = any(not copy.state.is_over for copy in site.ledger.copies.all())
    if ssh is None or not (copying or is_open):
        return None
    try:
        from slurm_elastic.features.copy_runner import CopyRunner
    except ModuleNotFoundError as error:
        raise ConfigError(f"data: copy: {missing_module(error, 'ssh')}") from error
    slurm = site.config.slurm
    copies = Copies(site, CopyRunner(site.config, ssh), partial(read_job_files, slurm))
    return Extensions(
        parts=[("copies", lambda worker: CopyPart(site, copies, worker))],
        find_unfinished=[partial(find_unfinished, site)],
    )


def find_unfinished(site: Site, machines: Sequence[Machine]) -> Collection[Machine]:
    """The machines that still have files of jobs. Each is kept for ``copy.back_within`` at most."""
    owing = {copy.machine for copy in site.ledger.copies.owing()}
    return [machine for machine in machines if machine.instance.id in owing]


class CopyServer(Server):
    """Serves waiting prologs and epilogs."""

    def __init__(self, site: Site, copies: Copies) -> None:
        bounds = ServerBounds(max_clients=_WAITING, max_line_bytes=_MAX_LINE, backlog=_WAITING)
        super().__init__("copies", site.config.state / SOCKET, bounds)
        self._copies = copies
        self._out_workers = self.start_threads("copy-out", _OUT_AT_ONCE)
        self._back_workers = self.start_threads("copy-back", _BACK_AT_ONCE)

    async def attend(self, client: ServerClient) -> None:
        """Serve one client: read its line, copy, send the answer."""
        line = await client.read_line(_HELLO_S)
        try:
            hello = msgspec.json.decode(line, type=_Hello)
            nodes = tuple(expand(hello.nodes))
        except (msgspec.DecodeError, HostlistError, UnicodeDecodeError, RecursionError) as error:
            log.warning("client turned away reason=%s line=%r", error, line[:200])
            return
        request = CopyRequest(job=hello.job, nodes=nodes, back=hello.phase == "back")
        cancelled = threading.Event()
        loop = asyncio.get_running_loop()
        workers = self._back_workers if request.back else self._out_workers
        work = loop.create_task(workers.call(self._copies.serve, request, cancelled))
        work.add_done_callback(_retrieve)
        try:
            reason = await client.wait_for(work)
        except (Gone, asyncio.CancelledError):
            cancelled.set()  # a copy back continues: the files are wanted in any case
            raise
        client.push(b"go\n" if reason == GO else f"no {reason}\n".encode())

    async def run_beside(self) -> None:
        """Send signs of life."""
        while True:
            await asyncio.sleep(_SIGN_S)
            for client in self.clients:
                client.push(b".\n")


def _retrieve(work: asyncio.Future[str]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.error("a copy has failed: %r", error)


class CopyPart(Part):
    """``task``: the periodic task that the daemon runs. It brings back what no epilog waits for,
    such as after a restart, and the output of running jobs.
    """

    def __init__(self, site: Site, copies: Copies, worker: Executor) -> None:
        self._site, self._copies = site, copies
        self._pullers = ThreadPoolExecutor(_OUT_AT_ONCE, thread_name_prefix="outputs")
        self._pulled_at: dict[tuple[int, int, str], float] = {}
        self._pulls: dict[tuple[int, int, str], Future[None]] = {}
        self._server = CopyServer(site, copies)
        self._server.start()
        self.task = SiteTask(
            site, worker, self.look, "copies", period=PERIOD_S, pace=5.0, idle=self._is_idle
        )

    def close(self) -> None:
        self._server.close()
        self._pullers.shutdown(wait=False, cancel_futures=True)

    def _is_idle(self, _: LedgerState) -> bool:
        return not self._site.ledger.copies.all()

    def look(self) -> None:
        """Bring files back for which no epilog waits, and the output of jobs that run."""
        site = self._site
        site.ledger.copies.forget(site.now() - KEPT_S)
        rows = [row for row in site.ledger.copies.all() if not row.state.is_over]
        if not rows:
            return
        running = {(j.id, j.restarts): j for j in site.slurm.jobs() if "RUNNING" in j.states}
        busy = self._copies.busy_jobs
        for job in {row.job for row in rows if (row.job, row.restarts) not in running} - busy:
            if not self._may_start(job):
                request = CopyRequest(job=job, nodes=(), back=True)
                submit(self._pullers, f"files of job {job}", self._copies.serve, request,
                       threading.Event())  # fmt: skip
        self._pull([row for row in rows if row.state is CopyState.THERE
                    and (row.job, row.restarts) in running])  # fmt: skip

    def _may_start(self, job: int) -> bool:
        """Whether the job still waits for its files, or is about to run."""
        files = read_job_files(self._site.config.slurm, job)
        return files is not None and bool(files.nodes) and "COMPLETING" not in files.states

    def _pull(self, rows: Sequence[JobCopy]) -> None:
        site, clock = self._site, self._site.monotonic()
        keys = {(row.job, row.restarts, row.node): row for row in rows}
        self._pulled_at = {
            key: pulled_at for key, pulled_at in self._pulled_at.items() if key in keys
        }
        self._pulls = {key: pull for key, pull in self._pulls.items() if key in keys}
        if not keys:
            return
        nodes = site.slurm.nodes(sorted({row.node for row in rows}))
        for key, row in keys.items():
            node = nodes.get(row.node)
            # A drained node may be about to go: a notice drains it.
            hurried = node is not None and "DRAIN" in node.states
            pause = PERIOD_S if hurried else site.config.copy.outputs_every
            is_due = clock - self._pulled_at.setdefault(key, clock - pause + PERIOD_S) >= pause
            running = self._pulls.get(key)
            if is_due and (running is None or running.done()):
                self._pulled_at[key] = clock
                self._pulls[key] = submit(
                    self._pullers, f"output of job {row.job}", self._copies.pull_outputs, row
                )
