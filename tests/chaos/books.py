"""The rules that every run keeps, counted per node and per machine ever made: no two machines for
one node, no limit passed, no orphan, no job lost, no cent unaccounted.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.model.cluster import OFF, Instance, LaunchSpec, Location, Market
from slurm_elastic.model.memory import PART, Launch, Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.policies.repair.cloud_view import Thresholds
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ledger import Ledger
from tests.chaos.drawn_jobs import NUMBERS
from tests.chaos.drawn_site import is_sold, spot_nodes
from tests.chaos.fakes import is_up, runs
from tests.controller.world import T0
from tests.oracle.prices import dearest_price

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

TOLD = 2
"""Lists with a machine that the ledger lacks: a round may be cut off before it is adopted."""
KEPT = "stopped:"
"""Before what is wrong with a stopped machine."""
LOOKED = 60.0
"""Seconds, at most, between a look at an image and the note that a job is to go on from it."""
JUST_UP = 10.0
"""Seconds, at most, between a look at a node and its change."""
NOTICED = 900.0
"""Seconds within which the end of a machine is in the ledger, once nothing is wrong any more."""


class Row(NamedTuple):
    """A machine by the ledger, or an earlier part of its life."""

    cloud: str
    price: float
    launched: float
    suspending: float | None
    ended: float | None
    stopped: float | None
    state: str

    @property
    def off(self) -> bool:
        """Whether the ledger has it stopped."""
        return self.stopped is not None and self.ended is None

    @property
    def doomed(self) -> bool:
        """Whether it serves nobody, and is not kept."""
        return self.ended is not None or (self.suspending is not None and self.stopped is None)


class Then(NamedTuple):
    """The ledger when a purchase or a start was decided: ids and open generations of what ran, ids
    of what was stopped.
    """

    running: set[str]
    stopped: set[str]


class Spell(NamedTuple):
    """A time (s of the run) in which a machine costs so much ($/h)."""

    begin: float
    end: float
    price: float


class Books:
    """``wrongs`` is what did not hold, as (kind, words)."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.wrongs: list[tuple[str, str]] = []
        self.jobs: set[int] = set()
        self.completed: set[int] = set()
        self.fallen: set[int] = set()
        self.off_spot: set[int] = set()  # drawn jobs that must not lose their machine
        self.machines: dict[str, Instance] = {}
        self.lost_at = float("-inf")
        self._only_in_memory: dict[str, float | None] = {}  # end by machine, at a kill
        self._given_up: set[str] = set()  # generations
        self._decided: dict[str, Then] = {}  # by generation; of a start, by machine
        self.decided_by: dict[str, Config] = {}  # by generation: the file of its purchase
        self._stormy: set[str] = set()  # generations that were decided while things went wrong
        self._strange: set[str] = set()  # somebody else has started these
        self._images: dict[tuple[int, int], int] = {}  # by job and attempt
        self._submitted: dict[int, float] = {}  # s of the run
        self.by_persons: set[str] = set()  # machines that nobody of ours has launched
        self.ever_unheard: set[str] = set()
        self.spared = 0
        self.counts: Counter[str] = Counter()
        self.dollars: Counter[str] = Counter()

    def wrong(self, kind: str, words: str) -> None:
        if not any(k == kind for k, _ in self.wrongs):
            self._stage.note(f"WRONG {kind}: {words}")
            self.wrongs.append((kind, f"at {self._stage.sched.now:.0f} s: {words}"))

    @property
    def _misses(self) -> int:
        """Lists in a row after which a machine that they lack has ended."""
        return Thresholds().max_missed_listings

    # jobs

    def submitted(self, job: int) -> None:
        """Under a number that another job may have had."""
        self.jobs.add(job)
        self._submitted[job] = self._stage.sched.now

    def forget_job(self, job: int) -> None:
        """slurmctld has lost it, and may give its number to another one."""
        for some in (self.jobs, self.completed, self.fallen):
            some.discard(job)
        self._images = {run: image for run, image in self._images.items() if run[0] != job}

    # the ledger, read beside the services

    def rows(self) -> tuple[dict[str, Row], set[str]] | None:
        """Its machines by id and its open generations; None where nobody can read it."""
        ledger = self._stage.ledger
        try:
            if ledger is not None:
                return _read(ledger.store._db)
            if self._stage.pair is not None:
                return None  # the view of the head that is to act is that of an older epoch
            path = self._stage.config.state / "ledger.db"
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.0) as db:
                found = _read(db)
            db.close()
        except sqlite3.Error:
            return None
        return found

    def _learnt(self) -> set[str]:
        """The clouds of which the ledger has had a whole list."""
        assert self._stage.ledger is not None
        execute = sqlite3.Connection.execute
        return {
            row[0] for row in execute(self._stage.ledger.store._db, "select cloud from read_whole")
        }

    def forgot(self, ledger: Ledger | None) -> None:
        """The daemon ends: what it only had in memory is lost, and it may not have taken in the
        last lists.
        """
        for cloud in self._stage.clouds.values():
            cloud.omitted |= cloud.before
        if ledger is not None and ledger.end_only:
            with contextlib.suppress(sqlite3.ProgrammingError):  # it was closed in good order
                rows, _ = _read(ledger.store._db)
                self._only_in_memory |= {id_: row.ended for id_, row in rows.items()}
            self.lose()

    def lose(self) -> None:
        """From now on the ledger may lack what was."""
        self.lost_at = self._stage.sched.now
        if self._stage.orders is not None:
            self._stage.orders.books.lose()
        for cloud in self._stage.clouds.values():
            cloud.listed.clear()

    # when a machine is made

    def made(self, new: Instance) -> None:
        stage = self._stage
        stage.note(f"{new.id} made for {new.node}")
        self.machines[new.id] = new
        found = self.rows()
        if found is None:
            return
        rows, opened = found
        if new.generation not in opened:
            self.wrong("bought without an intent", f"{new.id} for {new.node}")
        # A launch whose answer was lost in the storm is repeated with the same nodes. The start of
        # the stopped machine was refused before it.
        if stage.calm and new.generation not in self._stormy:
            self._look_for_stopped(new, rows)
        self._beside(new, self._decided.get(new.generation), rows, opened)

    def judge_market(self, spec: LaunchSpec) -> None:
        """No spot machine is bought for nodes that never have one, nor for a job that must not lose
        it, unless its pool buys nothing else.
        """
        # A reloaded configuration may be another one than that of the intent. A lost ledger forgets
        # for which jobs we have lifted --no-requeue.
        is_known = self._stage.orders is None and self.lost_at < 0
        if not is_known or all(offer.market is not Market.SPOT for offer in spec.offers):
            return
        pool = self._pool_of(spec.nodes[0])
        if never := [n for n in spec.nodes if n not in spot_nodes(pool)]:
            self.wrong("spot", f"a spot machine for {never} of {pool.name}")
        lost = [job for job in spec.jobs if job - job % NUMBERS in self.off_spot]
        if lost and len(pool.markets) > 1:
            self.wrong("spot", f"a spot machine for {spec.nodes} of jobs {lost}")

    def turned(self, one: Instance, *, runs: bool, strange: bool) -> None:
        """It was stopped, or started, in its cloud; ``strange``: by somebody else."""
        self._stage.note(f"{one.id} of {one.node} {'runs' if runs else 'is stopped'}")
        if strange:
            self._strange.add(one.id)
            return
        self.counts["started" if runs else "stopped"] += 1
        found = self.rows()
        if not runs or found is None:
            return
        rows, opened = found
        row = rows.get(one.id)
        if row is None or row.off or row.ended is not None:
            self.wrong("started without an intent", f"{one.id} for {one.node}")
        self._beside(one, self._decided.get(one.id), rows, opened)

    def runs_on(self, ids: Sequence[str]) -> None:
        """Their cloud has said that they are stopped, and they are not: as if somebody had started
        them.
        """
        self._strange.update(ids)

    def _beside(
        self, new: Instance, then: Then | None, rows: dict[str, Row], opened: set[str]
    ) -> None:
        """All that is there when a machine is made or started."""
        counted, kept = [new], []
        for other in self._stage.alive():
            if other.id == new.id:
                continue
            row = rows.get(other.id)
            known = other.generation in opened if row is None else row.ended is None
            if known:
                (kept if row is not None and row.off else counted).append(other)
            elif other.id in self.by_persons:
                continue
            elif runs(other) and not self._is_hidden(other, row):
                self.wrong("orphan", f"{other.id} of {other.node} is in no book at a purchase")
            if other.node == new.node and self._may_serve(other, row, known=known):
                self.wrong("double", f"{new.id} for {new.node}, which has {other.id}")
        if then is not None:
            there = [*counted, *kept]
            counted = [
                m
                for m in there
                if m is new or (m.id not in then.stopped and {m.id, m.generation} & then.running)
            ]
            kept = [m for m in there if m.id in then.stopped and m is not new]
        self._limits(counted, kept)

    def _may_serve(self, one: Instance, row: Row | None, *, known: bool) -> bool:
        """Whether it runs, or is to be started. One that the ledger has stopped runs only where
        somebody else has started it; one that was adopted while it is stopped is to be ended.
        """
        if row is not None and row.doomed:
            return False
        adopted_off = row is not None and row.state in OFF and one.id not in self._decided
        if row is not None and (row.off or adopted_off):
            return runs(one) and one.id not in self._strange
        return known or (runs(one) and not self._omitted(one))

    def _look_for_stopped(self, new: Instance, rows: dict[str, Row]) -> None:
        """Nothing is bought where a stopped machine could be started."""
        for other in self._stage.stopped():
            row = rows.get(other.id)
            listed = row is not None and row.off and row.state in OFF and not self._omitted(other)
            if other.node == new.node and listed and self._fits(other):
                self.wrong("bought", f"{new.id} for {new.node}, which has {other.id}, stopped")

    def _fits(self, stopped: Instance) -> bool:
        """Whether it may be started for certain."""
        stage = self._stage
        if not any(pool.max_stopped for pool in stage.config.pools):
            return False  # a site that keeps none any more ends those that are left
        pool = next(p for p in stage.config.pools if stopped.node in expand(p.nodes))
        account = stage.accounts[stopped.cloud]
        if Market.SPOT in pool.markets or account.images[stopped.id] != account.image:
            return False  # a spot machine may be had while the other offer cools down
        return pool.max_age is None or self._age(stopped.id)[1] + 120.0 < pool.max_age

    def _age(self, id_: str) -> tuple[float, float]:
        """By whatever clock it was launched, the least and the most that it is (s)."""
        skews = self._stage.skews
        age = self._stage.sched.now - (self.machines[id_].launched - T0)
        wrong_by = max(skews) - min(skews)
        return age - wrong_by, age + wrong_by

    def _is_hidden(self, one: Instance, row: Row | None) -> bool:
        """Nobody can know of it: its cloud has not listed it, often enough where it was known, or
        when its launch was given up. The first list that has it again may have been answered, and
        not be taken in.
        """
        cloud = self._stage.clouds[one.cloud]
        if row is not None:
            often = max(cloud.omitted[one.id], cloud.before[one.id]) >= self._misses
            hidden = often or row.suspending is not None
        else:
            made = self.machines[one.id].launched - T0  # it may have been started since
            lost = self.lost_at >= made and cloud.listed[one.id] < TOLD
            lacked = max(cloud.omitted[one.id], cloud.before[one.id]) > 0
            hidden = lost or (one.generation in self._given_up and lacked)
        self.spared += hidden
        return hidden

    def _omitted(self, one: Instance) -> bool:
        """By the last list of its cloud there was none."""
        return self._stage.clouds[one.cloud].omitted[one.id] > 0

    def _limits(self, machines: Sequence[Instance], off: Sequence[Instance]) -> None:
        """The machines that run, with the ``off`` ones that are stopped, keep all bounds."""
        config = self._stage.config
        public = {c.name for c in config.clouds if c.location is Location.PUBLIC}
        most = self._most("", "nodes", config.limits.nodes)
        if most is not None and len(machines) > most:
            self.wrong("limit", f"{len(machines)} machines, {most} may be")
        self._limits_of_scopes(machines)
        dollars = {
            name: sum(self._per_hour(m) for m in machines if m.cloud == name)
            + sum(self._disk_of(m) for m in off if m.cloud == name)
            for name in public
        }
        new = machines[0].cloud  # one that was found again may have passed a bound before this
        key = "dollars_per_hour"
        own = self._most(f"cloud:{new}", key, config.cloud(new).limits.dollars_per_hour)
        bounds = [(new, own, dollars.get(new, 0.0))]
        if new in public:
            bound = self._most("", key, config.limits.dollars_per_hour)
            bounds.append(("", bound, sum(dollars.values())))
        for name, bound, spent in bounds:
            # Of an adopted machine the worst price is not known for sure.
            if bound is not None and spent > bound + 1e-9 and self.lost_at < 0:
                self.wrong("limit", f"${spent:.2f}/h of {name or 'all'}, {bound} may be")

    def _most(self, scope: str, key: str, configured: float | None) -> float | None:
        """By the configuration, or by what an operator has ordered."""
        orders = self._stage.orders
        return configured if orders is None else orders.books.most(scope, key, configured)

    def _limits_of_scopes(self, machines: Sequence[Instance]) -> None:
        """Clouds and pools keep their own bounds. The machine that is new is the first of these: an
        adopted machine may have passed a bound before.
        """
        new, config = machines[0], self._stage.config
        pool, limits = self._pool_of(new.node), config.cloud(new.cloud).limits
        in_cloud = [m for m in machines if m.cloud == new.cloud]
        on_market = sum(m.market is new.market for m in in_cloud)
        in_pool = sum(self._pool_of(m.node).name == pool.name for m in machines)
        key = "spot" if new.market is Market.SPOT else "on_demand"
        market_bound = {Market.SPOT: limits.spot, Market.ON_DEMAND: limits.on_demand}
        cloud = f"cloud:{new.cloud}"
        for count, bound, what in (
            (len(in_cloud), self._most(cloud, "nodes", limits.nodes), f"machines in {new.cloud}"),
            (
                on_market,
                self._most(cloud, key, market_bound.get(new.market)),
                f"{new.market} machines in {new.cloud}",
            ),
            (
                in_pool,
                self._most(f"pool:{pool.name}", "max_nodes", pool.max_nodes),
                f"machines of {pool.name}",
            ),
        ):
            if bound is not None and count > bound and self.lost_at < 0:
                self.wrong("limit", f"{count} {what}, {bound} may be")

    def _pool_of(self, node: str) -> PoolSettings:
        return next(p for p in self._stage.config.pools if node in expand(p.nodes))

    def _per_hour(self, one: Instance) -> float:
        """What it counts for in a cap: its price on demand, as spot prices rise. A machine on a
        reservation counts with what it adds to that, which is not known here.
        """
        if one.reservation:
            return 0.0
        cloud = self._stage.config.cloud(one.cloud)
        is_bounded = self._pool_of(one.node).max_price is not None
        dearest = dearest_price(cloud, one.instance_type, one.market)
        return one.price if is_bounded else max(one.price, dearest)

    def _disk_of(self, one: Instance) -> float:
        """$/h of that machine while it is stopped."""
        return self._pool_of(one.node).stopped_price

    # when a purchase is decided

    def intended(self, real: Callable[..., None]) -> Callable[..., None]:
        """The ledger's ``record_intent``, with a look at what it has then: what is found later, as a list
        has it again, was in no count.
        """

        def intend(spec: LaunchSpec, request: str, now: float, *terms: Any) -> None:
            real(spec, request, now, *terms)
            self.decided_by.setdefault(spec.generation, self._stage.config)
            if spec.generation in self._decided:
                return
            if not self._stage.calm:
                self._stormy.add(spec.generation)
            if (cloud := spec.pool.cloud) not in self._learnt():
                self.wrong("bought unread", f"{spec.nodes}: the ledger never had what {cloud} has")
            if self._stage.orders is not None:
                self._stage.orders.books.intends(spec.nodes)
            found = self.rows()
            if found is not None:
                self._decided[spec.generation] = _then(*found)

        return intend

    def to_be_started(self, real: Callable[..., Machine | None]) -> Callable[..., Machine | None]:
        """The ledger's ``start``, in the same way."""

        def start(launch: Launch, machine: Machine, *rest: Any) -> Machine | None:
            begun = real(launch, machine, *rest)
            if begun is not None and self._stage.orders is not None:
                self._stage.orders.books.intends((machine.instance.node,))
            found = self.rows()
            if begun is not None and found is not None:
                self._decided[machine.instance.id] = _then(*found)
            return begun

        return start

    def refused(self, real: Callable[..., None]) -> Callable[..., None]:
        """The ledger's ``start_refused``: what runs all the same is not given up."""

        def start_refused(cloud: str, id_: str, price: float, why: str, now: float) -> None:
            if id_ in self.machines:
                self._judge(self.machines[id_], why)
            real(cloud, id_, price, why, now)

        return start_refused

    # when a job is to go on from an image

    def moving(self, real: Callable[..., None]) -> Callable[..., None]:
        """The ckptman's ``put``: an image that a move is to go on from is whole, unless it was
        spoilt since it was looked at.
        """

        def put(*moves: Migration, **more: Any) -> None:
            for move in moves:
                self._look_at(move)
            real(*moves, **more)

        return put

    def _look_at(self, move: Migration) -> None:
        run, image = move.run, move.image
        # A move that ends because its job is gone, or stays, goes on from no image.
        if move.step in (MigrationStep.ENDED, MigrationStep.STAYED):
            return
        if image is None or self._images.get((run.job, run.attempt)) == image.number:
            return
        self._images[run.job, run.attempt] = image.number
        now = self._stage.sched.now
        if self._stage.saver.taken[image.job, image.number] < self._submitted.get(run.job, 0.0):
            self.wrong("image of another job", f"job {run.job}: save {image.number} is older")
        if now - self._stage.saver.since.get((image.job, image.number), now) > LOOKED:
            self.wrong("spoilt image", f"job {run.job} is to go on from save {image.number}")

    # when an end is decided

    def watched(self, real: Callable[..., None]) -> Callable[..., None]:
        """The ledger's ``suspending`` or ``stopping``, with a look at each machine before it is
        doomed.
        """

        def suspending(cloud: str, ids: Sequence[str], why: str, now: float) -> None:
            found = self.rows()
            rows = found[0] if found else {}
            if self._stage.pair is not None:
                self._stage.pair.books.doom(ids)
            for id_ in ids:
                if id_ in self.machines and id_ in rows and rows[id_].suspending is None:
                    self._judge(self.machines[id_], why)
            real(cloud, ids, why, now)

        return suspending

    def given_up(self, real: Callable[..., None]) -> Callable[..., None]:
        """The ledger's ``failed``: a launch that has made machines is none that made nothing,
        unless a list of its cloud lacked them.
        """

        def failed(generation: str, error: str, now: float) -> None:
            for one in self._stage.alive():
                if one.generation == generation and not self._omitted(one):
                    self.wrong("launch given up", f"{one.id} of {one.node} is there: {error}")
            self._given_up.add(generation)
            real(generation, error, now)

        return failed

    def _judge(self, doomed: Instance, why: str) -> None:
        stage = self._stage
        doomed = next((i for i in stage.running() if i.id == doomed.id), doomed)
        where = phase(stage.slurm.node(doomed.node))
        others = [i for i in stage.machines_of(doomed.node) if i.id != doomed.id]
        down = where in (Phase.POWERING_DOWN, Phase.POWERED_DOWN)
        old = where is Phase.POWERING_UP and doomed.launched - T0 <= stage.asked(doomed.node)
        dead = doomed.id not in {i.id for i in stage.running()}
        # Nobody's order had it serve the node that just then powers up.
        strange = where is Phase.POWERING_UP and doomed.id in self._strange
        unseen = where is Phase.UP and self._came_up_unseen(doomed.node)
        if not (down or old or others or dead or strange or unseen):
            self.wrong("ended in use", f"{doomed.id} of {doomed.node} ({where}): {why}")

    def _came_up_unseen(self, node: str) -> bool:
        """Whether it came up after the thread that acts had read it for the last time, just now."""
        current, since = self._stage.sched.current, self._stage.since[node]
        return (
            since >= current.read_nodes.get(node, 0.0) and self._stage.sched.now - since <= JUST_UP
        )

    def judge_update(self, node: SlurmNode, state: str) -> None:
        """No job loses a machine that lives, unless its cloud has said often that it does not."""
        stage = self._stage
        if state.lower() not in ("down", "power_down_force") or not is_up(node):
            return
        works = {n for j in stage.slurm.queue().values() if "RUNNING" in j.states for n in j.nodes}
        for one in stage.machines_of(node.name):
            hidden = stage.clouds[one.cloud].omitted[one.id] >= self._misses
            excused = hidden or self._came_up_unseen(node.name) or one.id in self.ever_unheard
            if one.address == node.address and not excused and node.name in works:
                self.wrong("node given up", f"{node.name} is {state} while {one.id} serves it")

    def died(self, job: SlurmJob) -> None:
        """A job that may not be requeued has lost a node, whose cloud has not said often that its
        machine is gone.
        """
        stage = self._stage
        names = {
            i.node
            for i in stage.running()
            if i.address == stage.slurm.node(i.node).address
            and i.id not in self.ever_unheard
            and stage.clouds[i.cloud].omitted[i.id] < self._misses
        }
        if set(job.nodes) <= names and all(is_up(stage.slurm.node(n)) for n in job.nodes):
            self.wrong("job lost", f"{job.id} may not be requeued, and its machines live")
        self.fallen.add(job.id)

    # all the time

    def look(self) -> None:
        stage = self._stage
        if stage.pair is not None:
            stage.pair.books.look()
        for cloud, account in stage.accounts.items():
            if f"{cloud}-theirs" not in account.alive():
                self.wrong("somebody else's", f"{cloud}-theirs was ended")
        queue = stage.slurm.queue()
        gone = self.jobs - queue.keys() - self.completed - self.fallen
        if gone:
            self.wrong("job lost", f"{sorted(gone)}")

    # at the end

    def trouble(self, *, held: bool) -> str:
        """The first thing that is not at rest; empty if all is."""
        stage = self._stage
        if stage.ledger is None or stage.service is None:
            return "a service does not run"
        if stage.ledger.end_only:
            return stage.ledger.end_only
        for name in stage.nodes:
            node, machines = stage.slurm.node(name), stage.machines_of(name)
            where = phase(node)
            ours = node.reason.startswith("slurm-elastic:hold:")
            may_hold = held or (ours and not is_sold(stage.config, self._pool_of(name)))
            if "DOWN" in node.states or (is_drained(node) and not (may_hold and ours)):
                return f"{name} is out: {sorted(node.states)} {node.reason}"
            if where is not Phase.POWERED_DOWN or machines:
                return f"{name} is {where} with {[m.id for m in machines]}"
        return self._left()

    def _left(self) -> str:
        stage = self._stage
        found = self.rows()
        if found is None:
            return "the ledger cannot be read"
        rows, opened = found
        live = sorted(id_ for id_, row in rows.items() if row.ended is None and not row.off)
        if live or opened:
            return f"the ledger has {live} and open launches {sorted(opened)}"
        if wrongly := self._wrongly_kept(rows):
            return wrongly
        assert stage.service is not None
        moves = stage.service.site.state
        under_way = sqlite3.Connection.execute(
            moves._db, "select count(*) from migrations where not over"
        )
        if under_way.fetchone()[0]:
            return "a job is on its way still"
        return ""

    def _wrongly_kept(self, rows: dict[str, Row]) -> str:
        """Which stopped machine should not be there, or is not."""
        stopped = {i.id: i for i in self._stage.stopped()}
        for id_ in stopped:
            if id_ not in rows or not rows[id_].off:
                return f"{KEPT} {id_} is nobody's"
        if gone := sorted(id_ for id_, row in rows.items() if row.off and id_ not in stopped):
            return f"{KEPT} {gone} are gone, the ledger has them stopped"
        for pool in self._stage.config.pools:
            names = expand(pool.nodes)
            some = [i for i in stopped.values() if i.node in names]
            if len(some) > pool.max_stopped:
                return (
                    f"{KEPT} {[i.id for i in some]} of {pool.name}, which keeps {pool.max_stopped}"
                )
            for one in some:
                account = self._stage.accounts[one.cloud]
                old = pool.max_age is not None and self._age(one.id)[0] > pool.max_age
                if old or account.images[one.id] != account.image:
                    return f"{KEPT} {one.id} is {'too old' if old else 'of another image'}"
        return ""

    def settle(self, healed: float) -> None:
        """Compare what was paid with what the clouds ask for, machine by machine."""
        found = self.rows()
        if found is None:
            return
        skews = self._stage.skews
        wrong_by = max(skews) - min(skews)
        for id_, one in self.machines.items():
            ended = self._stage.accounts[one.cloud].ended.get(id_)
            if ended is None:
                self.wrong("orphan", f"{id_} of {one.node} lives when all is over")
                continue
            parts = [row for part, row in found[0].items() if part.partition(PART)[0] == id_]
            if len(parts) > 1 or len(self._stage.accounts[one.cloud].turns[id_]) > 1:
                self._settle_parts(one, ended, parts, healed, wrong_by)
            else:
                self._settle_one(one, ended, found[0].get(id_), healed, wrong_by)

    def _settle_parts(
        self, one: Instance, ended: float, parts: Sequence[Row], healed: float, wrong_by: float
    ) -> None:
        """Compare the costs of a machine that was stopped, and perhaps started, with the ledger's,
        at each moment.
        """
        turns = self._stage.accounts[one.cloud].turns[one.id]
        ends = [*(turn.at for turn in turns[1:]), ended]
        bill = [
            Spell(t.at, e, one.price if t.runs else self._disk_of(one))
            for t, e in zip(turns, ends, strict=True)
        ]
        book = [Spell(r.launched - T0, (r.ended or r.launched) - T0, r.price) for r in parts]
        self.dollars["billed"] += sum(s.price * (s.end - s.begin) for s in bill) / 3600
        self.dollars["charged"] += sum(s.price * (s.end - s.begin) for s in book) / 3600
        second = max(one.price, self._disk_of(one)) / 3600
        slack = second * (0.01 + wrong_by * (len(bill) + len(book)))
        known = min((s.begin for s in book), default=ended)
        until = max((s.end for s in book), default=ended)
        left = 0.0
        for begin, end, dollars in _lacking(bill, book):
            if end <= known and turns[0].at <= self.lost_at:
                self.dollars["of stopped machines, lost with a ledger"] += dollars
            elif one.id in self._strange:
                self.dollars["of machines that somebody else started"] += dollars
            elif begin >= until and parts and self._was_denied(one, parts[-1]):
                self.dollars["of machines that their cloud denied"] += dollars
            else:
                left += dollars
        if left > slack:
            self._unaccounted(one, left, f"it cost {bill}, the ledger has {book}")
        over = sum(dollars for _, _, dollars in _lacking(book, bill))
        late = max(healed - turns[0].at, 0.0) + NOTICED * len(turns)
        if over > slack + late * second:
            self._unaccounted(one, over, f"it cost {bill}, the ledger has as much as {book}")

    def _settle_one(
        self, one: Instance, ended: float, row: Row | None, healed: float, wrong_by: float
    ) -> None:
        second = one.price / 3600
        bill = second * (ended - (one.launched - T0))
        self.dollars["billed"] += bill
        if row is None:
            lost = one.launched - T0 <= self.lost_at
            if self._stage.clouds[one.cloud].listed[one.id] < TOLD:
                kind = "lost with a ledger, and soon gone" if lost else "of machines never listed"
                self.dollars[kind] += bill
            else:
                self._unaccounted(one, bill, "the ledger lacks it")
            return
        over = (row.ended or 0.0) - T0 - ended
        self.dollars["charged"] += row.price * ((row.ended or 0.0) - row.launched) / 3600
        if row.price != one.price or abs(row.launched - one.launched) > wrong_by + 1.0:
            self._unaccounted(one, bill, f"{row} is not as it was bought")
        elif over < -wrong_by - 0.001 and self._was_denied(one, row):
            self.dollars["of machines that their cloud denied"] -= over * second
        elif over < -wrong_by - 0.001 and self._memory_knew_longer(one, row, wrong_by):
            self.dollars["known only to a head that was killed without its disk"] -= over * second
        elif over < -wrong_by - 0.001:
            self._unaccounted(one, -over * second, f"it ended {-over:.0f} s later")
        elif over > wrong_by + max(healed - ended, 0.0) + NOTICED:
            self._unaccounted(one, over * second, f"it ended {over:.0f} s earlier")

    def _was_denied(self, one: Instance, row: Row) -> bool:
        """By as many lists as it takes to believe that it is gone: one after its end was
        decided. Or the cloud has said that it ended it, and never showed it again.
        """
        if one.id in self._stage.clouds[one.cloud].promised_ends:
            return True
        enough = 1 if row.suspending is not None else self._misses
        return self._stage.accounts[one.cloud].denied[one.id] >= enough

    def _memory_knew_longer(self, one: Instance, row: Row, wrong_by: float) -> bool:
        """Its cloud denied it and showed it again while the ledger's disk could not be used, and
        the head that saw it again was killed before the disk was back: nobody else can know the
        later end. The end in that head's memory must be right all the same.
        """
        if one.id not in self._only_in_memory or row.ended is None:
            return False
        in_memory = self._only_in_memory[one.id]
        ended = self._stage.accounts[one.cloud].ended[one.id]
        if in_memory is None:
            return row.ended - T0 <= self.lost_at
        return in_memory > row.ended and in_memory - T0 >= ended - wrong_by - 0.001

    def _unaccounted(self, one: Instance, dollars: float, why: str) -> None:
        self.dollars["unaccounted"] += dollars
        self.wrong("cents", f"{one.id} of {one.node}, ${dollars:.4f}: {why}")


