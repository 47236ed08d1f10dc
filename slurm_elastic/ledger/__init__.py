"""The memory of what was intended, launched, paid and decided: one sqlite file in WAL mode.

``<state_dir>/ledger.db``, made and migrated by ``store`` from ``schema``; points in time are Unix
seconds, prices dollars an hour, lists and offers JSON::

    launches           one launch call a row, written before the call; kept until 40 days after the
                       end of its last machine, with one offer from a day after its answer on
      generation (key), request (correlation id), pool, cloud, nodes, jobs,
      offer (or a list of several), state intent|done|failed, created, finished, error, accounts
    machines           one instance a row, until 400 days after its end: what was paid
      cloud and id (key), node, generation, instance_type, zone, market, price, state, launched,
      address, pool, jobs, last_seen, misses, suspending, ended, why, worst_price, registered,
      accounts (who pays it: policies.account_budgets)
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
    lifted_requeues    job (key), restarts, at: --no-requeue jobs that may be requeued once
    decisions          id, at, correlation, kind, subjects, reason, detail
    decision_subjects  subject, decision: the look-up by node or ``job:ID``
    heartbeats         service (key), at, pid
    health             name (key), checked, error, code
    read_whole         cloud (key), at: its machines were all read once and are in the ledger
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.ledger import retention
from slurm_elastic.ledger import schema as ledger_schema
from slurm_elastic.ledger.machines import IN_ORDER, Machines
from slurm_elastic.ledger.rows import (
    DECISION_COLUMNS,
    LAUNCH_COLUMNS,
    decision_from,
    decision_values,
    health_from,
    launch_from,
    launch_of_spec,
    launch_row,
    same_call,
    to_json,
)
from slurm_elastic.model import COOL_DOWN, Exclusion, Instance, LaunchSpec
from slurm_elastic.model_ledger import DONE, FAILED, INTENT, Decision, Health, Launch, Machine
from slurm_elastic.policies.exclusions import STRIKES_KEPT
from slurm_elastic.store.files import open_reader, open_writer

__all__ = ["Decision", "Health", "Launch", "Ledger", "Machine"]


COMPACTED = 10_000
"""Launches that one call of ``Ledger.compact`` shortens."""
AT_ONCE = 1000
"""Decisions in one statement: sqlite takes so many values at most."""
NO_NEWS = 60.0
"""Seconds for which an answer of a cloud or of Slurm that did not change is not written anew."""


class LedgerState(Struct, frozen=True, kw_only=True):
    """Live machines, open launches, exclusions, and the clouds of which a list was taken in."""

    machines: tuple[Machine, ...]
    launches: tuple[Launch, ...]
    exclusions: tuple[Exclusion, ...]
    read_whole: frozenset[str]


class Ledger(Machines):
    """All methods are one transaction each. sqlite3.Error passes through: a daemon that cannot
    remember must not spend. Safe for several threads and processes (busy time-out 10 s).

    ``read_only`` needs no right to write in the directory, makes nothing, and raises
    SlurmElasticError where there is no ledger. Such a reader should not be kept open for long.
    ``end_only`` is why nothing may be bought, and ``since`` from when on: see ``ledger.enduring``.
    """

    REMEMBERED = (
        "machines", "launches", "exclusions", "complete", "health", "directives", "lifted", "runs",
        "drains",
    )  # fmt: skip

    @property
    def end_only(self) -> str:
        """Empty: this ledger fails where its file does."""
        return ""

    @property
    def since(self) -> float:
        """Since when (Unix time)."""
        return 0.0

    @property
    def remedy(self) -> str:
        """The remedy for ``end_only``, for a person."""
        return ""

    def check(self) -> None:
        """Look after the file: nothing is done about it here."""

    def give_up(self, error: Exception) -> None:
        """The file has failed with ``error``: nothing is done about it here."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        opened = open_reader if read_only else open_writer
        super().__init__(opened(path, ledger_schema.LEDGER))

    def state(self) -> LedgerState:
        """All that passes go by, as of one moment."""
        with self._lock:
            machines, launches = self.current()
            return LedgerState(
                machines=machines,
                launches=launches,
                exclusions=self.exclusions(),
                read_whole=frozenset(self._read_whole()),
            )

    # launches

    def intend(self, spec: LaunchSpec, request: str, now: float) -> None:
        """Write down a launch before the cloud is called; ``request`` is the correlation id.

        Again with the same content: nothing happens. Raises SlurmElasticError when the generation
        stands for another launch or for one that has failed (a new call needs a new generation,
        or its machines would have no open intent).
        """
        new = launch_of_spec(spec, request, now, self._wanted_by(spec.nodes))
        with self._transaction("launches") as db:
            values = ", ".join("?" * len(launch_row(new)))
            sql = f"insert or ignore into launches ({LAUNCH_COLUMNS}) values ({values})"
            if db.execute(sql, launch_row(new)).rowcount:
                return
            old = self._known(spec.generation)
            if not same_call(old, new):
                raise SlurmElasticError(
                    f"generation {spec.generation} already stands for another launch, of "
                    f"{len(old.nodes)} nodes of pool {old.pool} from {old.offer.key}"
                )
            if old.state == FAILED:
                raise SlurmElasticError(
                    f"generation {spec.generation} has failed: {old.error}; "
                    "a new call needs a new generation"
                )

    def launched(self, generation: str, instances: Sequence[Instance], now: float) -> None:
        """The cloud's answer: the launch is done and these machines are live, in one transaction.

        Again: nothing happens, but machines that a first, shorter answer lacked are added. A
        launch that was given up as failed becomes done too: its machines exist. Raises
        SlurmElasticError for an unknown generation or a machine known from another launch.
        """
        with self._transaction("machines", "launches") as db:
            launch = self._known(generation)
            for instance in instances:
                self._insert(instance, launch.pool, launch, now)
            db.execute(
                "update launches set state = ?, finished = coalesce(finished, ?), error = null "
                "where generation = ?",
                (DONE, now, generation),
            )

    def failed(self, generation: str, error: str, now: float) -> None:
        """Nothing was started, in the cloud's words ``error``. A finished launch stays as it is."""
        with self._transaction("launches") as db:
            self._known(generation)
            db.execute(
                "update launches set state = ?, finished = ?, error = ? "
                "where generation = ? and state = ?",
                (FAILED, now, error, generation, INTENT),
            )

    def forget_failed(self, generations: Sequence[str]) -> None:
        """Forget those of these launches that a cloud refused: what it said is kept elsewhere.

        A request may be refused by hundreds of offers, and a refused launch costs nothing.
        """
        rows = [(generation, FAILED) for generation in generations]
        with self._transaction(None) as db:
            db.executemany("delete from launches where generation = ? and state = ?", rows)

    def open_launches(self) -> tuple[Launch, ...]:
        """Intents whose call is not known to have answered, oldest first."""
        sql = f"select {LAUNCH_COLUMNS} from launches where state = 'intent' {IN_ORDER}"
        return self._remembered("launches", sql, launch_from)

    def current(self) -> tuple[tuple[Machine, ...], tuple[Launch, ...]]:
        """Machines that have not ended and open launches, as of one moment: a launch that is
        answered between two reads may be missing in both.
        """
        with self._lock:
            launches = self.open_launches()  # first, as another process may write meanwhile
            return self.machines(), launches

    def launch(self, generation: str) -> Launch | None:
        """The launch of that generation."""
        with self._lock:
            return self._launch(generation)

    def finished(self, generations: Collection[str]) -> dict[str, float]:
        """When these launches were answered: those of them that were."""
        rows = self._select(
            "select generation, finished from launches where finished is not null "
            "and generation in (select value from json_each(?))",
            to_json(list(generations)),
        )
        return {row["generation"]: row["finished"] for row in rows}

    # decisions, heartbeat, health

    def record(self, *decisions: Decision) -> None:
        """Keep decisions for ``explain``, all in one transaction (one sync of the disk)."""
        with self._transaction(None) as db:
            for begin in range(0, len(decisions), AT_ONCE):
                some = decisions[begin : begin + AT_ONCE]
                rows = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(some))
                sql = f"insert into decisions ({DECISION_COLUMNS}) values {rows}"
                last = db.execute(sql, decision_values(some)).lastrowid or 0
                # The rows of one statement have consecutive numbers, as nobody else writes.
                numbered = enumerate(some, last - len(some) + 1)
                db.executemany(
                    "insert or ignore into decision_subjects (subject, decision) values (?, ?)",
                    [(subject, number) for number, one in numbered for subject in one.subjects],
                )

    def decisions(self, subject: str, limit: int = 200) -> tuple[Decision, ...]:
        """The last ``limit`` decisions about a node or ``job:ID``, oldest first."""
        rows = self._select(
            "select d.* from decision_subjects s join decisions d on d.id = s.decision "
            "where s.subject = ? order by d.at desc, d.id desc limit ?",
            subject,
            limit,
        )
        return tuple(decision_from(row) for row in reversed(rows))

    def last_decisions(self, limit: int) -> tuple[Decision, ...]:
        """The last ``limit`` decisions of all, oldest first."""
        rows = self._select("select * from decisions order by id desc limit ?", limit)
        return tuple(decision_from(row) for row in reversed(rows))

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
            self._put("health", sql, *(value for h in news for value in astuple(h)))
            after = known | {h.name: h for h in news}
            self._keep("health", tuple(after[name] for name in sorted(after)))

    def health(self) -> tuple[Health, ...]:
        """The last answer of each cloud and of ``slurm``, by name."""
        sql = "select name, checked, error, code from health order by name"
        return self._remembered("health", sql, health_from)

    def read_whole(self, cloud: str, now: float) -> None:
        """A complete read of ``cloud`` was taken in, its unknown machines adopted."""
        sql = "insert or ignore into read_whole (cloud, at) values (?, ?)"
        self._put("complete", sql, cloud, now)

    def was_read_whole(self, cloud: str) -> bool:
        """Whether the ledger has had what there is of ``cloud``. A new ledger, and one to which the
        cloud is new, have not: it may have machines of ours.
        """
        return cloud in self._read_whole()

    def _read_whole(self) -> tuple[str, ...]:
        return self._remembered("complete", "select cloud from read_whole", itemgetter(0))

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

    # inside

    def _known(self, generation: str) -> Launch:
        is_open = (row for row in self.open_launches() if row.generation == generation)
        launch = next(is_open, None) or self._launch(generation)
        if launch is None:
            raise SlurmElasticError(f"no launch with generation {generation} was ever intended")
        return launch


def _is_news(last: Health | None, health: Health) -> bool:
    if last is None or (last.error, last.code) != (health.error, health.code):
        return True
    return not 0 <= health.checked - last.checked < NO_NEWS
