"""The loop of slurm-elasticd: wake, begin the rounds of clouds that are due or asked for, beat.

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
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

from slurm_elastic.base import heap
from slurm_elastic.base.background import submit
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import brief
from slurm_elastic.controller.boot_timeouts import BootTimeouts
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Feature, join
from slurm_elastic.controller.launch import end_far
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.controller.periodic import SiteTask, run_guarded, tick_all
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.controller.requests import Requests
from slurm_elastic.controller.settling import TICK as SETTLING_TICK
from slurm_elastic.controller.settling import Settler
from slurm_elastic.controller.strays import Strays
from slurm_elastic.controller.tick_reading import TickReading
from slurm_elastic.state.heartbeat import DAEMON, Mark, leave_mark
from slurm_elastic.state.ledger import Condition, Health
from slurm_elastic.state.spool import Spool

log = logging.getLogger(__name__)

TICK = 1.0
"""Seconds of the idle loop; a datagram from a program wakes it at once."""
BEAT = 5.0
PRUNING = 3600.0
"""Seconds between two times that the ledger forgets old decisions and gives room back."""
KEEP_HISTORY = 30 * 86400.0
STUCK = 900.0
"""Seconds after which a person is told that a cloud's worker has not come back: each question to a
cloud has a bound, but a thread may hang in the kernel, on a directory of NFS.
"""


OWN_WORKERS = ("overdue", "settle")
"""Worker threads that serve no single cloud. Each runs one periodic task, and so do the workers of
the parts that features add.
"""


def one_thread(cloud: str) -> Executor:
    """A cloud's worker, or the settling one."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=cloud)