def _then(rows: dict[str, Row], opened: set[str]) -> Then:
    running = {id_ for id_, row in rows.items() if row.ended is None and not row.off}
    return Then(running | opened, {id_ for id_, row in rows.items() if row.off})


def _lacking(some: Sequence[Spell], others: Sequence[Spell]) -> list[Spell]:
    """The times in which some cost more than the others, with how many dollars in all."""
    times = sorted({t for s in (*some, *others) for t in (s.begin, s.end)})
    found = []
    for begin, end in itertools.pairwise(times):
        more = sum(s.price for s in some if s.begin <= begin and end <= s.end)
        more -= sum(s.price for s in others if s.begin <= begin and end <= s.end)
        if more > 0:
            found.append(Spell(begin, end, more * (end - begin) / 3600))
    return found


def _read(db: Any) -> tuple[dict[str, Row], set[str]]:
    """As it is in the file, or in the memory that stands in for it, without anybody's turn."""
    execute = sqlite3.Connection.execute
    rows = execute(
        db, "select id, cloud, price, launched, suspending, ended, stopped, state from machines"
    ).fetchall()
    opened = execute(db, "select generation from launches where state = 'intent'").fetchall()
    return {row[0]: Row(*row[1:]) for row in map(tuple, rows)}, {row[0] for row in opened}
