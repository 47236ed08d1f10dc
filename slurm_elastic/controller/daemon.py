"""The loop of slurm-elasticd: wake, dispatch requests to their clouds, repair, beat.

Each cloud has one worker thread that does everything of that cloud in order, so a launch and a
repair of one cloud never race, and a slow cloud never delays another. One more settles what is
left to do in Slurm. The main thread only dispatches and keeps the heartbeat; all its times are
monotonic, so that it goes on when somebody sets the clock back.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from slurm_elastic.base.errors import EndOnlyError, NotLearntError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.autoscaler import Autoscaler
from slurm_elastic.controller.boot_timeouts import BootTimeouts, expect_requeued
from slurm_elastic.controller.boots import record_boot_failures, unregistered_instances
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.deferred import TICK as SETTLING_TICK
from slurm_elastic.controller.deferred import DeferredUpdates
from slurm_elastic.controller.directives import Directives
from slurm_elastic.controller.expiry import CredentialsEnd
from slurm_elastic.controller.launch import end_far
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.controller.periodic import PeriodicTask, run_guarded, tick_all
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.controller.resume import resume, still_wanted
from slurm_elastic.controller.strays import Strays
from slurm_elastic.controller.suspend import suspend
from slurm_elastic.controller.telling import Teller
from slurm_elastic.controller.tick_reading import TickReading
from slurm_elastic.controller.usage_record import UsageRecord
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.state.heartbeat import DAEMON, Mark, leave_mark
from slurm_elastic.state.ledger import Condition
from slurm_elastic.state.spool import Request, Spool

if TYPE_CHECKING:
    from slurm_elastic.controller.munge_keys import MungeKeys
    from slurm_elastic.controller.tunnels import Tunnels

log = logging.getLogger(__name__)

TICK = 1.0
"""Seconds of the idle loop; a datagram from a program wakes it at once."""
BEAT = 5.0
MAX_ATTEMPTS = 3
"""Attempts at a request whose work fails in a way that will not pass by itself."""


PASSING = (SlurmError, sqlite3.Error, NotLearntError, EndOnlyError)
"""Slurm, the ledger or the cloud's list cannot be reached: that passes, the request stays."""
LONGEST_PAUSE = 30.0
TURN = 5.0
"""Seconds after which nodes that wait for their turn to boot are looked at again."""
PRUNING = 3600.0
"""Seconds between two times that the ledger forgets old decisions and gives room back."""
KEEP_HISTORY = 30 * 86400.0


OWN = ("overdue", "settle", "policies", "operators", "usage", "notify", "credentials", "network")
"""The workers of what is of no single cloud, each with a periodic task of its own."""


