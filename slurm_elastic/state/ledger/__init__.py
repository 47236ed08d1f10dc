"""The memory of what was intended, launched, paid and decided.

Its facts are in ``<state_dir>/journal/``, its view is ``<state_dir>/ledger.db`` (see ``store``)
with these tables; points in time are Unix seconds, prices dollars an hour, lists and offers JSON::

    launches           one launch call a row, written before the call; kept until 40 days after the
                       end of its last machine, with one offer from a day after its answer on
      generation (key), request (correlation id), pool, cloud, nodes, jobs,
      offer (or a list of several), state intent|done|failed, created, finished, error, accounts,
      owner, recipe
    machines           one instance a row, until 400 days after its end: what was paid
      cloud and id (key), node, generation, instance_type, zone, market, price, state, launched,
      address, pool, jobs, last_seen, misses, suspending, ended, why, worst_price, registered,
      accounts (who pays it: policies.account_budgets), stopping, stopped, born (``stops``)
    exclusions         kind and scope (key), until, cause, code, count, since, pool, about: what is
                       not to be used now (model.Exclusion); cool-downs are kept a while after it
    directives         number (key), word, who, since, starts, until, reason: operators' words
    wanted_by          node (key), accounts, at: for whom its next machine is started (``books``)
    set_aside          job (key), account, partitions, begin, until: kept from public clouds
                       (``deferred``)
    growth_purchases   first_node and at (key), open, came_up, unused, jobs: machines that a growth
                       policy started, until each was used or not (``growth_guard``)
    unhelped_jobs      job (key), asks, since, nodes, reason, strikes: growth does not count these
                       for a pause
    runs               job and begin (key), end, label, user, uid, account, partition, shares
                       ([nodes, millionths of one] each): who used the machines; 400 days
    drains             node and begin (key), end: when nodes of machines took no jobs; 400 days
    counters           name (key), value: sums over all time, ``name{label="value"}`` as Prometheus
                       has them; ``settled`` up to when they have what machines and jobs came to,
                       and which directive's number was the last
    told               key (key), at: what people were told of
    tunnels            generation and node (key), address, key, since: machines whose public key is
                       believed, until they end
    lifted_requeues    job (key), restarts, at: --no-requeue jobs that may be requeued once
    decisions          id, at, correlation, kind, subjects, reason, detail
    decision_subjects  subject, decision: the look-up by node or ``job:ID``
    heartbeats         service (key), at, pid; these two are of the moment, and in no journal
    health             name (key), checked, error, code
    read_whole         cloud (key), at: its machines were all read once and are in the ledger
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
    directives,
    exclusions,
    growth_guard,
    health,
    launches,
    machines,
    requeues,
    retention,
    schema,
    tunnels,
    usage,
)
from slurm_elastic.state.ledger.books import Books
from slurm_elastic.state.ledger.decisions import Decisions
from slurm_elastic.state.ledger.deferred import DeferredJobs
from slurm_elastic.state.ledger.directives import Directives
from slurm_elastic.state.ledger.exclusions import Exclusions
from slurm_elastic.state.ledger.growth_guard import GrowthGuard
from slurm_elastic.state.ledger.health import ServiceHealth
from slurm_elastic.state.ledger.launches import Launches
from slurm_elastic.state.ledger.machines import Machines
from slurm_elastic.state.ledger.requeues import Requeues
from slurm_elastic.state.ledger.stops import Stops
from slurm_elastic.state.ledger.tunnels import Tunnels
from slurm_elastic.state.ledger.usage import Usage
from slurm_elastic.state.store.disk import Disk, Elsewhere
from slurm_elastic.state.store.endurance import Endurance, Refuge
from slurm_elastic.state.store.store import Reader, Store
from slurm_elastic.state.store.trouble import Kind

__all__ = ["Decision", "Health", "Launch", "Ledger", "LedgerState", "Machine"]


END_ONLY = "end-only"
_MEANS = "nothing is bought, what Slurm has powered down is ended"
COMPACTED = 10_000
"""Launches that one call of ``Ledger.compact`` shortens."""
_CONCERNS = (
    launches, machines, exclusions, directives, growth_guard, requeues, usage, tunnels, health,
)  # fmt: skip
_TABLES = {name: table for part in _CONCERNS for name, table in part.TABLES.items()}


class LedgerState(Struct, frozen=True, kw_only=True):
    """Live machines, open launches, exclusions, the clouds of which a list was taken in, operators'
    directives, spans of drain that go on, and ``stopped`` machines. ``lifted``: whether any job's
    requeue is; ``writable``: whether the file can be written.
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
    """Why nothing may be bought, "" where nothing is in the way; the remedy, for a person; and
    since when (Unix time).
    """

    end_only: str = ""
    remedy: str = ""
    since: float = 0.0
    is_disk_full: bool = False


SOUND = Condition()


