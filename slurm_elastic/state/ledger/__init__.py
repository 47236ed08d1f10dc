"""The memory of what was intended, launched, paid and decided: one sqlite file in WAL mode.

``<state_dir>/ledger.db``, made and migrated by ``store`` from ``schema``; points in time are Unix
seconds, prices dollars an hour, lists and offers JSON::

    launches           one launch call a row, written before the call; kept until 40 days after the
                       end of its last machine, with one offer from a day after its answer on
      generation (key), request (correlation id), pool, cloud, nodes, jobs,
      offer (or a list of several), state intent|done|failed, created, finished, error, accounts,
      owner, recipe
    machines           one instance a row, until 400 days after its end: what was paid
      cloud and id (key), node, generation, instance_type, zone, market, price, state, launched,
      address, pool, jobs, last_seen, misses, suspending, ended, why, worst_price, registered,
      accounts (who pays it: policies.account_budgets), stopping, stopped, born (ledger.stopped)
    exclusions         kind and scope (key), until, cause, code, count, since, pool, about: what is
                       not to be used now (model.Exclusion); cool-downs are kept a while after it
    directives         number (key), word, who, since, starts, until, reason: operators' words
    wanted_by          node (key), accounts, at: for whom its next machine is started
    set_aside          job (key), account, partitions, begin, until: kept from public clouds
    runs               job and begin (key), end, label, user, uid, account, partition, shares
                       ([nodes, millionths of one] each): who used the machines; 400 days
    drains             node and begin (key), end: when nodes of machines took no jobs; 400 days
    counters           name (key), value: sums over all time, ``name{label="value"}`` as Prometheus
                       has them; ``settled`` up to when they have what machines and jobs came to
    told               key (key), at: what people were told of
    tunnels            generation and node (key), address, key, since: machines whose public key is
                       believed, until they end
    lifted_requeues    job (key), restarts, at: --no-requeue jobs that may be requeued once
    decisions          id, at, correlation, kind, subjects, reason, detail
    decision_subjects  subject, decision: the look-up by node or ``job:ID``
    heartbeats         service (key), at, pid
    health             name (key), checked, error, code
    read_whole         cloud (key), at: its machines were all read once and are in the ledger
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import astuple

from slurm_elastic.model.cluster import COOL_DOWN, Exclusion
from slurm_elastic.model.directive import Directive
from slurm_elastic.model.memory import Decision, Drained, Health, Launch, Machine
from slurm_elastic.policies.launch.exclusions import STRIKES_KEPT
from slurm_elastic.state.ledger import retention
from slurm_elastic.state.ledger import schema as ledger_schema
from slurm_elastic.state.ledger.machine_rows import launch_from, machine_from
from slurm_elastic.state.ledger.machines import BY_TIME, NOT_ENDED, OPEN
from slurm_elastic.state.ledger.mark_rows import (
    directive_from,
    drained_from,
    exclusion_from,
    run_from,
)
from slurm_elastic.state.ledger.marks import EXCLUSION_COLUMNS, RUN_COLUMNS
from slurm_elastic.state.ledger.stopped import StoppedMachines
from slurm_elastic.state.ledger.tunnels import TUNNELS, Tunnels, tunnel_from
from slurm_elastic.state.store.files import open_reader, open_writer
from slurm_elastic.state.store.store import Table

__all__ = ["Decision", "Health", "Launch", "Ledger", "LedgerState", "Machine"]


COMPACTED = 10_000
"""Launches that one call of ``Ledger.compact`` shortens."""
NO_NEWS = 60.0
"""Seconds for which an answer of a cloud or of Slurm that did not change is not written anew."""


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


SOUND = Condition()


def health_from(row: sqlite3.Row) -> Health:
    return Health(name=row[0], checked=row[1], error=row[2], code=row[3])


class Ledger(StoppedMachines, Tunnels):
    """All methods are one transaction each. sqlite3.Error passes through: a daemon that cannot
    remember must not spend. Safe for several threads and processes (busy time-out 10 s).

    ``read_only`` needs no right to write in the directory, makes nothing, and raises
    SlurmElasticError where there is no ledger. Such a reader should not be kept open for long.
    ``condition`` says why nothing may be bought, and since when: see ``state.ledger.enduring``.
    """

    TABLES: ClassVar[Mapping[str, Table]] = {
        "launches": (OPEN, launch_from),
        "machines": (f"{NOT_ENDED} {BY_TIME}", machine_from),
        "exclusions": (
            f"select {EXCLUSION_COLUMNS} from exclusions order by scope, kind desc",
            exclusion_from,
        ),
        "complete": ("select cloud from read_whole", itemgetter(0)),
        "directives": ("select * from directives order by number", directive_from),
        "lifted": ("select job, restarts, at from lifted_requeues order by job", tuple),
        "drains": (
            "select node, begin, end from drains where end is null order by node",
            drained_from,
        ),
        "tunnels": (TUNNELS, tunnel_from),
        "health": ("select name, checked, error, code from health order by name", health_from),
        "runs": (
            f"select {RUN_COLUMNS} from runs where end is null order by begin, job",
            run_from,
        ),
    }

    @property
    def condition(self) -> Condition:
        """Sound: this ledger fails where its file does."""
        return SOUND

    @property
    def end_only(self) -> str:
        """Why nothing may be bought; empty where nothing is in the way."""
        return self.condition.end_only

    def check(self) -> Condition:
        """Look after the file: nothing is done about it here."""
        return SOUND

    def give_up(self, error: Exception) -> None:
        """The file has failed with ``error``: nothing is done about it here."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        opened = open_reader if read_only else open_writer
        super().__init__(opened(path, ledger_schema.LEDGER))

    def state(self) -> LedgerState:
        """All that passes go by, as of one moment."""
        # Launches first, as another process may write meanwhile.
        launches, machines, exclusions, complete, directives, lifted, drains = self._tables(
            "launches", "machines", "exclusions", "complete", "directives", "lifted", "drains"
        )
        return LedgerState(
            machines=tuple(m for m in machines if m.stopped is None),
            launches=launches,
            exclusions=exclusions,
            read_whole=self._read_whole(complete),
            writable=not self.condition.end_only,
            directives=directives,
            lifted=bool(lifted),
            drains=drains,
            stopped=tuple(m for m in machines if m.stopped is not None),
        )

    # heartbeat, health

    def beat(self, service: str, now: float, pid: int) -> None:
        """Sign of life of a service."""
        sql = "insert or replace into heartbeats (service, at, pid) values (?, ?, ?)"
        self._put(None, sql, service, now, pid)

    def heartbeat(self, service: str) -> tuple[float, int] | None:
        """The service's last sign of life: when, and its process id."""
        rows = self._select("select at, pid from heartbeats where service = ?", service)
        return (float(rows[0]["at"]), int(rows[0]["pid"])) if rows else None

    def report_health(self, *healths: Health) -> None:
        """How clouds or ``slurm`` answered just now; what one said a moment ago is no news."""
        with self._lock:
            known = {h.name: h for h in self.health()}
            news = [h for h in healths if _is_news(known.get(h.name), h)]
            if not news:
                return
            values = ", ".join(["(?, ?, ?, ?)"] * len(news))
            sql = f"insert or replace into health (name, checked, error, code) values {values}"
            after = known | {h.name: h for h in news}
            rows = tuple(after[name] for name in sorted(after))
            self._put("health", sql, *(value for h in news for value in astuple(h)), rows=rows)

    def health(self) -> tuple[Health, ...]:
        """The last answer of each cloud and of ``slurm``, by name."""
        return self._tables("health")[0]

    def read_whole(self, cloud: str, now: float) -> None:
        """A complete read of ``cloud`` was taken in, its unknown machines adopted."""
        sql = "insert or ignore into read_whole (cloud, at) values (?, ?)"
        self._put("complete", sql, cloud, now)

    def clouds_read(self) -> frozenset[str]:
        """The clouds whose machines are all in the ledger. A cloud that a new ledger lacks, or that
        is new itself, may have machines of ours.
        """
        return self._read_whole(self._tables("complete")[0])

    def _read_whole(self, complete: Sequence[str]) -> frozenset[str]:
        return frozenset(complete)

    def prune(self, before: float) -> int:
        """Forget decisions and long-over cool-downs from before that time; how many decisions.

        Launches and machines stay, as what was paid: see ``compact``.
        """
        with self._transaction("exclusions") as db:
            old = (COOL_DOWN, before - STRIKES_KEPT)
            db.execute("delete from exclusions where kind = ? and until < ?", old)
            db.execute(
                "delete from decision_subjects where decision in "
                "(select id from decisions where at < ?)",
                (before,),
            )
            return db.execute("delete from decisions where at < ?", (before,)).rowcount

    def compact(self, now: float) -> None:
        """Keep launches that finished a day ago short, forget what ``retention`` says, and give
        room back to the disk while no launch is open. A long backlog takes several calls.
        """
        with self._transaction("machines", "launches") as db:
            retention.forget(db, now)
        for _ in range(COMPACTED // retention.PART):
            with self._transaction(None) as db:
                done = retention.shorten(db, now)
            if done < retention.PART:
                break
        if not self.open_launches():
            with self._lock:
                retention.give_back(self._db)


def _is_news(last: Health | None, health: Health) -> bool:
    if last is None or (last.error, last.code) != (health.error, health.code):
        return True
    return not 0 <= health.checked - last.checked < NO_NEWS
