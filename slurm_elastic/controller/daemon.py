"""The main loop of slurm-elasticd: it starts the rounds and requests of clouds and the heartbeat.

Each cloud has one worker thread that does all work for that cloud in order. Because of that a
launch and a repair of one cloud never race, and a slow cloud never delays another. One more thread
finishes changes in Slurm that need a moment (``settling``). The main thread only starts work and
keeps the heartbeat. All its times are monotonic, so that it continues after the clock is set back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

from slurm_elastic.base.processes import heap
from slurm_elastic.base.processes.background import submit
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import brief
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Feature, join
from slurm_elastic.controller.launching.boot_timeouts import BootTimeouts
from slurm_elastic.controller.launching.launch import end_far_exclusions
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.controller.other_heads import REMEDY, take_up_journal
from slurm_elastic.controller.periodic import (
    SiteTask,
    end_earlier_faults,
    name_repair,
    run_guarded,
    start_due_tasks,
)
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.controller.requests import Requests
from slurm_elastic.controller.settling import TICK_S as SETTLING_TICK
from slurm_elastic.controller.settling import Settler
from slurm_elastic.controller.strays import Strays
from slurm_elastic.controller.tick_reading import TickReading
from slurm_elastic.state.heartbeat import DAEMON, OTHER_HEAD_MEANS, Mark, leave_mark
from slurm_elastic.state.ledger import Condition, Health
from slurm_elastic.state.spool import Spool

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Seconds between two passes of the idle loop. A datagram of slurmctld's programs ends the wait."""
BEAT_EVERY_S = 5.0
PRUNE_EVERY_S = 3600.0
"""Seconds between two clean-ups: the ledger deletes old decisions and releases disk space."""
HISTORY_KEPT_S = 30 * 86400.0
STUCK_AFTER_S = 900.0
"""Seconds after which ``status`` reports that the worker of a cloud hangs. Each call to a cloud has
a time-out, but a thread may hang in the kernel, for example on an NFS directory.
"""


OWN_WORKERS = ("overdue", "settle")
"""Worker threads that serve no single cloud. Each runs one periodic task, and so do the workers of
the parts that features add.
"""


def make_worker(cloud: str) -> Executor:
    """Make an executor with one thread, which is named after its cloud or task."""
    # Exactly one thread: two would let a launch and a repair of the same cloud race.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=cloud)


