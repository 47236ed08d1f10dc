"""The wishes of people and agents that are no notice: from when a source tells one until it was
carried out. Only then is it acknowledged there, so that whoever starts after a crash is told it
once more. A withdrawal that fails by an exception waits on; a save that was tried is done with, and
the journal says what became of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct

from slurm_elastic.ckptman.context import Site
from slurm_elastic.ckptman.decide import JobFacts, Plan
from slurm_elastic.ckptman.executor import KeyedExecutor, Kind
from slurm_elastic.ckptman.job_settings import CheckpointPlan
from slurm_elastic.ckptman.node_notices import withdraw
from slurm_elastic.ckptman.saver import Saver
from slurm_elastic.ckptman.snapshot import Snapshot, dump_seconds, run_of
from slurm_elastic.ckptman.sources import AnyOrder, SaveOrder, WithdrawOrder
from slurm_elastic.ledger import Machine
from slurm_elastic.model_slurm import SlurmJob


class Asked(Struct, frozen=True):
    """An order, and the handle that its source knows it by; that may be used again for another."""

    handle: str
    order: AnyOrder


class Orders:
    """Safe for several threads: pollers tell, the loop takes, the crew carries out. ``woken`` is
    called when there is a new one.
    """

    def __init__(self, woken: Callable[[], None]) -> None:
        self._woken = woken
        self._lock = threading.Lock()
        self._waiting: dict[Asked, None] = {}
        self._begun: set[Asked] = set()
        self._carried: set[Asked] = set()

    def tell(self, asked: Asked) -> bool:
        """Take it in, however often it is told; whether it was carried out by now."""
        with self._lock:
            if asked in self._carried:
                return True
            if asked in self._waiting or asked in self._begun:
                return False
            self._waiting[asked] = None
        self._woken()
        return False

    def waiting(self) -> list[Asked]:
        """The orders for which nothing was done yet, in the order in which they came."""
        with self._lock:
            return list(self._waiting)

    def begun(self, asked: Asked) -> None:
        """It is under way."""
        with self._lock:
            self._waiting.pop(asked, None)
            self._begun.add(asked)

    def carried(self, asked: Asked) -> None:
        """It was carried out, or refused."""
        with self._lock:
            self._waiting.pop(asked, None)
            self._begun.discard(asked)
            self._carried.add(asked)

    def forget(self, done: Iterable[Asked]) -> None:
        """Their source does not tell them any more."""
        with self._lock:
            self._carried.difference_update(done)


def take_back(site: Site, orders: Orders, machines: Mapping[str, Machine]) -> None:
    """End the notices that are withdrawn."""
    for asked in orders.waiting():
        if isinstance(asked.order, WithdrawOrder):
            withdraw(site, asked.order.node, machines)
            orders.carried(asked)


def save_now(
    world: Snapshot,
    orders: Orders,
    saver: Saver,
    crew: KeyedExecutor,
    choose: Callable[[SlurmJob], CheckpointPlan],
    *,
    answered: bool,
) -> None:
    """Have the jobs saved that are asked for; one that something is under way for, after that, and
    one that is not known before Slurm has ``answered`` for this look, when it does.
    """
    for asked in orders.waiting():
        if not isinstance(asked.order, SaveOrder) or crew.busy(asked.order.job):
            continue
        number = asked.order.job
        job = world.jobs.get(number)
        if job is None and not answered:
            continue
        choice = choose(job) if job and "RUNNING" in job.states else None
        why = _why_not(choice)
        if job is None or choice is None or why:
            saver.refuse(number, why)
            orders.carried(asked)
            continue
        facts = JobFacts(run=run_of(job, choice), choice=choice, situations=())
        plan = Plan(kind="save", facts=facts, saves=True, reason="an operator asked for it")
        saver.expect(number, dump_seconds(world, number))
        orders.begun(asked)
        work = partial(_save, orders, asked, saver.work(plan))
        crew.submit(number, (0.0, 0.0), work, kind=Kind.PERIODIC)


def _save(orders: Orders, asked: Asked, save: Callable[[], None]) -> None:
    try:
        save()
    finally:
        orders.carried(asked)


def _why_not(choice: CheckpointPlan | None) -> str:
    """Why a job is not saved now, if so; None: it is not at work."""
    if choice is None:
        return "it does not run"
    if choice.move_only:
        return choice.refused or "it ends when it saves itself: that is only done to move it"
    if choice.method == "none":
        return choice.refused or "no checkpoint method is set for it"
    return ""
