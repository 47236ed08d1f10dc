"""The loop of slurm-elastic-ckptman: observe, decide, act; one look at a time."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence

from slurm_elastic.base import heap
from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.ckptman.apply import PlanApplier
from slurm_elastic.ckptman.decide import MOVE, JobPlan, decide
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.nodes import withdraw_notices
from slurm_elastic.ckptman.orders import Orders
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import SlurmPlans, Snapshot, SnapshotReader
from slurm_elastic.policies.checkpoint.threat import OF_SLURM
from slurm_elastic.providers.base.prices.book import PriceBook
from slurm_elastic.state.ckptstate import IN_MEMORY_EFFECT
from slurm_elastic.state.ckptstate.orders import WithdrawOrder
from slurm_elastic.state.heartbeat import CKPTMAN, CKPTMAN_MARK, Mark, leave_mark

log = logging.getLogger(__name__)

HEARTBEAT_EVERY_S = 5.0
MIN_PAUSE_S = 0.1
"""Seconds between two looks, however often we are woken."""
MOVING_PAUSE_S = 0.3
"""Seconds between two looks while a job is on its way."""
MAX_EVENT_PAUSE_S = 5.0
"""Seconds of the longest pause that follows from an event alone."""
PACE, MOVING_PACE = 20.0, 2.0
"""Reading the queue may take one part in so many and one of the time; more while a job is on its
way, as that waits for it.
"""
HISTORY_S = 30 * 86400.0
COUNT_EVERY_S = 60.0
"""Seconds between two counts of interruptions, and of old rows to forget."""


class Service:
    """Work in flight; all else is in the state, the ledger and Slurm. ``crew`` does the work."""

    def __init__(
        self, site: CheckpointSite, crew: KeyedExecutor, prices: PriceBook | None = None
    ) -> None:
        self.site = site
        self._wake = threading.Event()
        self.plans = SlurmPlans(site)
        self.reader = SnapshotReader(site, prices, self.plans.threats)
        self.orders = Orders(self._wake.set)
        self.applier = PlanApplier(site, crew, self.orders, self._wake.set)
        self._next_beat = self._next_count = float("-inf")
        self._next_giving_back = site.monotonic() + heap.GIVE_BACK_EVERY_S
        self._reports = ReportOnce[str]()
        self._moving = False
        self._quiet = site.config.checkpoint.period

    # from pollers' threads

    def wake(self) -> None:
        """There is news: look now."""
        self._wake.set()

    def wake_after_event(self) -> None:
        """Slurm has begun or ended something: look now, and soon again, as a prolog ends before its
        job runs and an epilog before its nodes are free.
        """
        # The pause doubles it first.
        self._quiet = MOVING_PAUSE_S / 2
        self._wake.set()

    # the loop

    def run(self) -> None:
        """Until the site stops; then wait for what is under way."""
        site = self.site
        pause = rest = 0.0
        try:
            while not site.stop.wait(rest):
                self._rest(pause)
                # Before the look: what comes during it has another one follow.
                self._wake.clear()
                if site.stop.is_set():
                    break
                began = site.monotonic()
                self.guarded_tick()
                # Whatever wakes us how often: the jobs' own work comes first.
                rest = max(MIN_PAUSE_S, site.monotonic() - began)
                pace = MOVING_PACE if self._moving else PACE
                pause = max(self._pause() - rest, pace * site.jobs.cost)
        finally:
            self.applier.crew.close()
            # After the crew, whose last work has decisions, too.
            site.recorder.flush(last=True)

    def _rest(self, pause: float) -> None:
        """Until there is news or the pause is over; signs of life go on in a long one."""
        end = self.site.monotonic() + pause
        while (left := end - self.site.monotonic()) > 0:
            if self._wake.wait(min(left, HEARTBEAT_EVERY_S)):
                return
            self._guarded(self._beat)

    def _pause(self) -> float:
        """Seconds until the next look: few while a job is on its way or right after an event, then
        twice as many each time, for some seconds.
        """
        period = self.site.config.checkpoint.period
        self._quiet *= 2
        if self._quiet > min(MAX_EVENT_PAUSE_S, period):
            self._quiet = period
        return MOVING_PAUSE_S if self._moving else self._quiet

    def stop(self) -> None:
        """End the loop."""
        self.site.stop.set()
        self._wake.set()

    def guarded_tick(self) -> None:
        """One look; one that fails is told in the log, and the next one starts anew."""
        self._guarded(self.tick)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (sqlite3.Error, OSError) as error:
            trouble = f"{type(error).__name__}: {error}"
            if self._reports.is_news("state directory", trouble):
                log.error("the state directory cannot be used: %s", trouble)  # noqa: TRY400
        except Exception:
            log.exception("a look fails; the next one starts anew")
        else:
            self._reports.over("state directory")

    def tick(self) -> None:
        """One look: see, decide, act."""
        site = self.site
        self._beat()
        asked = self.orders.waiting()
        for one in asked:  # before the look: what was said of its node is over
            if isinstance(one.order, WithdrawOrder):
                withdraw_notices(site, one.order.node, self.reader.machines())
                self.orders.mark_done(one)
        seen, plans = self._decided()
        if (
            any(p.kind == MOVE and p.facts.cause in OF_SLURM for p in plans)
            and self.plans.are_old()
        ):
            self._read_plans()
            seen, plans = self._decided()
        self._moving = self.applier.apply(seen, plans, asked)
        site.recorder.flush()

    def _decided(self) -> tuple[Snapshot, Sequence[JobPlan]]:
        seen = self.reader.read()
        return seen, decide(seen, self.site.config.checkpoint.slack)

    def _read_plans(self) -> None:
        """Before jobs are moved for them: a drain may be over, and jobs began there since."""
        try:
            self.plans.read()
        except SlurmError as error:
            log.warning("the plans of Slurm are those of before: %s", error)

    def _beat(self) -> None:
        site, clock = self.site, self.site.monotonic()
        if clock >= self._next_beat:
            # First: the mark tells what it finds.
            site.state.check()
            self._leave_mark()
            try:
                site.ledger.health.beat(CKPTMAN, site.now(), os.getpid())
            except sqlite3.Error as error:
                log.warning("no sign of life can be left: %s", error)
            self._next_beat = clock + HEARTBEAT_EVERY_S
        if clock >= self._next_count:
            self._next_count = clock + COUNT_EVERY_S
            site.state.refresh()
            self.reader.count_interruptions(site.now() - HISTORY_S)
            site.state.prune(site.now() - HISTORY_S)
        if clock >= self._next_giving_back:
            self._next_giving_back = clock + heap.GIVE_BACK_EVERY_S
            heap.give_back()

    def _leave_mark(self) -> None:
        why, remedy, since = self.site.state.disk_trouble
        mark = Mark(self.site.now(), os.getpid(), why, remedy, since, IN_MEMORY_EFFECT)
        try:
            leave_mark(self.site.config.state, mark, CKPTMAN_MARK)
        except OSError as error:
            if self._reports.is_news("mark", str(error)):
                log.warning("no sign of life can be left in the state directory: %s", error)
        else:
            self._reports.over("mark")