class Ledger:
    """What it remembers is asked and written by concern: ``launches``, ``machines`` and ``stops``
    (those that are stopped and started), ``exclusions``, ``directives``, ``decisions``, ``books``,
    ``deferred``, ``growth_guard``, ``usage``, ``requeues``, ``tunnels``, ``health``.

    All methods are one transaction each. sqlite3.Error passes through: who cannot remember must
    not spend. Safe for several threads and processes (busy time-out 10 s).

    ``read_only`` needs no right to write in the directory, makes nothing, and raises
    SlurmElasticError where there is no ledger. Such a reader should not be kept open for long.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        home = Reader if read_only else Disk
        self._begin(home(path, schema.LEDGER))

    def _begin(self, home: Disk | Elsewhere | Refuge | Reader) -> None:
        self.store = store = Store(home, schema.LEDGER, tables=_TABLES)
        # Of no single concern. ``together``: several writes of a thread are all kept, or none.
        self.usage = Usage(store)
        self.books = Books(store)
        self.deferred = DeferredJobs(store)
        self.growth_guard = GrowthGuard(store)
        self.decisions = Decisions(store)
        self.exclusions = Exclusions(store, self.usage)
        self.directives = Directives(store)
        self.requeues = Requeues(store)
        self.tunnels = Tunnels(store)
        self.health = ServiceHealth(store)
        self.launches = Launches(store, self.books, lambda: self.condition.end_only)
        # In memory only what this process has read of a cloud counts: see ``enduring``.
        read = () if isinstance(home, Refuge) else None
        self.machines = Machines(store, self.launches, read)
        self.stops = Stops(store, self.machines, self.books, lambda: self.end_only)

    @classmethod
    def enduring(
        cls,
        path: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Ledger:
        """The daemon's, which goes on in memory while its files cannot be used: end-only.

        Rows that cannot be read are found again by the machines' tags, as with any new ledger. So
        the daemon repairs, suspends and gives nodes back as ever. Only ``launches.intend`` and
        ``stops.start`` refuse. ``check`` is to be called again and again.
        """
        made = cls.__new__(cls)
        made._begin(Refuge(path, schema.LEDGER, Endurance(END_ONLY, _MEANS, now, monotonic)))
        return made

    @classmethod
    def followed(cls, path: Path) -> Ledger:
        """The daemon's as the other service has it: sqlite3.Error where there is none at the
        moment; a later call looks again.
        """
        made = cls.__new__(cls)
        made._begin(Elsewhere(path, schema.LEDGER))
        # A first look, for the ConfigError of a later release's ledger: one that is not there may
        # come.
        with contextlib.suppress(sqlite3.Error):
            made.store.select("select 1")
        return made

    @property
    def condition(self) -> Condition:
        """Why machines are only ended, while the files cannot be used."""
        trouble = self.store.trouble
        if trouble is None:
            return SOUND
        why = f"{END_ONLY}: {trouble.what}"
        return Condition(
            end_only=why,
            remedy=trouble.remedy,
            since=self.store.trouble_since,
            is_disk_full=trouble.kind is Kind.FULL,
        )

    @property
    def end_only(self) -> str:
        """Why nothing may be bought; empty where nothing is in the way."""
        return self.condition.end_only

    def check(self) -> Condition:
        """Look after the files: see ``enduring``."""
        self.store.look_after()
        return self.condition

    def give_up(self, error: Exception) -> None:
        """The files have failed with ``error``: go on in memory, where this ledger does that."""
        self.store.give_up(error)

    def close(self) -> None:
        """Close the files; closing twice is no error."""
        self.store.close()

    def refresh(self) -> None:
        """Take in what other processes have written since: the first step of a pass."""
        self.store.refresh()

    def together(self) -> AbstractContextManager[object]:
        """Several writes of this thread as one transaction: all of them, or none after a crash."""
        return self.store.transaction(None)

    def moment(self) -> AbstractContextManager[None]:
        """Around reads that belong together: all are as of one moment. Nothing may be written."""
        return self.store.moment()

    def state(self) -> LedgerState:
        """All that passes go by, as of one moment: a launch that is answered now is open or has
        machines, and a cloud that is read whole has all its machines here.
        """
        with self.store.lock:
            opened, paid, excluded, words, lifted, drains, complete = self.store.tables(
                "launches", "machines", "exclusions", "directives", "lifted", "drains", "complete"
            )
            read_whole = self.machines.believed(complete)
        return LedgerState(
            machines=tuple(m for m in paid if not m.is_off),
            launches=opened,
            exclusions=excluded,
            read_whole=read_whole,
            writable=not self.condition.end_only,
            directives=words,
            lifted=bool(lifted),
            drains=drains,
            stopped=tuple(m for m in paid if m.is_off),
        )

    def prune(self, before: float) -> int:
        """Forget decisions and long-over cool-downs from before that time; how many decisions.

        Launches and machines stay, as what was paid: see ``compact``.
        """
        with self.store.transaction("exclusions") as db:
            old = (str(COOL_DOWN), before - STRIKES_KEPT)
            db.execute("delete from exclusions where kind = ? and until < ?", old)
            return db.execute("delete from decisions where at < ?", (before,)).rowcount

    def compact(self, now: float) -> None:
        """Keep launches that finished a day ago short, forget what ``retention`` says, and have the
        journal no longer than it has to be. A long backlog takes several calls.
        """
        with self.store.transaction("machines", "launches") as db:
            retention.forget(db, now)
        for _ in range(COMPACTED // retention.PART):
            with self.store.transaction(None) as db:
                done = retention.shorten(db, now)
            if done < retention.PART:
                break
        self.store.shorten()