class Daemon:
    """slurm-elasticd's state: what is in flight. All else is in spool, ledger and clouds.

    ``worker`` makes a cloud's worker, which must do one thing after the other. What works beside
    the tick: ``rounds``, each cloud's; ``settler`` and ``overdue``, whose looks are tasks;
    ``parts`` by name, which features add.
    """

    def __init__(
        self,
        site: Site,
        spool: Spool,
        wake: WakeSocket,
        worker: Callable[[str], Executor] = one_thread,
        *,
        features: Sequence[Feature],
    ) -> None:
        self._site = site
        self._state_dir = site.config.state
        join(site, features)
        self._wake = wake
        self._workers = {name: worker(name) for name in site.providers}
        self.rounds = {name: Round(site, name) for name in site.providers}
        self._repairing: dict[str, Future[bool]] = {}
        self._begun: dict[str, float] = {}
        self._serving: dict[str, Future[None]] = {}
        self._requests = Requests(site, spool)
        # The one that hands work to the clouds' workers ends first.
        parts = site.extensions.parts
        own = {name: worker(name) for name in (*OWN_WORKERS, *(name for name, _ in parts))}
        self._all_workers = (*own.values(), *self._workers.values())
        self.settler = Settler(site, own["settle"])
        self.overdue = BootTimeouts(
            site, own["overdue"], self._workers, spool, lambda c: self.rounds[c].is_over
        )
        self.parts = {name: make_part(own[name]) for name, make_part in parts}
        self._tasks: tuple[SiteTask, ...] = (
            self.overdue.looks,
            self.settler.looks,
            *(part.looks for part in self.parts.values()),
        )
        self._next_repair = float("-inf")
        self._next_beat = float("-inf")
        self._next_pruning = float("-inf")
        self._next_giving_back = site.monotonic() + heap.GIVE_BACK_EVERY_S
        self._reports = ReportOnce[str]()
        self._strays = Strays(site, self.rounds.values())

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; then wait for what is in flight."""
        try:
            while not stop.is_set():
                self.guarded_tick()
                woken = self._wake.wait(SETTLING_TICK if self.settler.busy else TICK)
                if any(b"job-end" in event for event in woken):
                    for note_job_end in self._site.extensions.on_job_end:
                        note_job_end()
        finally:
            # No request is begun any more: the spool keeps them for the next start.
            self._requests.close()
            for worker in self._all_workers:
                worker.shutdown(wait=True, cancel_futures=True)
            for part in self.parts.values():
                part.close()

    def guarded_tick(self) -> None:
        """One pass. A full disk or a locked ledger passes: nothing is bought, and nothing lost."""
        try:
            self.tick()
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error):
                self._site.ledger.give_up(error)
            trouble = f"{type(error).__name__}: {error}"
            if self._reports.is_news("state directory", trouble):
                log.error(  # noqa: TRY400 - what is wrong is the disk, not the code
                    "state directory cannot be used, nothing is launched until it can: %s", trouble
                )
        else:
            self._reports.over("state directory")

    def tick(self) -> None:
        """One pass: beat, repair, wake the rounds of clouds with requests, settle."""
        self._beat()
        self._site.ledger.refresh()
        # Before requests: after a start with an empty ledger the machines that exist are adopted
        # before others are bought for the same nodes.
        self._begin_repairs()
        self._begin_requests()
        self._prune()
        self._give_memory_back()
        tick_all(self._tasks, self._site.ledger.state)

    def _beat(self) -> None:
        site, clock = self._site, self._site.monotonic()
        if clock < self._next_beat:
            return
        # The mark first: it needs no ledger, and the beat below fails without one.
        self._leave_mark(site.ledger.check())
        site.ledger.health.beat(DAEMON, site.now(), os.getpid())
        self._next_beat = clock + BEAT

    def _leave_mark(self, ledger: Condition) -> None:
        now, pid = self._site.now(), os.getpid()
        try:
            mark = Mark(now, pid, ledger.end_only, ledger.remedy, ledger.since,
                        is_disk_full=ledger.is_disk_full)  # fmt: skip
            leave_mark(self._state_dir, mark)
        except OSError as error:
            if self._reports.is_news("mark", str(error)):
                log.warning("no sign of life can be left beside the ledger: %s", error)
        else:
            self._reports.over("mark")

    def _begin_requests(self) -> None:
        """A cloud's requests are served one after the other, behind a round of it that runs."""
        self._requests.take_in()
        for name, round_ in self.rounds.items():
            running = self._serving.get(name)
            if (running is None or running.done()) and self._requests.due(name):
                work = submit(
                    self._workers[name],
                    f"requests of {name}",
                    self._requests.serve,
                    name,
                    round_.serve,
                )
                # At once: jobs of nodes that were refused have to be hurried.
                work.add_done_callback(lambda _: self._wake.ring())
                self._serving[name] = work

    def _begin_repairs(self) -> None:
        """Begin a round of repair of each cloud, if the last ones began long enough ago."""
        clock = self._site.monotonic()
        if clock < self._next_repair:
            return
        self._next_repair = clock + self._site.config.timings.reconcile
        self.settler.anew = True
        reading = TickReading(self._site)
        for name, round_ in self.rounds.items():
            running = self._repairing.get(name)
            if running is None or running.done():
                self._begun[name] = clock
                self._repairing[name] = submit(
                    self._workers[name], f"repair of {name}",
                    run_guarded, self._site, partial(round_.run, reading), "repair",
                )  # fmt: skip
            elif (waited := clock - self._begun[name]) >= STUCK:
                self._report_stuck(name, waited)
        state = self._site.ledger.state()
        self._strays.report(state)
        end_far(self._site, state.exclusions)

    def _prune(self) -> None:
        """Once an hour, forget old decisions and give disk space back."""
        clock = self._site.monotonic()
        if clock >= self._next_pruning:
            self._next_pruning = clock + PRUNING
            self._site.ledger.prune(self._site.now() - KEEP_HISTORY)
            self._site.ledger.compact(self._site.now())

    def _give_memory_back(self) -> None:
        clock = self._site.monotonic()
        if clock >= self._next_giving_back:
            self._next_giving_back = clock + heap.GIVE_BACK_EVERY_S
            heap.give_back()

    def _report_stuck(self, cloud: str, waited: float) -> None:
        error = (
            f"what was begun there {brief(waited)} ago is not over; where nothing comes of it, "
            "restart slurm-elasticd, which goes on with what is open"
        )
        health = Health(name=cloud, checked=self._site.now(), error=error, code="stuck")
        self._site.ledger.health.report(health)
