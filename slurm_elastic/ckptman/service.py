"""The loop of slurm-elastic-ckptman: observe, decide, act; one look at a time."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from slurm_elastic.ckptman import migration
from slurm_elastic.ckptman.context import Site
from slurm_elastic.ckptman.decide import MOVE, NEVER, JobFacts, Plan, decide
from slurm_elastic.ckptman.executor import KeyedExecutor, Kind, Order
from slurm_elastic.ckptman.job_settings import CheckpointPlan, resolve
from slurm_elastic.ckptman.node_notices import (
    NodeThreat,
    close_over,
    settle_nodes,
    threats,
)
from slurm_elastic.ckptman.orders import Orders, save_now, take_back
from slurm_elastic.ckptman.requeue_failover import RequeueFailover
from slurm_elastic.ckptman.resume_watch import watch
from slurm_elastic.ckptman.saver import Saver
from slurm_elastic.ckptman.snapshot import Snapshot, gather, mean_times
from slurm_elastic.ckptman.tagged import Tagged
from slurm_elastic.ckptman.undrain import NodeReleases
from slurm_elastic.ckptstate import Migration, Step
from slurm_elastic.ckptstate.enduring import MEANS
from slurm_elastic.errors import SlurmElasticError, SlurmError
from slurm_elastic.faults import reach
from slurm_elastic.heartbeat import CKPTMAN, CKPTMAN_MARK, Mark, leave_mark
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Image
from slurm_elastic.model_slurm import SlurmJob, SlurmNode
from slurm_elastic.prices.book import PriceBook

log = logging.getLogger(__name__)

BEAT = 5.0
LEAST = 0.1
"""Seconds between two looks, however often we are woken."""
QUICK = 0.3
"""Seconds between two looks while a job is on its way."""
ECHO = 5.0
"""Seconds of the longest pause that follows from an event alone."""
PACE, QUICK_PACE = 20.0, 2.0
"""Reading the queue may take one part in so many and one of the time; more while a job is on its
way, as that waits for it.
"""
HISTORY = 30 * 86400.0
ANEW = 60.0
"""Seconds between two counts of interruptions, and of old rows to forget."""
Seen = Mapping[int, SlurmJob] | None
"""Slurm's jobs by number; None where it could not be asked."""