def one_thread(cloud: str) -> Executor:
    """A cloud's worker, or the settling one."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=cloud)


class _Unfinished(Struct):
    """A request that is not done: how often its work failed, and when (monotonic) to go on.
    ``waits``: for its turn to boot, nothing has failed.
    """

    times: int = 0
    waits: bool = False
    counted: int = 0
    again: float = 0.0


class Daemon:
    """slurm-elasticd's state: what is in flight. All else is in spool, ledger and clouds.

    ``worker`` makes a cloud's worker, which must do one thing after the other.
    """

    def __init__(
        self,
        site: Site,
        spool: Spool,
        wake: WakeSocket,
        job_ended: Callable[[], None],
        worker: Callable[[str], Executor] = one_thread,
        keys: MungeKeys | None = None,
        tunnels: Callable[[Site, Executor], Tunnels] | None = None,
    ) -> None:
        self._site = site
        self._state_dir = site.config.state
        self._keys = keys
        self._spool = spool
        self._wake = wake
        self._job_ended = job_ended
        self._workers = {name: worker(name) for name in site.providers}
        self._rounds = {name: Round(site, name) for name in site.providers}
        self._repairing: dict[str, Future[bool]] = {}
        self._in_flight: dict[str, list[Future[bool]]] = {}
        self._unfinished: dict[str, _Unfinished] = {}
        # The one that hands work to the clouds' workers ends first.
        own = {name: worker(name) for name in OWN}
        self._all_workers = (*own.values(), *self._workers.values())
        self._settler = DeferredUpdates(site, own["settle"])
        self._overdue = BootTimeouts(
            site, own["overdue"], self._workers, spool, lambda c: self._rounds[c].is_over
        )
        self._teller = Teller(site, own["notify"])
        self._usage = UsageRecord(site, own["usage"])
        self._tasks: tuple[PeriodicTask, ...] = (
            self._overdue.looks,
            Directives(site, own["operators"]).looks,
            Autoscaler(site, own["policies"]).looks,
            self._settler.looks,
            self._usage.looks,
            self._teller.looks,
            CredentialsEnd(site, own["credentials"]).looks,
        )
        self._tunnels = tunnels(site, own["network"]) if tunnels is not None else None
        if self._tunnels is not None:
            self._tasks = (*self._tasks, self._tunnels.looks)
        self._next_repair = float("-inf")
        self._next_beat = float("-inf")
        self._next_pruning = float("-inf")
        self._trouble = ""
        self._markless = ""
        self._served: set[str] = set()
        self._strays = Strays(site, self._rounds.values())

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; then wait for what is in flight."""
        try:
            while not stop.is_set():
                self._guarded_tick()
                woken = self._wake.wait(SETTLING_TICK if self._settler.busy else TICK)
                if any(b"job-end" in event for event in woken):
                    self._job_ended()
        finally:
            self._teller.close()
            for worker in self._all_workers:
                worker.shutdown(wait=True, cancel_futures=True)
            if self._keys is not None:
                self._keys.close()
            if self._tunnels is not None:
                self._tunnels.close()

    def _guarded_tick(self) -> None:
        """A full disk or a locked ledger passes: nothing is bought meanwhile, and nothing lost."""
        try:
            self.tick()
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error):
                self._site.ledger.give_up(error)
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                log.error(  # noqa: TRY400 - what is wrong is the disk, not the code
                    "state directory cannot be used, nothing is launched until it can: %s", trouble
                )
            self._trouble = trouble
        else:
            self._trouble = ""

    def tick(self) -> None:
        """One pass: collect what is done, repair, hand out what is new, settle, beat.

        Repair stands before requests, so that after a start with an empty ledger the machines that
        exist are adopted before others are bought for the same nodes.
        """
        self._beat()
        self._site.ledger.refresh()
        self._collect()
        self._repair()
        self._dispatch()
        if self._keys is not None:
            self._keys.tick()
        tick_all(self._tasks, self._site.ledger.state)

    def _beat(self) -> None:
        site, clock = self._site, self._site.monotonic()
        if clock < self._next_beat:
            return
        self._leave_mark(site.ledger.check())
        site.ledger.beat(DAEMON, site.now(), os.getpid())
        self._next_beat = clock + BEAT

    def _leave_mark(self, ledger: Condition) -> None:
        now, pid = self._site.now(), os.getpid()
        try:
            mark = Mark(now, pid, ledger.end_only, ledger.remedy, ledger.since)
            leave_mark(self._state_dir, mark)
        except OSError as error:
            if str(error) != self._markless:
                log.warning("no sign of life can be left beside the ledger: %s", error)
            self._markless = str(error)
        else:
            self._markless = ""

    def _collect(self) -> None:
        for key, parts in list(self._in_flight.items()):
            if all(part.done() for part in parts):
                del self._in_flight[key]
                errors = [e for part in parts if (e := part.exception())]
                waits = any(part.result() for part in parts if not part.exception())
                self._finish(key, errors, waits=waits)

    def _finish(self, key: str, errors: list[BaseException], *, waits: bool) -> None:
        """A request whose work raised stays in the spool and is tried again after a while: as long
        as Slurm or the ledger cannot be reached, else a few times. So does one with nodes that
        wait for their turn to boot.
        """
        for error in errors:
            known = isinstance(error, SlurmElasticError | sqlite3.Error)
            log.error("request fails id=%s error=%s", key, error, exc_info=None if known else error)
        if errors:
            failed = self._unfinished.setdefault(key, _Unfinished())
            failed.times += 1
            failed.counted += not all(isinstance(e, PASSING) for e in errors)
            failed.again = self._site.monotonic() + min(2.0 ** (failed.times - 1), LONGEST_PAUSE)
            if failed.counted < MAX_ATTEMPTS:
                return
            log.error("request given up id=%s; reconcile goes on with its nodes", key)
        elif waits:
            again = self._site.monotonic() + TURN
            self._unfinished[key] = _Unfinished(again=again, waits=True)
            return
        self._unfinished.pop(key, None)
        self._site.suspends.pop(key, None)
        self._served.add(key)
        self._clear_served()

    def _clear_served(self) -> None:
        """A request that was carried out is not done again because its file cannot be removed."""
        for key in list(self._served):
            try:
                self._spool.remove(key)
            except OSError as error:
                log.debug("request stays in the spool id=%s error=%s", key, error)
                return
            self._served.discard(key)

    def _dispatch(self) -> None:
        clock = self._site.monotonic()
        self._clear_served()
        for request in self._spool.pending({*self._in_flight, *self._served}):
            before = self._unfinished.get(request.id)
            waits = before is not None and clock < before.again
            if request.id not in self._in_flight and not waits:
                again = before is not None and before.waits
                self._in_flight[request.id] = self._hand_out(request, again=again)

    def _hand_out(self, request: Request, *, again: bool) -> list[Future[bool]]:
        site = self._site
        clouds = {site.pool_of[n].cloud for n in request.nodes if n in site.pool_of}
        strange = [n for n in request.nodes if n not in site.pool_of]
        log.log(
            logging.DEBUG if again else logging.INFO,
            "%s request=%s nodes=%s jobs=%s note=%s",
            request.kind, request.id, compress(request.nodes), sorted(request.jobs), request.note,
        )  # fmt: skip
        if strange and not again:
            log.error("nodes of no pool request=%s nodes=%s", request.id, compress(strange))
            site.record(request.id, "dropped", strange, "the configuration has no pool with it")
        if request.kind == "suspend":
            site.suspends[request.id] = request
        parts = [
            self._workers[c].submit(self._serve, c, request, again=again) for c in sorted(clouds)
        ]
        for part in parts:  # at once: jobs of nodes that were refused have to be hurried
            part.add_done_callback(lambda _: self._wake.ring())
        return parts

    def _serve(self, cloud: str, request: Request, *, again: bool) -> bool:
        """Whether nodes of it wait for their turn."""
        try:
            return self._served_now(cloud, request, again=again)
        finally:
            self._rounds[cloud].served = self._site.monotonic()

    def _served_now(self, cloud: str, request: Request, *, again: bool) -> bool:
        view = self._site.slurm.nodes(request.nodes)
        if request.kind == "resume":
            state = self._site.ledger.state()
            trouble = self._unread(cloud, request, view, state.read_whole)
            waiting = resume(self._site, cloud, request, view, state, again=again, trouble=trouble)
            return bool(waiting)
        # A node that failed to come up (resume-fail) has no use for its machine either.
        failed = (
            unregistered_instances(self._site, cloud, request)
            if request.kind == "resume-fail"
            else []
        )
        # Before they are ended: where Slurm does not answer, all of it is done again.
        jobs = expect_requeued(self._site, failed)
        suspend(self._site, cloud, request, view)
        record_boot_failures(self._site, failed, request.id, jobs)
        return False

    def _unread(
        self, cloud: str, request: Request, view: Mapping[str, SlurmNode], read: Collection[str]
    ) -> str:
        """Why nothing may be bought from a cloud that was not read since the start: it cannot be.
        While that is not known yet, the nodes that Slurm waits for wait. ``read``: those that were.
        """
        site = self._site
        unknown = site.unlearnt(cloud, read)
        trouble = site.unreadable.get(unknown, "")
        if unknown and not trouble and still_wanted(site, cloud, request, view):
            raise NotLearntError(f"{unknown}: not read yet, its machines may be in no count")
        return f"not read since the start, what it has is not known: {trouble}" if trouble else ""

    def _repair(self) -> None:
        clock = self._site.monotonic()
        if clock < self._next_repair:
            return
        self._next_repair = clock + self._site.config.timings.reconcile
        self._settler.anew = True
        reading = TickReading(self._site)
        for name, round_ in self._rounds.items():
            running = self._repairing.get(name)
            if running is None or running.done():
                self._repairing[name] = self._workers[name].submit(
                    run_guarded, self._site, partial(round_.run, reading), "repair"
                )
        state = self._site.ledger.state()
        self._strays.report(state)
        end_far(self._site, state.exclusions)
        if clock >= self._next_pruning:
            self._next_pruning = clock + PRUNING
            self._site.ledger.prune(self._site.now() - KEEP_HISTORY)
            self._site.ledger.compact(self._site.now())
