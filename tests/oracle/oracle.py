"""Judges a run of ``tests.chaos`` from outside, while it goes on and at its end."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.errors import SlurmElasticError
from tests.oracle import calm, jobs, money, screens
from tests.oracle.ends import Ends
from tests.oracle.meter import Meter, overspent
from tests.oracle.moment import MovedError, still

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

MOMENTS = (150.0, 330.0, 560.0)
"""Seconds of a run around which the screens are read."""
READ, CALM = 0.34, 0.2
"""The shares of all runs whose screens are read, and that have a calm hour after their end."""
PROBE = 60.0
"""Seconds that a job of the calm hour lasts."""
PROBES = 900_001
"""The number of the first of these jobs."""
STEP = 30.0


class Oracle:
    """``look`` at each step of a run, ``rest`` at each step after the last fault, ``settle`` when
    nothing is left to be done.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        chance = random.Random(f"{stage.seed} oracle")
        self._reads, self._has_calm_hour = chance.random() < READ, chance.random() < CALM
        self._moments = [at + chance.uniform(0.0, 120.0) for at in MOMENTS]
        self._starts = jobs.Starts(stage)
        self._meter = Meter(stage)
        self._ends = Ends(stage)
        self._errors = calm.ErrorLines()
        self._probes: list[int] = []
        for account in stage.accounts.values():
            account.start = self._bought(account.start)  # type: ignore[method-assign]
        stage.slurm._requeue = self._requeued(stage.slurm._requeue)  # type: ignore[method-assign]

    def close(self) -> None:
        self._errors.close()

    def _wrong(self, kind: str, found: Iterator[str]) -> None:
        for words in found:
            self._stage.books.wrong(kind, words)

    # what happens in a run

    def _bought(self, real: Callable[..., str]) -> Callable[..., str]:
        def start(spec: Any, offer: Any, node: str, *rest: Any) -> str:
            stage = self._stage
            if words := jobs.paid_for_nobody(stage, node, spec.jobs):
                stage.books.wrong("paid for nobody", words)
            if words := self._ends.not_awaited(node):
                stage.books.wrong("paid for nobody", words)
            if words := overspent(stage, offer.cloud):
                stage.books.wrong("limit", f"a machine for {node} is bought, and {words}")
            id_ = real(spec, offer, node, *rest)
            self._meter.buys(id_, spec.generation, node, offer.instance_type)
            return id_

        return start

    def _requeued(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def requeue(job: Any) -> None:
            stage = self._stage
            is_judged = job.requeue and job.id != stage.slurm.user_requeues
            if is_judged and (words := jobs.lost_progress(stage, job, stage.books._misses)):
                stage.books.wrong("progress lost", words)
            real(job)

        return requeue

    # the screens

    def look(self) -> None:
        self._wrong("orphan", self._ends.look())
        if self._reads and self._moments and self._stage.sched.now >= self._moments[0]:
            self._moments.pop(0)
            self._read_screens()

    def _read_screens(self) -> None:
        """All screens of this moment, if the records can be read."""
        stage = self._stage
        stage.books.counts["moments"] += 1
        with self._moment() as now:
            said = screens.answers_of(stage.config, stage.slurm, now)
            # status and mine do not agree yet which jobs never start because of an order.
            judges = stage.orders is None
            self._wrong("screens", screens.wrongs(stage.config, said, judges_stuck=judges))

    @contextmanager
    def _moment(self) -> Iterator[float]:
        stage = self._stage
        wrongs = len(stage.books.wrongs)
        try:
            with still(stage) as now:
                yield now
        except (MovedError, SlurmElasticError, sqlite3.Error, OSError) as error:
            stage.books.counts["unread"] += 1
            stage.note(f"the moment cannot be read: {type(error).__name__}")
            del stage.books.wrongs[wrongs:]

    # the end

    def rest(self) -> None:
        self._wrong("not started", self._starts.look())

    def settle(self, healed: float) -> None:
        stage = self._stage
        with self._moment() as now:
            # A clock that is behind has machines of the future, which cost nothing yet.
            late = now + max(stage.skews) - min(stage.skews) + money.HOUR
            self._wrong("money", money.wrongs(stage.config, late))
            machines = money.record_of(stage.config, late).machines
            self._wrong("money", self._meter.wrongs(machines, healed))
        if self._has_calm_hour and not stage.books.wrongs:
            self._calm_hour(healed)

    def _calm_hour(self, healed: float) -> None:
        """Users come once more, and an hour after the last fault all is as if nothing had been."""
        stage = self._stage
        stage.books.counts["calm"] += 1
        for cloud in sorted(stage.clouds):
            among = tuple(jobs.sold_nodes(stage, cloud))
            if among:
                number = PROBES + len(self._probes)
                self._probes.append(number)
                stage.submit(number, among, 1, PROBE, requeue=True)
        self._errors.counts.clear()
        until = max(healed + calm.HOUR, stage.sched.now + calm.HOUR / 2)
        while stage.sched.now < until and not stage.books.wrongs and not stage.sched.errors:
            stage.advance(STEP, step=STEP)
            self.rest()
        if stage.books.wrongs:
            return
        if left := sorted(set(self._probes) - stage.books.completed):
            stage.books.wrong("not started", f"jobs {left} of a calm hour are not done")
        with self._moment() as now:
            self._wrong("not calm", calm.wrongs(stage, now, self._errors.counts))
