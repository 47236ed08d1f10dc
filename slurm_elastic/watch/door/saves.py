"""Saves that people order: who may order one, how often, and how the ledger records it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.audit_trail import job_subject
from slurm_elastic.state.ckptstate.orders import DROPS, SaveOrder, drop
from slurm_elastic.state.heartbeat import CKPTMAN
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.store.shared_journal import is_there
from slurm_elastic.state.store.trouble import trouble_of
from slurm_elastic.watch.view.job_saves import choice_of, how

MAX_SAVES, SPAN_S = 10, 600.0
"""A user may order this many saves in this time (s): each stops its job for a moment, and takes
the network and the disks of others.
"""
REPEAT_S = 60.0
"""A job is not saved again by order within this time (s)."""


class Saver(Struct, frozen=True, kw_only=True):
    """The user who orders a save. ``name`` is recorded. ``is_trusted``: root or
    SlurmUser, who may save all jobs, as often as they want.
    """

    uid: int
    name: str
    is_trusted: bool = False


class SaveLimit:
    """Counts the saves that users ordered, for one server. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_orders")}

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._orders: deque[tuple[float, int, int]] = deque()  # (time, uid, job), oldest first

    def take(self, saver: Saver, job: int) -> None:
        """Count a save. SlurmElasticError if the user ordered too many, or just saved this job."""
        now = self._now()
        with self._lock:
            self._check(saver, job, now)
            self._orders.append((now, saver.uid, job))

    def _check(self, saver: Saver, job: int, now: float) -> None:
        while self._orders and not now - SPAN_S < self._orders[0][0] <= now:
            self._orders.popleft()
        own_times = [at for at, uid, _ in self._orders if uid == saver.uid]
        last = max((at for at, _, number in self._orders if number == job), default=None)
        if saver.is_trusted:
            return
        if last is not None and now - last < REPEAT_S:
            wait_text = brief(max(REPEAT_S - (now - last), 1.0))
            raise SlurmElasticError(f"job {job} was just ordered to be saved: wait {wait_text}")
        if len(own_times) >= MAX_SAVES:
            wait_text = brief(max(own_times[0] + SPAN_S - now, 1.0))
            raise SlurmElasticError(
                f"you ordered {len(own_times)} saves in {brief(SPAN_S)}, the most that a user may: "
                f"wait {wait_text}"
            )


def save_now(
    config: Config,
    jobs: Iterable[SlurmJob],
    number: int,
    saver: Saver,
    now: float,
    limit: SaveLimit | None = None,
) -> tuple[str, ...]:
    """Order a save of a running job; ``jobs``: all jobs of Slurm. Returns lines about the order.

    SlurmElasticError if the user may not save the job, or if it cannot be saved.
    """
    job = next((job for job in jobs if job.id == number), None)
    require_savable(config, number, job, saver)
    if limit is not None:
        limit.take(saver, number)
    _record(config, number, saver, now)
    _drop(config, SaveOrder(job=number, who=saver.name), now)
    return (f"{CKPTMAN} is asked to save job {number}; see: slurm-elastic ckpt explain {number}",)


def require_savable(config: Config, number: int, job: SlurmJob | None, saver: Saver) -> SlurmJob:
    """The job that Slurm has under this number. SlurmElasticError if the user may not save it, or
    if it cannot be saved.
    """
    if not saver.is_trusted and (job is None or job.uid != saver.uid):
        # The same sentence for jobs of others and for no job: PrivateData may hide them.
        raise SlurmElasticError(
            f"job {number} is not your job: only its owner, root and {config.slurm.user} may save "
            "it"
        )
    if job is None or not ("RUNNING" in job.states or job.is_suspended_by_person):
        raise SlurmElasticError(f"job {number} is not running")
    # A save resumes the job, and the job itself decides how long its save takes. Its owner may not
    # undo by that what Slurm lets only an operator undo.
    if job.is_suspended and not saver.is_trusted:
        raise SlurmElasticError(
            f"job {number} is suspended, and a save resumes it: only root and {config.slurm.user} "
            "may order that"
        )
    choice = choice_of(config, job)
    if choice.method == "none":
        raise SlurmElasticError(f"job {number} {how(choice)}")
    if choice.move_only:
        raise SlurmElasticError(f"job {number} is not saved now: it {how(choice)}")
    return job


def _record(config: Config, number: int, saver: Saver, now: float) -> None:
    """Record who asked. This comes before the order, because slurm-elastic-ckptman may
    not run now.
    """
    path = config.state / "ledger.db"
    if not is_there(path):  # slurm-elastic-ckptman may run alone
        return
    decision = Decision(
        at=now, correlation="ckpt-now", kind="ckpt-ordered", subjects=(job_subject(number),),
        cause=Quoted(text=f"{saver.name} asks to save the job now"),
    )  # fmt: skip
    try:
        with contextlib.closing(Ledger(path)) as ledger:
            ledger.decisions.record(decision)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger: {trouble_of(error, path)}") from error


def _drop(config: Config, order: SaveOrder, now: float) -> None:
    place = config.state / DROPS
    try:
        drop(place, order, now)
    except FileNotFoundError:
        raise SlurmElasticError(f"{CKPTMAN} has never run: {place} does not exist") from None