class Daemon:
    """The work that slurm-elasticd has in flight. Everything else is in the spool, the ledger and
    the clouds, so a restart loses nothing.

    ``worker`` makes a worker, which must do one thing after the other. ``rounds``: by cloud.
    ``settler`` and ``overdue``: periodic tasks in threads of their own. ``parts``: by name, the
    parts that features add.
    """

    def __init__(
        self,
        site: Site,
        spool: Spool,
        wake: WakeSocket,
        worker: Callable[[str], Executor] = make_worker,
        *,
        features: Sequence[Feature],
    ) -> None:
        self._site = site
        self._state_dir = site.config.state
        join(site, features)
        self._wake = wake
        self._workers = {name: worker(name) for name in site.providers}
        self.rounds = {name: Round(site, name) for name in site.providers}
        self._running_repairs: dict[str, Future[bool]] = {}
        self._repair_began_at: dict[str, float] = {}
        self._running_requests: dict[str, Future[None]] = {}
        self._requests = Requests(site, spool)
        # The order of the shutdown: ``overdue`` submits work to the workers of clouds, so these
        # must still accept work when it ends.
        feature_parts = site.extensions.parts
        own_workers = {
            name: worker(name) for name in (*OWN_WORKERS, *(name for name, _ in feature_parts))
        }
        self._all_workers = (*own_workers.values(), *self._workers.values())
        self.settler = Settler(site, own_workers["settle"])
        self.overdue = BootTimeouts(
            site, own_workers["overdue"], self._workers, spool, lambda c: self.rounds[c].is_over
        )
        self.parts = {name: make_part(own_workers[name]) for name, make_part in feature_parts}
        self._tasks: tuple[SiteTask, ...] = (
            self.overdue.task,
            *(feature_part.task for feature_part in self.parts.values()),
            # After the parts: it drains the nodes that an order or a policy has just closed.
            self.settler.task,
        )
        self._has_taken_up_journal = False
        self._next_repair = float("-inf")
        self._next_beat = float("-inf")
        self._next_pruning = float("-inf")
        self._next_giving_back = site.monotonic() + heap.GIVE_BACK_EVERY_S
        self._reports = ReportOnce[str]()
        self._strays = Strays(site, self.rounds.values())
        end_earlier_faults(site)

    def run(self, stop: threading.Event) -> None:
        """Run until ``stop`` is set, then wait for the work in flight."""
        try:
            while not stop.is_set():
                self.guarded_tick()
                woken = self._wake.wait(SETTLING_TICK if self.settler.is_busy else TICK_S)
                if any(b"job-end" in event for event in woken):
                    for note_job_end in self._site.extensions.on_job_end:
                        note_job_end()
        finally:
            # Before the workers shut down: a busy worker must not begin another request.
            # The spool keeps the requests for the next start.
            self._requests.close()
            for worker in self._all_workers:
                worker.shutdown(wait=True, cancel_futures=True)
            for feature_part in self.parts.values():
                feature_part.close()

    def guarded_tick(self) -> None:
        """Do one pass. After an error of the disk or of the ledger, log it and continue."""
        try:
            self.tick()
        # A full disk or a locked ledger gets better without a restart. Until then nothing is
        # bought, because no intent can be written, and the spool keeps the requests.
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error):
                self._site.ledger.give_up(error)
            trouble = f"{type(error).__name__}: {error}"
            if self._reports.is_news("state directory", trouble):
                log.error(  # noqa: TRY400 - a traceback does not help, the disk is at fault
                    "state directory cannot be used, nothing is launched until it can: %s", trouble
                )
        else:
            self._reports.clear("state directory")

    def tick(self) -> None:
        """Do one pass: beat, start repairs, start requests, clean up, start periodic tasks."""
        self._take_up_journal_once()
        self._beat_if_due()
        self._site.ledger.refresh()
        # Repairs before requests: after a start with an empty ledger a repair adopts the machines
        # that exist. Otherwise the requests would buy second machines for the same nodes.
        self._begin_repairs_if_due()
        if self._site.ledger.owner.other_head() is None:
            self._begin_requests()
        self._prune_if_due()
        self._give_memory_back_if_due()
        start_due_tasks(self._tasks_now(), self._site.ledger.state)

    def _take_up_journal_once(self) -> None:
        """Check once whose journal this is, before anything is decided by it."""
        if not self._has_taken_up_journal:
            self._has_taken_up_journal = take_up_journal(self._site)

    def _tasks_now(self) -> Sequence[SiteTask]:
        """The tasks that may run: while another head works, only tasks that look and notify."""
        if self._site.ledger.owner.other_head() is None:
            return self._tasks
        return [task for task in self._tasks if task.only_looks]

    def _beat_if_due(self) -> None:
        site, clock = self._site, self._site.monotonic()
        if clock < self._next_beat:
            return
        # The mark first: it needs no ledger, but the beat below raises if the ledger fails.
        # On a full disk `status` reads from the mark that this daemon lives, and what hinders it.
        self._leave_mark(site.ledger.check())
        site.ledger.health.beat(DAEMON, site.now(), os.getpid())
        self._next_beat = clock + BEAT_EVERY_S

    def _leave_mark(self, ledger: Condition) -> None:
        now, pid = self._site.now(), os.getpid()
        try:
            mark = Mark(now, pid, ledger.end_only, ledger.remedy, ledger.since,
                        is_disk_full=ledger.is_disk_full, host=self._site.host)  # fmt: skip
            # More urgent than a full disk: both heads may end each other's machines.
            if (finding := self._site.ledger.owner.other_head()) is not None:
                mark = Mark(now, pid, str(finding.cause), REMEDY, finding.since, OTHER_HEAD_MEANS)
            leave_mark(self._state_dir, mark)
        except OSError as error:
            if self._reports.is_news("mark", str(error)):
                log.warning("the mark file cannot be written in the state directory: %s", error)
        else:
            self._reports.clear("mark")

    def _begin_requests(self) -> None:
        """Start serving the requests of each cloud, unless its worker already serves some."""
        self._requests.take_in()
        for name, round_ in self.rounds.items():
            running = self._running_requests.get(name)
            if (running is None or running.done()) and self._requests.due(name):
                work = submit(
                    self._workers[name],
                    f"requests of {name}",
                    self._requests.serve,
                    name,
                    round_.serve,
                )
                # Wake the main loop: the settler must lift the requeue holds of refused jobs now.
                work.add_done_callback(lambda _: self._wake.ring())
                self._running_requests[name] = work

    def _begin_repairs_if_due(self) -> None:
        """Start a round of repair for each cloud every ``timings.reconcile_interval``. A cloud
        whose last round still runs is left out, and reported after STUCK_AFTER_S.
        """
        clock = self._site.monotonic()
        if clock < self._next_repair:
            return
        self._next_repair = clock + self._site.config.timings.reconcile_interval
        self.settler.must_recheck = True
        # All clouds share one reading of Slurm's nodes: at a large site a reading takes a second.
        reading = TickReading(self._site)
        for name, round_ in self.rounds.items():
            running = self._running_repairs.get(name)
            if running is None or running.done():
                self._repair_began_at[name] = clock
                self._running_repairs[name] = submit(
                    self._workers[name], name_repair(name),
                    run_guarded, self._site, partial(round_.run, reading), name_repair(name),
                )  # fmt: skip
            elif (waited := clock - self._repair_began_at[name]) >= STUCK_AFTER_S:
                self._report_stuck(name, waited)
        state = self._site.ledger.state()
        self._strays.report(state)
        end_far_exclusions(self._site, state.exclusions)

    def _prune_if_due(self) -> None:
        """Once an hour, delete old decisions and drafts, and release disk space."""
        clock = self._site.monotonic()
        if clock >= self._next_pruning:
            self._next_pruning = clock + PRUNE_EVERY_S
            # Not the clock, which may be far ahead until the host has synchronised it.
            record_time = self._site.ledger.record_time(self._site.now())
            self._site.ledger.prune(record_time - HISTORY_KEPT_S)
            self._site.ledger.compact(record_time)
            with contextlib.suppress(OSError):
                self._site.spool.remove_stale_drafts()

    def _give_memory_back_if_due(self) -> None:
        clock = self._site.monotonic()
        if clock >= self._next_giving_back:
            self._next_giving_back = clock + heap.GIVE_BACK_EVERY_S
            heap.give_back()

    def _report_stuck(self, cloud: str, waited: float) -> None:
        error = (
            f"the repair of this cloud has been running for {brief(waited)}; if it does not "
            "finish, restart slurm-elasticd, which resumes open work"
        )
        health = Health(name=cloud, checked=self._site.now(), error=error, code="stuck")
        self._site.ledger.health.report(health)
