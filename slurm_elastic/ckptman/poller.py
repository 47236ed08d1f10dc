"""A source of notices is read again and again; what it tells is kept before it is told so."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.faults import reach
from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.base.units import brief
from slurm_elastic.ckptman.nodes import cool_down, newest_machine_of
from slurm_elastic.ckptman.orders import Orders, ReceivedOrder
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.sources import NoticeSource, SourceReading
from slurm_elastic.model.cluster import Notice
from slurm_elastic.state.ckptstate.facts import RecordedNotice
from slurm_elastic.state.ckptstate.orders import NoticeOrder, WithdrawOrder
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


MAX_PAUSE_S = 60.0


class Poller(PeriodicThread):
    """``machines`` gives the live machines by id, for ids that must be among them; ``woken`` is
    called when there is news; every order that is no notice is for ``orders``.
    """

    def __init__(
        self,
        site: CheckpointSite,
        source: NoticeSource,
        every: float,
        machines: Callable[[Collection[str]], Mapping[str, Machine]],
        woken: Callable[[], None],
        orders: Orders,
    ) -> None:
        retry = Backoff(2 * max(every, 1.0), MAX_PAUSE_S)
        task = PeriodicTask(
            source.name, self.poll, every, retry=retry, first_in_s=every, clock=site.monotonic
        )
        super().__init__(task, site.stop)
        self._site, self._source = site, source
        self._machines, self._woken, self._orders = machines, woken, orders

    def poll(self) -> bool:
        """Read once; say whether that went well. News is kept before the source is told so."""
        site = self._site
        try:
            told, carried = self._sort(self._source.read(site.now()))
            try:
                if carried:
                    self._source.done([asked.handle for asked in carried])
                    self._orders.forget(carried)
            finally:  # an order that cannot be acknowledged keeps nothing from being heard
                self._take_in(told)
            if handles := [t.handle for t in told if t.handle]:
                self._source.done(handles)
        except sqlite3.Error as error:
            log.error("notices cannot be kept, they stay where they are: %s", error)  # noqa: TRY400
            return False
        except Exception as error:  # noqa: BLE001 - whatever a source raises, the others go on
            site.recorder.report_failure(self._source.name, error)
            return False
        site.recorder.report_health(self._source.name, None)
        return True

    def _sort(
        self, told: Sequence[SourceReading]
    ) -> tuple[list[SourceReading], list[ReceivedOrder]]:
        """The notices, and the orders that were carried out."""
        rest: list[SourceReading] = []
        carried: list[ReceivedOrder] = []
        taken_back: set[str] = set()
        for one in told:
            order = one.order
            if order is None or isinstance(order, NoticeOrder):
                # A person's word after a withdrawal waits until that was carried out, which would
                # take it back, too.
                if order is None or order.node not in taken_back:
                    rest.append(one)
            elif self._orders.receive(asked := ReceivedOrder(one.handle, order)):
                carried.append(asked)
            elif isinstance(order, WithdrawOrder):
                taken_back.add(order.node)
        return rest, carried

    def _take_in(self, told: Sequence[SourceReading]) -> None:
        for one in told:
            if one.wrong:
                log.warning("passed over source=%s: %s", self._source.name, one.wrong)
        notices = [one.notice for one in told if one.notice]
        if not notices:
            return
        machines = self._machines([one.instance for one in notices])
        warned = [self._warned(t, t.notice, machines) for t in told if t.notice is not None]
        if fresh := self._site.state.add_notices(*warned, now=self._site.now()):
            reach("notice.after-record")
            cool_down(self._site, fresh)
            self._tell(fresh, machines)
            self._woken()

    def _warned(
        self, told: SourceReading, notice: Notice, machines: Mapping[str, Machine]
    ) -> RecordedNotice:
        """The notice as it is kept."""
        # At once: the next machine of that node is not meant.
        if notice.node and not notice.instance:
            found = newest_machine_of(notice.node, machines)
            notice = replace(notice, instance=found.instance.id) if found else notice
        machine = machines.get(notice.instance)
        subject = _life_key(told, machine) or notice.instance or f"node:{notice.node}"
        return RecordedNotice(
            key=f"{self._source.name}:{notice.kind}:{subject}:{_announcement_key(told, notice)}",
            notice=notice,
            source=self._source.name,
            offer=machine.instance.offer_key if machine else "",
        )

    def _tell(self, fresh: Sequence[RecordedNotice], machines: Mapping[str, Machine]) -> None:
        now = self._site.now()
        for one in fresh:
            notice = one.notice
            left = "" if notice.deadline is None else f", {brief(notice.deadline - now)} left"
            machine = machines.get(notice.instance)
            subject = machine.instance.node if machine else notice.node or notice.instance
            text = notice.reason or f"{notice.kind} notice from {one.source}"
            self._site.recorder.record("notices", "ckpt-notice", (subject,), f"{text}{left}")
            self._site.recorder.count("ckpt_notices_total", kind=str(notice.kind))


def _life_key(told: SourceReading, machine: Machine | None) -> str:
    """The machine and its launch, of one that was stopped since and started: what a cloud told of
    it before, as long as that stood, is over, and the same word is news now.
    """
    one = machine.instance if machine and machine.born is not None else None
    stands = told.announced == 0.0 and told.notice is not None and told.notice.deadline is None
    return f"{one.id}:{one.generation}" if one and stands else ""


def _announcement_key(told: SourceReading, notice: Notice) -> str:
    """The key that is the same whenever one announcement is told, and of no other of that machine:
    a queue delivers a message twice, a cloud tells a notice as long as it stands; but another
    deadline, or another time of a recommendation, is news.
    """
    if told.order is not None:
        return os.path.basename(told.handle)
    if notice.deadline is not None:
        return f"{notice.deadline:.0f}"
    return f"at {notice.seen if told.announced is None else told.announced:.0f}"
