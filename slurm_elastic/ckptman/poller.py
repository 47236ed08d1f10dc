"""Polls a source of notices. A notice or order is on the disk before it is acknowledged at the
source.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.faults import reach
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.ckptman.nodes import cool_down, newest_machine_of
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.sources import NoticeSource, SourceReading
from slurm_elastic.model.causes.checkpoints import NoticeArrived, NoticedMachineGone
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.state.ckptstate.facts import RecordedNotice
from slurm_elastic.state.ckptstate.orders import NoticeOrder, WithdrawOrder
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


MAX_PAUSE_S = 60.0
"""Seconds between two readings of a source that fails, at most."""
ENDED_AFTER_S = 300.0
"""Seconds without a standing notice after which its source has ended it. One reading may lack it by
mistake.
"""
CLOUD_CLOCK_MARGIN_S = 60.0
"""Seconds by which the launch of a machine may seem to be later than an order about it."""


class Poller(PeriodicThread):
    """Polls one source. ``machines(ids)`` gives the live machines by id, read again if ``ids`` are
    not all among them. ``wake`` is called when there is news. Orders other than notices go to
    ``orders``.
    """

    def __init__(
        self,
        site: CheckpointSite,
        source: NoticeSource,
        every: float,
        machines: Callable[[Collection[str]], Mapping[str, Machine]],
        wake: Callable[[], None],
        orders: Orders,
    ) -> None:
        retry = Backoff(2 * max(every, 1.0), MAX_PAUSE_S)
        task = PeriodicTask(
            source.name, self.poll, every, retry=retry, first_in_s=every, clock=site.monotonic
        )
        super().__init__(task, site.stop)
        self._site, self._source = site, source
        self._machines, self._wake, self._orders = machines, wake, orders
        self._missing_since: dict[str, float] = {}
        # Monotonic s of the last file of a name with this notice.
        self._given_at: dict[tuple[str, Notice], float] = {}

    def poll(self) -> bool:
        """Read the source once. Returns whether that succeeded. News is on the disk before it is
        acknowledged.
        """
        site = self._site
        try:
            readings = self._source.read(site.now())
            self._forget_given(readings)
            notices, done_orders = self._split_notices_and_orders(readings)
            try:
                if done_orders:
                    self._source.done([received.handle for received in done_orders])
                    self._orders.forget(done_orders)
            # An order that cannot be acknowledged must not keep us from taking in notices.
            finally:
                self._record_notices(notices)
            self._forget_ended_notices(notices)
            # Only now: before they are on our disk, an acknowledgement could lose notices.
            if handles := [reading.handle for reading in notices if reading.handle]:
                self._source.done(handles)
        except sqlite3.Error as error:
            log.error("notices cannot be written to the disk, they stay at their source: %s", error)  # noqa: TRY400
            return False
        except Exception as error:  # noqa: BLE001 - whatever a source raises, the others go on
            site.recorder.report_failure(self._source.name, error)
            return False
        # Messages that stay at their source make no poll fail: the pause after a failure would
        # delay the other messages.
        unreadable = "; ".join(reading.unreadable for reading in notices if reading.unreadable)
        site.recorder.report_health(self._source.name, unreadable or None)
        return True

    def _split_notices_and_orders(
        self, readings: Sequence[SourceReading]
    ) -> tuple[list[SourceReading], list[ReceivedOrder]]:
        """The notices, and the orders that were carried out."""
        notices: list[SourceReading] = []
        done_orders: list[ReceivedOrder] = []
        withdrawn_nodes: set[str] = set()
        for reading in readings:
            order = reading.order
            if order is None or isinstance(order, NoticeOrder):
                # A notice that a person gave after a withdrawal waits until the withdrawal was
                # carried out. Otherwise the withdrawal would close this notice too.
                if order is None or order.node not in withdrawn_nodes:
                    notices.append(reading)
            elif self._orders.receive(received := ReceivedOrder(reading.handle, order)):
                done_orders.append(received)
            elif isinstance(order, WithdrawOrder):
                withdrawn_nodes.add(order.node)
        return notices, done_orders

    def _record_notices(self, readings: Sequence[SourceReading]) -> None:
        for reading in readings:
            if reading.wrong:
                log.warning(
                    "a message of a source was ignored source=%s: %s",
                    self._source.name,
                    reading.wrong,
                )
        notices = [reading.notice for reading in readings if reading.notice]
        if not notices:
            return
        machines = self._machines([notice.instance for notice in notices])
        open_notices = self._site.state.notices()
        recorded_notices: list[RecordedNotice] = []
        given_at: dict[tuple[str, Notice], float] = {}
        for reading in readings:
            if reading.notice is None:
                continue
            if self._is_of_earlier_machine(reading, reading.notice, machines):
                cause = NoticedMachineGone()
                self._site.recorder.record(
                    "notices", "ckpt-notice-over", (reading.notice.node,), cause
                )
                continue
            recorded = self._recorded_notice(reading, reading.notice, machines)
            given = _given_by_file(reading, recorded)
            if given is None or not (given in self._given_at or _is_open(recorded, open_notices)):
                recorded_notices.append(recorded)
            if given is not None:
                given_at[given] = self._site.monotonic()
        new_notices = self._site.state.add_notices(*recorded_notices, now=self._site.now())
        # Only now: a notice that could not be written is read again, and is no repetition.
        self._given_at |= given_at
        if new_notices:
            reach("notice.after-record")
            # Only new notices: a cloud repeats a notice while it stands, which would prolong the
            # cool-down for ever.
            cool_down(self._site, new_notices)
            self._report_notices(new_notices, machines)
            self._wake()

    def _forget_given(self, readings: Sequence[SourceReading]) -> None:
        """Forget the notices that no file has given for a while, or that a file of the same name
        has withdrawn.
        """
        clock = self._site.monotonic()
        withdrawn = {_name_of(r.file) for r in readings if isinstance(r.order, WithdrawOrder)}
        self._given_at = {
            (name, notice): at
            for (name, notice), at in self._given_at.items()
            if clock - at < ENDED_AFTER_S and name not in withdrawn
        }

    def _forget_ended_notices(self, readings: Sequence[SourceReading]) -> None:
        """Forget the closed notices that the source gave as long as they stood, and no longer
        gives. A notice that a person withdrew stays withdrawn only until then. Otherwise the next
        maintenance of the same host would be no news.
        """
        given_notices = {(r.notice.instance, r.notice.kind) for r in readings if r.notice}
        clock = self._site.monotonic()
        missing_notices = {
            recorded.key: recorded
            for recorded in self._site.state.closed_standing_notices(self._source.name)
            if (recorded.notice.instance, recorded.notice.kind) not in given_notices
        }
        self._missing_since = {key: self._missing_since.get(key, clock) for key in missing_notices}
        ended_notices = [
            recorded
            for key, recorded in missing_notices.items()
            if clock - self._missing_since[key] > ENDED_AFTER_S
        ]
        if ended_notices:
            self._site.state.forget_notices(*ended_notices)

    def _is_of_earlier_machine(
        self, reading: SourceReading, notice: Notice, machines: Mapping[str, Machine]
    ) -> bool:
        """Whether an order names a node whose machine was launched after the order was given. Such
        an order waited while this service did not run, and the machine of that time has ended.
        """
        machine = newest_machine_of(notice.node, machines) if notice.node else None
        if machine is None or notice.instance or reading.given_at is None:
            return False
        # No machine counts as launched in the future: the clock of its cloud may be ahead of ours.
        launched_at = min(machine.instance.launched, self._site.now())
        return launched_at > reading.given_at + CLOUD_CLOCK_MARGIN_S

    def _recorded_notice(
        self, reading: SourceReading, notice: Notice, machines: Mapping[str, Machine]
    ) -> RecordedNotice:
        """The notice as it is stored."""
        # Name the machine now: a later machine of that node is not meant.
        if notice.node and not notice.instance:
            current_machine = newest_machine_of(notice.node, machines)
            notice = (
                replace(notice, instance=current_machine.instance.id) if current_machine else notice
            )
        machine = machines.get(notice.instance)
        is_standing = reading.announced == 0.0 and notice.deadline is None
        life_key = _life_key(machine) if is_standing else ""
        subject = life_key or notice.instance or f"node:{notice.node}"
        return RecordedNotice(
            key=f"{self._source.name}:{notice.kind}:{subject}:{_announcement_key(reading, notice)}",
            notice=notice,
            source=self._source.name,
            offer=machine.instance.offer_key if machine else "",
            is_standing=is_standing,
        )

    def _report_notices(
        self, new_notices: Sequence[RecordedNotice], machines: Mapping[str, Machine]
    ) -> None:
        now = self._site.now()
        for recorded in new_notices:
            notice = recorded.notice
            machine = machines.get(notice.instance)
            subject = machine.instance.node if machine else notice.node or notice.instance
            cause = NoticeArrived(
                notice=str(notice.kind), source=recorded.source, reason=notice.reason,
                left_s=None if notice.deadline is None else notice.deadline - now,
            )  # fmt: skip
            self._site.recorder.record("notices", "ckpt-notice", (subject,), cause)
            self._site.recorder.count("ckpt_notices_total", kind=str(notice.kind))


def _given_by_file(reading: SourceReading, recorded: RecordedNotice) -> tuple[str, Notice] | None:
    """The name and the notice of a file. An agent may write its file again every minute as long as
    its warning stands, also after a person withdrew the notice. None for a recommendation: a
    repeated one asks for another save.
    """
    if not reading.file or recorded.notice.kind is NoticeKind.REBALANCE:
        return None
    return _name_of(reading.file), replace(recorded.notice, seen=0.0)


def _name_of(file: str) -> str:
    """The name of a file without its version (``SourceReading.file``)."""
    return file.rsplit(":", 2)[0]


def _is_open(recorded: RecordedNotice, open_notices: Sequence[RecordedNotice]) -> bool:
    """Whether an open notice of the source says the same."""
    notice = recorded.notice
    return any(
        open_notice.source == recorded.source
        and replace(open_notice.notice, seen=notice.seen) == notice
        for open_notice in open_notices
    )


def _life_key(machine: Machine | None) -> str:
    """Key of the machine's current life. A machine that was stopped and started gets a new key, so
    that the same standing notice counts as a new one. Empty for other machines.
    """
    instance = machine.instance if machine and machine.first_launched_at is not None else None
    return f"{instance.id}:{instance.generation}" if instance else ""


def _announcement_key(reading: SourceReading, notice: Notice) -> str:
    """Key of one announcement: the same each time it is delivered, and different from all others of
    that machine. A queue may deliver a message twice, and a cloud repeats a notice as long as it
    stands. Another deadline, or another time of a recommendation, is news.
    """
    # A file that could not be removed is read again and is no new notice.
    if reading.file:
        return reading.file
    if notice.deadline is not None:
        return f"{notice.deadline:.0f}"
    return f"at {notice.seen if reading.announced is None else reading.announced:.0f}"
