"""The loop of slurm-elasticd: wake, dispatch requests to their clouds, repair, beat.

Each cloud has one worker thread that does everything of that cloud in order, so a launch and a
repair of one cloud never race, and a slow cloud never delays another. The main thread only
dispatches and keeps the heartbeat.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from slurm_elastic.errors import SlurmElasticError, SlurmError
from slurm_elastic.ledger import Health
from slurm_elastic.lifecycle import holds
from slurm_elastic.lifecycle.reconcile import Round
from slurm_elastic.lifecycle.resume import resume
from slurm_elastic.lifecycle.site import Site
from slurm_elastic.lifecycle.suspend import suspend
from slurm_elastic.lifecycle.wake import WakeSocket
from slurm_elastic.slurm.hostlist import compress
from slurm_elastic.spool import Request, Spool

log = logging.getLogger(__name__)

SERVICE = "slurm-elasticd"
TICK = 1.0
"""Seconds of the idle loop; a datagram from a program wakes it at once."""
SETTLING_TICK = 0.3
"""While holds or restarts settle: SuspendTimeout, the time to drain in, may be short."""
BEAT = 5.0
MAX_ATTEMPTS = 3
KEEP_HISTORY = 30 * 86400.0


class Daemon:
    """slurm-elasticd's state: what is in flight. All else is in spool, ledger and clouds."""

    def __init__(
        self, site: Site, spool: Spool, wake: WakeSocket, job_ended: Callable[[], None]
    ) -> None:
        self._site = site
        self._spool = spool
        self._wake = wake
        self._job_ended = job_ended
        self._workers = {
            name: ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
            for name in site.providers
        }
        self._rounds = {name: Round(site, name) for name in site.providers}
        self._repairing: dict[str, Future[None]] = {}
        self._in_flight: dict[str, list[Future[None]]] = {}
        self._attempts: dict[str, int] = {}
        self._next_repair = 0.0
        self._next_beat = 0.0
        self._settling = True

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; then wait for what is in flight."""
        while not stop.is_set():
            self.tick()
            hurry = self._settling or bool(self._site.restarts)
            woken = self._wake.wait(SETTLING_TICK if hurry else TICK)
            if any(b"job-end" in event for event in woken):
                self._job_ended()
        for worker in self._workers.values():
            worker.shutdown(wait=True, cancel_futures=True)

    def tick(self) -> None:
        """One pass: collect what is done, hand out what is new, settle, repair, beat."""
        self._beat()
        self._collect()
        self._dispatch()
        self._settle()
        self._repair()

    def _beat(self) -> None:
        now = self._site.now()
        if now >= self._next_beat:
            self._site.ledger.beat(SERVICE, now, os.getpid())
            self._next_beat = now + BEAT

    def _collect(self) -> None:
        for key, parts in list(self._in_flight.items()):
            if all(part.done() for part in parts):
                del self._in_flight[key]
                self._finish(key, [e for part in parts if (e := part.exception())])

    def _finish(self, key: str, errors: list[BaseException]) -> None:
        """A request whose work raised stays in the spool and is tried again, a few times."""
        if errors:
            self._attempts[key] = self._attempts.get(key, 0) + 1
            for error in errors:
                known = isinstance(error, SlurmElasticError)
                log.error(
                    "request fails id=%s error=%s", key, error, exc_info=None if known else error
                )
            if self._attempts[key] < MAX_ATTEMPTS:
                return
            log.error("request given up id=%s; reconcile goes on with its nodes", key)
        self._attempts.pop(key, None)
        self._spool.remove(key)

    def _dispatch(self) -> None:
        for request in self._spool.pending():
            if request.id not in self._in_flight:
                self._in_flight[request.id] = self._hand_out(request)

    def _hand_out(self, request: Request) -> list[Future[None]]:
        site = self._site
        clouds = {site.pool_of[n].cloud for n in request.nodes if n in site.pool_of}
        strange = [n for n in request.nodes if n not in site.pool_of]
        log.info(
            "%s request=%s nodes=%s jobs=%s note=%s",
            request.kind, request.id, compress(request.nodes), sorted(request.jobs), request.note,
        )  # fmt: skip
        if strange:
            log.error("nodes of no pool request=%s nodes=%s", request.id, compress(strange))
            site.record(request.id, "dropped", strange, "the configuration has no pool with it")
        return [self._workers[c].submit(self._serve, c, request) for c in sorted(clouds)]

    def _serve(self, cloud: str, request: Request) -> None:
        view = self._site.slurm.nodes(request.nodes)
        if request.kind == "resume":
            resume(self._site, cloud, request, view)
        else:
            # A node that failed to come up (resume-fail) has no use for its machine either.
            suspend(self._site, cloud, request, view)

    def _settle(self) -> None:
        """Holds go onto their nodes and requeued jobs are hurried, as soon as Slurm lets them."""
        site = self._site
        try:
            site.restarts.tick(site.slurm, site.now())
            if site.ledger.holds():
                self._settling = holds.settle(site, site.slurm.nodes())
            else:
                self._settling = False
        except SlurmError as error:
            self._slurm_fails(error)

    def _repair(self) -> None:
        now = self._site.now()
        if now < self._next_repair:
            return
        self._next_repair = now + self._site.config.timings.reconcile
        for name, round_ in self._rounds.items():
            running = self._repairing.get(name)
            if running is None or running.done():
                self._repairing[name] = self._workers[name].submit(self._guarded, round_)
        self._site.ledger.prune(now - KEEP_HISTORY)

    def _guarded(self, round_: Round) -> None:
        try:
            round_.run()
        except SlurmError as error:
            self._slurm_fails(error)
        except Exception:
            log.exception("a repair round fails; the next one starts anew")
        else:
            self._site.ledger.report_health(Health(name="slurm", checked=self._site.now()))

    def _slurm_fails(self, error: SlurmError) -> None:
        log.warning("slurm cannot be read or changed: %s", error)
        health = Health(name="slurm", checked=self._site.now(), error=str(error), code="slurm")
        self._site.ledger.report_health(health)
