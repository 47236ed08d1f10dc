"""The ledger: slurm-elasticd's memory of launches, machines, costs and decisions.

Its facts are in ``<state_dir>/journal/``. Its view is ``<state_dir>/ledger.db`` (see ``store``)
with the tables below. Times are Unix seconds, prices dollars per hour, lists and offers JSON::

    launches           one row per launch call, written before the call; kept until 40 days after
                       the end of its last machine, without machines until 2 days after its
                       failure; a day after the answer only one offer remains
      generation (key), request (correlation id), pool, cloud, nodes, jobs,
      offer (or a list of several), state intent|done|failed, created, finished, error, accounts,
      owner, recipe, least (model.LaunchSpec), terms (by instance type: model.memory.PurchaseTerms)
    machines           one row per instance with its costs, kept until 400 days after its end
      cloud and id (key), node, generation, instance_type, zone, market, price, state, launched,
      address, pool, jobs, last_seen, misses, suspending, ended, cause, worst_price, registered,
      accounts (who pays it: policies.money.account_budgets), stopping, stopped, born (``stops``),
      tunnel_key, reservation, and what the configuration said when it was bought:
      billing_increment, disk_price, on_demand_price, list_price
    exclusions         kind and scope (key), until, cause, code, count, since, pool, about:
                       offers, pools and nodes that must not be used now (model.Exclusion);
                       cool-downs stay for a while after their end
    directives         number (key), word, who, since, starts, until, reason: operators' directives
    wanted_by          node (key), accounts, at: who pays for its next machine (``books``)
    reservations       cloud, name and begins (key), ends, terms, removed: reservations that have
                       begun, until 400 days after their end (policies.money.recorded_reservations)
    changed_jobs       job (key), identity, own, latest, before, answered, wishes, overruled: jobs
                       with changed partitions, begin time or hold (model.changed_jobs)
    growth_purchases   first_node and at (key), open, came_up, unused, jobs: machines that a growth
                       policy started, until each was used or was not (``growth_guard``)
    unhelped_jobs      job (key), asks, since, nodes, reason, strikes: during a pause growth does
                       not count these jobs
    runs               job and begin (key), end, label, user, uid, account, partition, shares
                       ([nodes, millionths of a node] each): who used the machines; 400 days
    drains             node and begin (key), end: when nodes of machines took no jobs; 400 days
    counters           name (key), value: sums over all time, named ``name{label="value"}`` as in
                       Prometheus
    settled            what (key), at: the time up to which the counters include machines and jobs,
                       the last number that a directive got, the time that deletions count from
    told               key (key), at: the messages that people were sent
    tunnels            generation and node (key), address, key, since: the public keys of machines,
                       until the machines end
    copies             job, restarts and node (key), machine, uid, directory, outputs, state, since,
                       reason: files of jobs on machines without a shared file system
    lifted_requeues    job (key), restarts, at: --no-requeue jobs that may be requeued once
    decisions          id, at, correlation, kind, subjects, cause, detail
    decision_subjects  subject, decision: the look-up by node or ``job:ID``
    heartbeats         service (key), at, pid; this table and ``health`` are in no journal
    health             name (key), checked, error, code
    owner              what (key), knows_since, origin, host, accepted: the head that the journal
                       belongs to (``owner``)
    read_whole         cloud (key), at: clouds whose machines were all read once and entered here
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct

from slurm_elastic.model.directive import Directive
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.memory import Decision, Drained, Health, Launch, Machine
from slurm_elastic.policies.launch.exclusions import STRIKES_KEPT
from slurm_elastic.state.ledger import (
    copies,
    directives,
    exclusions,
    growth_guard,
    health,
    launches,
    machines,
    owner,
    requeues,
    retention,
    schema,
    tunnels,
    usage,
)
from slurm_elastic.state.ledger.books import BookRows
from slurm_elastic.state.ledger.changed_jobs import ChangedJobRows
from slurm_elastic.state.ledger.copies import CopyRows
from slurm_elastic.state.ledger.decisions import Decisions
from slurm_elastic.state.ledger.directives import Directives
from slurm_elastic.state.ledger.exclusions import Exclusions
from slurm_elastic.state.ledger.growth_guard import GrowthGuard
from slurm_elastic.state.ledger.health import ServiceHealth
from slurm_elastic.state.ledger.launches import Launches
from slurm_elastic.state.ledger.machines import Machines
from slurm_elastic.state.ledger.owner import OwnerRow
from slurm_elastic.state.ledger.requeues import LiftedRequeues
from slurm_elastic.state.ledger.stops import StopRows
from slurm_elastic.state.ledger.tunnels import TunnelRows
from slurm_elastic.state.ledger.usage import UsageRows
from slurm_elastic.state.store.disk import Disk, Elsewhere
from slurm_elastic.state.store.endurance import Endurance, Refuge
from slurm_elastic.state.store.shared_journal import journal_of
from slurm_elastic.state.store.store import Reader, Store
from slurm_elastic.state.store.trouble import TroubleKind

__all__ = ["Decision", "Health", "Launch", "Ledger", "LedgerState", "Machine"]


END_ONLY = "end-only"
_MEANS = "no machine starts, unneeded machines still end"
COMPACTED = 10_000
"""Launches that one call of ``Ledger.compact`` shortens."""
_CONCERNS = (
    launches, machines, exclusions, directives, growth_guard, requeues, usage, tunnels, copies,
    health, owner,
)  # fmt: skip
_TABLES = {name: table for part in _CONCERNS for name, table in part.TABLES.items()}


class LedgerState(Struct, frozen=True, kw_only=True):
    """Live machines, open launches, exclusions, the clouds of which a complete list was recorded,
    operators' directives, open spans of drain, and ``stopped`` machines. ``lifted``: whether any
    ``--no-requeue`` job may be requeued. ``writable``: whether the files can be written.
    """

    machines: tuple[Machine, ...]
    launches: tuple[Launch, ...]
    exclusions: tuple[Exclusion, ...]
    read_whole: frozenset[str]
    writable: bool
    directives: tuple[Directive, ...]
    lifted: bool
    drains: tuple[Drained, ...]
    stopped: tuple[Machine, ...] = ()


class Condition(Struct, frozen=True, kw_only=True):
    """``end_only``: why no machine may be bought, "" if machines may be bought. ``remedy``: a
    sentence for the administrator. ``since``: Unix time.
    """

    end_only: str = ""
    remedy: str = ""
    since: float = 0.0
    is_disk_full: bool = False


SOUND = Condition()


class Ledger:
    """Each attribute reads and writes the rows of one concern: ``launches``, ``machines``,
    ``stops`` (machines that are stopped and started again), ``exclusions``, ``directives``,
    ``decisions``, ``books``, ``changed_jobs``, ``growth_guard``, ``usage``, ``requeues``,
    ``tunnels``, ``copies``, ``health``, ``owner``.

    Each method is one transaction. sqlite3.Error passes through, because a service that cannot
    remember a purchase must not buy. Safe for several threads and processes (busy time-out 10 s).

    ``read_only`` needs no right to write in the directory, creates no file, and raises
    SlurmElasticError if there is no ledger. Do not keep such a reader open for long.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        home = Reader if read_only else Disk
        self._begin(path, home(path, schema.LEDGER))

    def _begin(self, path: Path, home: Disk | Elsewhere | Refuge | Reader) -> None:
        self._path = path
        self.store = store = Store(home, schema.LEDGER, tables=_TABLES)
        self.usage = UsageRows(store)
        self.books = BookRows(store)
        self.changed_jobs = ChangedJobRows(store)
        self.growth_guard = GrowthGuard(store)
        self.decisions = Decisions(store)
        self.exclusions = Exclusions(store, self.usage)
        self.directives = Directives(store)
        self.requeues = LiftedRequeues(store)
        self.tunnels = TunnelRows(store)
        self.copies = CopyRows(store)
        self.health = ServiceHealth(store)
        self.owner = OwnerRow(store, self.exclusions)
        require_only = self.owner.require_only
        self.launches = Launches(store, self.books, lambda: self.condition.end_only, require_only)
        # The rows in memory may lack machines that the files have. So after a start without files
        # only a cloud that this process has listed counts as read: see ``enduring``.
        clouds_read = () if isinstance(home, Refuge) else None
        self.machines = Machines(store, self.launches, clouds_read)
        self.stops = StopRows(store, self.machines, self.books, lambda: self.end_only, require_only)

    @classmethod
    def enduring(
        cls,
        path: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Ledger:
        """The ledger of slurm-elasticd. While its files cannot be used it keeps rows in memory and
        allows no purchases (end-only).

        The daemon adopts machines whose rows cannot be read by their tags, as with a new ledger.
        The daemon therefore still repairs, suspends and releases nodes. Only
        ``launches.record_intent`` and ``stops.record_start`` refuse. The caller must call ``check``
        periodically.
        """
        ledger = cls.__new__(cls)
        ledger._begin(
            path, Refuge(path, schema.LEDGER, Endurance(END_ONLY, _MEANS, now, monotonic))
        )
        return ledger

    @classmethod
    def followed(cls, path: Path) -> Ledger:
        """The daemon's ledger as slurm-elastic-ckptman uses it. A call raises sqlite3.Error while
        there is no ledger; a later call tries to open it again.
        """
        ledger = cls.__new__(cls)
        ledger._begin(path, Elsewhere(path, schema.LEDGER))
        # The first read raises ConfigError at once if a later release wrote this ledger. A ledger
        # that does not exist yet is no error, because slurm-elasticd may create it later.
        with contextlib.suppress(sqlite3.Error):
            ledger.store.select("select 1")
        return ledger

    @property
    def condition(self) -> Condition:
        """Why no machine may be bought while the files cannot be used."""
        trouble = self.store.trouble
        if trouble is None:
            return SOUND
        reason = f"{END_ONLY}: {trouble.text}"
        return Condition(
            end_only=reason,
            remedy=trouble.remedy,
            since=self.store.trouble_since,
            is_disk_full=trouble.kind is TroubleKind.FULL,
        )

    @property
    def end_only(self) -> str:
        """Why no machine may be bought; "" if machines may be bought."""
        return self.condition.end_only

    def journal_origin(self) -> str:
        """The random id of this ledger's journal, which a restored journal does not share with its
        backup; "" if the journal cannot be read.
        """
        with contextlib.suppress(OSError):
            return journal_of(self._path).newest_head().origin
        return ""

    def check(self) -> Condition:
        """Check the files, and switch to memory or back: see ``enduring``."""
        self.store.look_after()
        return self.condition

    def give_up(self, error: Exception) -> None:
        """Continue in memory after the files failed with ``error``, if this ledger can
        (``enduring``).
        """
        self.store.give_up(error)

    def close(self) -> None:
        """Close the files; closing twice is no error."""
        self.store.close()

    def refresh(self) -> None:
        """Read the rows that other processes have written since: the first step of a round."""
        self.store.refresh()

    def together(self) -> AbstractContextManager[object]:
        """Several writes of this thread as one transaction: after a crash all of them are kept, or
        none.
        """
        return self.store.transaction(None)

    def moment(self) -> AbstractContextManager[None]:
        """Inside this context all reads see the rows of one moment. Writes raise RuntimeError."""
        return self.store.moment()

    def state(self) -> LedgerState:
        """All rows that a round decides by, as of one moment. A launch answered at this moment is
        either open or has its machines, and a cloud in ``read_whole`` has all its machines here.
        """
        # One lock around both reads: ``read_whole`` must not name a cloud whose machines another
        # thread entered after the machines were read.
        with self.store.lock:
            (
                open_launches,
                paid_machines,
                excluded,
                operator_directives,
                lifted,
                drains,
                complete,
            ) = self.store.tables(
                "launches", "machines", "exclusions", "directives", "lifted", "drains", "complete"
            )
            read_whole = self.machines.trusted_clouds(complete)
        return LedgerState(
            machines=tuple(m for m in paid_machines if not m.is_off),
            launches=open_launches,
            exclusions=excluded,
            read_whole=read_whole,
            writable=not self.condition.end_only,
            directives=operator_directives,
            lifted=bool(lifted),
            drains=drains,
            stopped=tuple(m for m in paid_machines if m.is_off),
        )

    def record_time(self, now: float) -> float:
        """Advance the record's own time towards ``now`` (Unix s), and return it. Deletions count
        from it: see ``retention.advance_record_time``.
        """
        with self.store.transaction(None) as db:
            record_time = retention.advance_record_time(db, now)
            self.store.change(
                "insert or replace into settled (what, at) values (?, ?)",
                retention.RECORD_TIME,
                record_time,
            )
            return record_time

    def recorded_time(self) -> float | None:
        """The record's own time (Unix s), for deletions by ckptman; None before the first one."""
        rows = self.store.select("select at from settled where what = ?", retention.RECORD_TIME)
        return float(rows[0]["at"]) if rows else None

    def prune(self, before: float) -> int:
        """Delete decisions and long-ended cool-downs from before that time; return the number of
        decisions.

        Launches and machines stay, because they are the account of costs: see ``compact``.
        """
        with self.store.transaction("exclusions") as db:
            kind_and_end = (str(COOL_DOWN), before - STRIKES_KEPT)
            db.execute("delete from exclusions where kind = ? and until < ?", kind_and_end)
            return db.execute("delete from decisions where at < ?", (before,)).rowcount

    def compact(self, now: float) -> None:
        """Shorten launches that finished a day ago or failed an hour ago, delete the rows that
        ``retention`` names, and begin a new journal segment if the current one is too long. A long
        backlog takes several calls.
        """
        # These deletions are not in the journal. The next segment lacks the rows, and a view that
        # is rebuilt before that has them until the next call.
        with self.store.transaction("machines", "launches") as db:
            retention.forget(db, now)
        # Short transactions, because other writers wait for each of them.
        for _ in range(COMPACTED // retention.LAUNCHES_PER_TRANSACTION):
            with self.store.transaction(None) as db:
                shortened = retention.shorten(db, now)
            if shortened < retention.LAUNCHES_PER_TRANSACTION:
                break
        self.store.shorten()