class Service:
    """Work in flight; all else is in the state, the ledger and Slurm. ``crew`` does the work."""

    def __init__(self, site: Site, crew: KeyedExecutor, prices: PriceBook | None = None) -> None:
        self.site = site
        self._crew = crew
        self._prices = prices
        self._saver = Saver(site)
        self._releases = NodeReleases(site)
        self._stand_in = RequeueFailover(site)
        self._wake = threading.Event()
        self._machines: Mapping[str, Machine] = {}
        self._mtti: Mapping[str, float] = {}
        self.orders = Orders(self._wake.set)
        self._next_beat = self._next_count = float("-inf")
        self._refused: dict[int, str] = {}
        self._trouble = self._blind = self._markless = ""
        self._tagged = Tagged(site)
        self._moving = False
        self._quiet = site.config.checkpoint.period
        self._helped: dict[int, float] = {}

    # from pollers' threads

    def machines(self) -> Mapping[str, Machine]:
        """The live machines by id; those of the last time while the ledger cannot be read."""
        try:
            self.site.ledger.refresh()
            self._machines = {m.instance.id: m for m in self.site.ledger.machines()}
            self._blind = ""
        except sqlite3.Error as error:
            if str(error) != self._blind:
                log.warning("the ledger cannot be read, machines are those of before: %s", error)
            self._blind = str(error)
            if not self._machines:
                self._machines = self._tagged.machines()
        return self._machines

    def wake(self) -> None:
        """There is news: look now."""
        self._wake.set()

    def happened(self) -> None:
        """Slurm has begun or ended something: look now, and soon again, as a prolog ends before its
        job runs and an epilog before its nodes are free.
        """
        self._quiet = QUICK / 2
        self._wake.set()

    # the loop

    def run(self) -> None:
        """Until the site stops; then wait for what is under way."""
        site = self.site
        pause = rest = 0.0
        try:
            while not site.stop.wait(rest):
                self._rest(pause)
                self._wake.clear()
                if site.stop.is_set():
                    break
                began = site.monotonic()
                self._guarded_tick()
                # Whatever wakes us how often: the jobs' own work comes first.
                rest = max(LEAST, site.monotonic() - began)
                pace = QUICK_PACE if self._moving else PACE
                pause = max(self._pause() - rest, pace * site.jobs.cost)
        finally:
            self._crew.close()
            site.journal.flush()

    def _rest(self, pause: float) -> None:
        """Until there is news or the pause is over; signs of life go on in a long one."""
        end = self.site.monotonic() + pause
        while (left := end - self.site.monotonic()) > 0:
            if self._wake.wait(min(left, BEAT)):
                return
            self._beat()

    def _pause(self) -> float:
        """Seconds until the next look: few while a job is on its way or right after an event, then
        twice as many each time, for some seconds.
        """
        period = self.site.config.checkpoint.period
        self._quiet *= 2
        if self._quiet > min(ECHO, period):
            self._quiet = period
        return QUICK if self._moving else self._quiet

    def stop(self) -> None:
        """End the loop."""
        self.site.stop.set()
        self._wake.set()

    def _guarded_tick(self) -> None:
        try:
            self.tick()
        except (sqlite3.Error, OSError) as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                log.error("the state directory cannot be used: %s", trouble)  # noqa: TRY400
            self._trouble = trouble
        except Exception:
            log.exception("a look fails; the next one starts anew")
        else:
            self._trouble = ""

    def tick(self) -> None:
        """One look."""
        site = self.site
        self._beat()
        machines = self.machines()
        take_back(site, self.orders, machines)
        warned = site.state.notices()
        migrations = site.state.migrations()
        found = threats(warned, machines)
        jobs = self._jobs()
        world = self._world(jobs, machines, found)
        save_now(
            world, self.orders, self._saver, self._crew, self._choice, answered=jobs is not None
        )
        view = self._view(found)
        plans = decide(self._facts(world, migrations), site.config.checkpoint.slack)
        begun = self._begin(plans, view, found)
        standing = {r.run.job: r for r in (*migrations, *begun)}
        self._moving = not all(r.put_off for r in standing.values())
        self._advance(standing.values(), jobs, found)
        if view is not None and not begun:  # else they were drained by an older view just now
            taken = frozenset(n for r in standing.values() for n in r.threatened if not r.over)
            settle_nodes(site, view, found, taken, machines.values())
        if not self._blind:  # else a machine that is not known may be there all the same
            close_over(site, warned, view, machines)
        self._releases.look(machines)
        if jobs is not None:
            self._stand_in.look(jobs)
            self._saver.clean(jobs, frozenset(standing), self._crew)
        site.journal.flush()

    def _beat(self) -> None:
        site, clock = self.site, self.site.monotonic()
        if clock >= self._next_beat:
            site.state.check()
            self._leave_mark()
            try:
                site.ledger.beat(CKPTMAN, site.now(), os.getpid())
            except sqlite3.Error as error:
                log.warning("no sign of life can be left: %s", error)
            self._next_beat = clock + BEAT
        if clock >= self._next_count:
            self._next_count = clock + ANEW
            site.state.refresh()
            self._count_anew()
            site.state.prune(site.now() - HISTORY)

    def _leave_mark(self) -> None:
        why, remedy, since = self.site.state.trouble
        mark = Mark(self.site.now(), os.getpid(), why, remedy, since, MEANS)
        try:
            leave_mark(self.site.config.state, mark, CKPTMAN_MARK)
        except OSError as error:
            if str(error) != self._markless:
                log.warning("no sign of life can be left in the state directory: %s", error)
            self._markless = str(error)

    def _count_anew(self) -> None:
        site, now = self.site, self.site.now()
        try:
            known = site.ledger.machines(ended_since=now - HISTORY)
        except sqlite3.Error:
            return
        self._mtti = mean_times(known, site.state.interruptions(now - HISTORY), now)

    # observe

    def _jobs(self) -> Seen:
        """None while Slurm does not answer: what was known of running jobs then still serves to
        save them, and nothing else is done.
        """
        try:
            jobs = self.site.jobs.read()
        except SlurmError as error:
            self.site.journal.health("slurm (ckptman)", str(error))
            return None
        self.site.journal.health("slurm (ckptman)", None)
        return jobs

    def _view(self, found: Mapping[str, NodeThreat]) -> Mapping[str, SlurmNode] | None:
        if not found:
            return {}
        try:
            return self.site.slurm.nodes(sorted(found))
        except SlurmError as error:
            log.warning("nodes cannot be read: %s", error)
            return None

    def _world(
        self,
        jobs: Mapping[int, SlurmJob] | None,
        machines: Mapping[str, Machine],
        found: Mapping[str, NodeThreat],
    ) -> Snapshot:
        site = self.site
        images: defaultdict[int, list[Image]] = defaultdict(list)
        for image in site.state.images():
            images[image.job].append(image)
        newest = sorted(machines.values(), key=lambda m: m.instance.launched)
        settings = site.config.checkpoint
        return Snapshot(
            now=site.now(),
            jobs=site.jobs.last if jobs is None else jobs,
            machines=machines,
            machine_of={m.instance.node: m for m in newest if m.instance.node},
            threats=found,
            images=images,
            prices=self._prices.prices() if self._prices else {},
            mtti=self._mtti,
            expected=settings.expected,
            bid=settings.prices.bid,
            leases=site.leases,
        )

    # decide

    def _facts(self, world: Snapshot, migrations: Sequence[Migration]) -> list[JobFacts]:
        """The facts of the jobs that are not on their way already."""
        moved = {(r.run.job, r.run.attempt) for r in migrations}
        facts = gather(world, self.site.pool_of.__contains__, self._choice)
        return [f for f in facts if (f.run.job, f.run.attempt) not in moved]

    def _choice(self, job: SlurmJob) -> CheckpointPlan:
        site = self.site
        pool = site.checkpoint_of(job.nodes[0] if job.nodes else "")
        choice = resolve(job.comment, job.features, pool, site.config.checkpoint)
        if choice.method not in ("none", *site.checkpointers):
            why = f"method {choice.method} cannot be used here: see the log of {CKPTMAN}'s start"
            choice = CheckpointPlan(method="none", policy=choice.policy, refused=why)
        if choice.refused and self._refused.get(job.id) != choice.refused:
            self._refused[job.id] = choice.refused
            subjects = (f"job:{job.id}",)
            site.journal.note(f"ckpt-{job.label}", "ckpt-refused", subjects, choice.refused)
        return choice

    # act

    def _begin(
        self,
        plans: Sequence[Plan],
        view: Mapping[str, SlurmNode] | None,
        found: Mapping[str, NodeThreat],
    ) -> list[Migration]:
        """All moves are written down at once, then all nodes drained at once, then jobs saved."""
        site = self.site
        moves = [
            migration.planned(site, p)
            for p in plans
            if p.kind == MOVE and not self._crew.busy(p.facts.run.job)
        ]
        if moves:
            site.state.put(*moves)
            reach("rescue.planned")
            for one in moves:
                migration.say(site, one, "ckpt-planned", one.reason)
            if view is not None:
                going = frozenset(n for r in moves for n in r.threatened)
                settle_nodes(site, view, found, going, self._machines.values())
            reach("rescue.drained")
        for plan in plans:
            if plan.kind != MOVE and self._saver.may(plan.facts.run.job):
                work = self._saver.work(plan)
                self._crew.submit(plan.facts.run.job, plan.order, work, kind=Kind.PERIODIC)
        return moves

    def _advance(
        self, migrations: Iterable[Migration], jobs: Seen, found: Mapping[str, NodeThreat]
    ) -> None:
        leaving = frozenset(node for node, threat in found.items() if threat.leaving)
        for row in sorted(migrations, key=_urgency):
            if self._crew.busy(row.run.job):
                continue
            # A look begins before the work of the last one ends: its view may be the older one.
            one = self.site.state.open_migration(row.run.job, row.run.attempt)
            if one is None:
                continue
            try:
                self._step(migration.hasten(self.site, one, found), jobs, leaving)
            except SlurmElasticError as error:
                log.warning("migration cannot go on job=%s error=%s", one.run.label, error)

    def _step(self, one: Migration, jobs: Seen, leaving: frozenset[str]) -> None:
        if jobs is not None and self._is_safe(one, leaving):
            self._stay(one, jobs)
        elif _due(one, self.site.now()):
            self._crew.submit(one.run.job, _urgency(one), partial(self._work, one))
        elif jobs is not None:
            self._watch(one, jobs.get(one.run.job))

    def _watch(self, one: Migration, job: SlurmJob | None) -> None:
        """Steps that take a Slurm command or a disk sync are the crew's, as there may be many."""
        if job is None or job.restarts <= one.run.attempt:
            watch(self.site, one, job)
        elif self.site.jobs.knows(self._helped.get(job.id, float("-inf"))):
            self._crew.submit(job.id, _urgency(one), partial(self._help, one, job))

    def _help(self, one: Migration, job: SlurmJob) -> None:
        if watch(self.site, one, job).over:
            self._helped.pop(job.id, None)
        else:  # a list from before says nothing of what was done now
            self._helped[job.id] = self.site.jobs.mark()

    def _work(self, one: Migration) -> None:
        if migration.go_on(self.site, one).step is not one.step:
            self.wake()

    def _is_safe(self, one: Migration, leaving: frozenset[str]) -> bool:
        """Nothing threatens its nodes any more, and their machines are still there."""
        if one.step is not Step.WAITING or not leaving.isdisjoint(one.threatened):
            return False
        alive = {m.instance.node for m in self._machines.values()}
        return all(n in alive or n not in self.site.pool_of for n in one.threatened)

    def _stay(self, one: Migration, jobs: Mapping[int, SlurmJob]) -> None:
        after = watch(self.site, one, jobs.get(one.run.job))
        if after.step is Step.WAITING:
            why = "no notice stands against its nodes any more"
            migration.over(self.site, one, Step.STAYED, why)


def _urgency(move: Migration) -> Order:
    return (NEVER if move.deadline is None else move.deadline, move.began)


def _due(move: Migration, now: float) -> bool:
    """Whether there is something to do for it now, besides watching."""
    if move.step is Step.WAITING:
        return move.at is not None and now >= move.at
    if move.step in (Step.SAVED, Step.REQUEUEING):
        return move.at is None or now >= move.at
    return move.step in (Step.PLANNED, Step.SAVING)
