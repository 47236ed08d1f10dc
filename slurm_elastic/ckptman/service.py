"""The loop of slurm-elastic-ckptman: each tick reads a snapshot, decides, applies the plans and
records them.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.processes import heap
from slurm_elastic.base.processes.periodic import rest_after
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.ckptman.apply import PlanApplier
from slurm_elastic.ckptman.bounded_policies import BoundedPolicies
from slurm_elastic.ckptman.decide import MOVE, JobPlan
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.nodes import withdraw_notices
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
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
"""Seconds between two ticks, however often we are woken."""
MOVING_PAUSE_S = 0.3
"""Seconds between two ticks while a job is being moved."""
MAX_EVENT_PAUSE_S = 5.0
"""After an event the pause doubles from tick to tick up to this length (s)."""
PACE, MOVING_PACE = 20.0, 2.0
"""Reading the queue may take 1/PACE of the time (more if it is very slow, see ``rest_after``). It
may take 1/MOVING_PACE while a job is being moved, because that job waits for the reading.
"""
HISTORY_S = 30 * 86400.0
"""Interruptions and finished rows are kept for 30 days."""
COUNT_EVERY_S = 60.0
"""Seconds between two counts of interruptions. Old rows are deleted at the same time."""


class Service:
    """The service keeps in memory only the work in flight; everything else is in the state, the
    ledger and Slurm. The threads of ``crew`` do the slow work.
    """

    def __init__(
        self, site: CheckpointSite, crew: KeyedExecutor, prices: PriceBook | None = None
    ) -> None:
        self.site = site
        self._wake = threading.Event()
        self.plans = SlurmPlans(site)
        self.reader = SnapshotReader(site, prices, self.plans.threats)
        self._policies = BoundedPolicies(site)
        self.orders = Orders(self._wake.set)
        self.applier = PlanApplier(site, crew, self.orders, self._wake.set)
        self._next_heartbeat_at = self._next_count_at = float("-inf")
        self._next_heap_trim_at = site.monotonic() + heap.GIVE_BACK_EVERY_S
        self._reports = ReportOnce[str]()
        self._is_moving = False
        self._idle_pause_s = site.config.checkpoint.poll_interval

    # Called from the pollers' threads:

    def wake(self) -> None:
        """Start the next tick now, because there is news."""
        self._wake.set()

    def wake_after_event(self) -> None:
        """Start a tick now and a few more soon after, because Slurm began or ended something. A
        prolog ends before its job runs, and an epilog ends before its nodes are free.
        """
        # _pause() doubles this value before it is used.
        self._idle_pause_s = MOVING_PAUSE_S / 2
        self._wake.set()

    def run(self) -> None:
        """Run ticks until the site stops, then wait for the work in flight."""
        site = self.site
        pause_s = rest_s = 0.0
        try:
            while not site.stop.wait(rest_s):
                self._rest_until_news(pause_s)
                # We clear the flag before the tick, so news that comes during the tick starts
                # another one.
                self._wake.clear()
                if site.stop.is_set():
                    break
                began_at = site.monotonic()
                self.guarded_tick()
                # Rest as long as the tick took: frequent events must not take the processor from
                # the jobs.
                rest_s = max(MIN_PAUSE_S, site.monotonic() - began_at)
                pace = MOVING_PACE if self._is_moving else PACE
                pause_s = max(self._pause() - rest_s, rest_after(site.jobs.cost, pace))
        finally:
            self.applier.crew.close()
            site.output_writers.close()
            # Only after the threads have ended: their last pieces of work record decisions too.
            site.recorder.flush(last=True)

    def _rest_until_news(self, pause_s: float) -> None:
        """Wait for news or the end of the pause. Leave signs of life during a long pause."""
        end_at = self.site.monotonic() + pause_s
        while (left_s := end_at - self.site.monotonic()) > 0:
            if self._wake.wait(min(left_s, HEARTBEAT_EVERY_S)):
                return
            self._run_guarded(self._leave_signs_of_life)

    def _pause(self) -> float:
        """Seconds until the next tick. They are few while a job is being moved and right after an
        event; after an event they double with each tick, up to the configured period.
        """
        period = self.site.config.checkpoint.poll_interval
        self._idle_pause_s *= 2
        if self._idle_pause_s > min(MAX_EVENT_PAUSE_S, period):
            self._idle_pause_s = period
        return MOVING_PAUSE_S if self._is_moving else self._idle_pause_s

    def stop(self) -> None:
        """End the loop."""
        self.site.stop.set()
        self._wake.set()

    def guarded_tick(self) -> None:
        """Run one tick. A failure is logged, and the next tick starts over."""
        self._run_guarded(self.tick)

    def _run_guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (sqlite3.Error, OSError) as error:
            error_text = f"{type(error).__name__}: {error}"
            if self._reports.is_news("state directory", error_text):
                log.error("the state directory cannot be used: %s", error_text)  # noqa: TRY400
        except Exception:
            log.exception("a tick failed; the next one starts over")
        else:
            self._reports.clear("state directory")

    def tick(self) -> None:
        """One tick: withdraw notices, read, decide, apply, record."""
        self._leave_signs_of_life()
        orders = self.orders.waiting()
        # Before the snapshot is read, so that no job is moved for a withdrawn notice.
        self._withdraw_notices(orders)
        snapshot, plans = self._read_and_decide()
        if self._depend_on_old_slurm_plans(plans):
            self._read_slurm_plans()
            snapshot, plans = self._read_and_decide()
        self._is_moving = self.applier.apply(snapshot, plans, orders)
        self.site.recorder.flush()

    def _withdraw_notices(self, orders: Sequence[ReceivedOrder]) -> None:
        for received in orders:
            if isinstance(received.order, WithdrawOrder):
                withdraw_notices(self.site, received.order.node, self.reader.machines())
                self.orders.mark_done(received)

    def _read_and_decide(self) -> tuple[Snapshot, Sequence[JobPlan]]:
        snapshot = self.reader.read()
        return snapshot, self._policies.plans(snapshot)

    def _depend_on_old_slurm_plans(self, plans: Sequence[JobPlan]) -> bool:
        """Whether a job would be moved for a plan of Slurm's that was read some seconds ago."""
        is_moved_for_slurm = any(
            plan.kind == MOVE and plan.facts.cause in OF_SLURM for plan in plans
        )
        return is_moved_for_slurm and self.plans.are_old()

    def _read_slurm_plans(self) -> None:
        """Read Slurm's plans again before a job is moved for them. A drain may have ended after the
        last reading, and the job may have begun on that node since.
        """
        try:
            self.plans.read()
        except SlurmError as error:
            log.warning("Slurm's plans cannot be read, the last ones are used: %s", error)

    def _leave_signs_of_life(self) -> None:
        site, clock = self.site, self.site.monotonic()
        if clock >= self._next_heartbeat_at:
            # First, because the mark file reports what this check finds.
            site.state.check()
            self._leave_mark()
            try:
                site.ledger.health.beat(CKPTMAN, site.now(), os.getpid())
            except sqlite3.Error as error:
                log.warning("the heartbeat cannot be written to the ledger: %s", error)
            self._next_heartbeat_at = clock + HEARTBEAT_EVERY_S
        if clock >= self._next_count_at:
            self._next_count_at = clock + COUNT_EVERY_S
            site.state.refresh()
            self.reader.count_interruptions(site.now() - HISTORY_S)
            self._prune()
        if clock >= self._next_heap_trim_at:
            self._next_heap_trim_at = clock + heap.GIVE_BACK_EVERY_S
            heap.give_back()

    def _prune(self) -> None:
        """Delete old rows of the state. Their age counts from the ledger's own time, because our
        clock may be far ahead until the host has synchronised it, and then everything is old.
        """
        site = self.site
        try:
            record_time = site.ledger.recorded_time()
        except sqlite3.Error as error:
            log.warning("old migrations are kept, because the ledger cannot be read: %s", error)
            return
        if record_time is not None:
            site.state.prune(min(record_time, site.now()) - HISTORY_S, site.jobs.last.keys())

    def _leave_mark(self) -> None:
        """Write the mark file. watchdog and doctor read it when the ledger cannot be read."""
        reason, remedy, since = self.site.state.disk_trouble
        mark = Mark(
            self.site.now(), os.getpid(), reason, remedy, since, IN_MEMORY_EFFECT,
            is_disk_full=self.site.state.is_disk_full,
        )  # fmt: skip
        try:
            leave_mark(self.site.config.state, mark, CKPTMAN_MARK)
        except OSError as error:
            if self._reports.is_news("mark", str(error)):
                log.warning("the mark file cannot be written in the state directory: %s", error)
        else:
            self._reports.clear("mark")
