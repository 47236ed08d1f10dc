"""The ledger's rows beside launches and machines: decisions, exclusions, directives, lifted
requeues; what was paid by whom, and who used the machines; counters.

Part of ``state.ledger.Ledger``, which opens the file and describes its tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import astuple

from slurm_elastic.model.cluster import BREAKER, CAPACITY, COOL_DOWN, HOLDS, TIMED, Exclusion
from slurm_elastic.model.directive import Directive
from slurm_elastic.model.memory import Aside, Decision, Drained, Run
from slurm_elastic.state.ledger.histograms import series
from slurm_elastic.state.ledger.mark_rows import (
    aside_from,
    decision_from,
    decision_values,
    directive_row,
    drained_from,
    exclusion_row,
    run_from,
    run_row,
    to_json,
)
from slurm_elastic.state.store.store import Store

RUN_COLUMNS = "job, begin, end, label, user, uid, account, partition, shares"
DIRECTIVE_COLUMNS = "word, who, since, starts, until, reason"
DECISION_COLUMNS = "at, correlation, kind, subjects, reason, detail"
EXCLUSION_COLUMNS = "kind, scope, until, cause, code, count, since, pool, about"

AT_ONCE = 1000
"""Decisions in one statement: sqlite takes so many values at most."""
MINIMUM = 60.0
"""Seconds that are paid at least, also where the second is the unit (EC2's Linux machines)."""

SPENT = """
    with leases as (
        select accounts, price, launched, max(?3 - launched, 0) as seconds
        from machines indexed by machines_live where cloud = ?1 and ended is null
        union all
        select accounts, price, launched, max(ended - launched, 0) as seconds
        from machines indexed by machines_ended where cloud = ?1 and ended >= ?2 - ?4
    ), paid as (
        select accounts, price, launched, case
            when ?4 <= 1 then max(seconds, ?5)
            else max(cast(seconds / ?4 as integer)
                + (seconds > ?4 * cast(seconds / ?4 as integer)), 1) * ?4
            end as seconds
        from leases
    )
    select accounts, sum(price / 3600.0 * max(seconds - max(?2 - launched, 0), 0)) as dollars
    from paid group by accounts order by accounts
"""
"""cloud, since, now, lease, minimum. The indices are named as sqlite
would read a cloud's machines of a year. Each begun lease counts whole, at the price at which its
machine was bought; of one that began before the span, what lies in it. A row for all machines that
the same accounts pay in the same parts.
"""


_PUT = f"insert or replace into runs ({RUN_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"

_COUNT = (
    "insert into counters (name, value) values (?, ?) "
    "on conflict (name) do update set value = value + excluded.value"
)


def _counts(known: Sequence[Exclusion], new: Sequence[Exclusion]) -> dict[str, float]:
    """The refusals and the machines that did not come up that ``new`` tells of."""
    failures = {one.scope: one.count for one in known if one.kind == BREAKER}
    counts: dict[str, float] = {}
    for one in new:
        if one.kind == COOL_DOWN:
            parts = one.scope.split("/")
            name = series("refusals", cloud=parts[0], market=parts[3] if parts[3:] else "*",
                          code=one.code)  # fmt: skip
            counts[name] = counts.get(name, 0.0) + 1
        elif one.kind == BREAKER and one.count > failures.get(one.scope, 0):
            more = one.count - failures.get(one.scope, 0)
            counts[series("boot_failures", pool=one.scope)] = float(more)
    return counts


class Marks(Store):
    """All methods are one transaction each; ``_db`` is opened by the ledger."""

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

    def exclude(self, *exclusions: Exclusion) -> None:
        """Not to be used until then; each takes the place of an earlier of its kind and scope."""
        columns = EXCLUSION_COLUMNS
        sql = f"insert or replace into exclusions ({columns}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        counts = _counts(self.exclusions(), exclusions)
        with self._transaction("exclusions") as db:
            db.executemany(sql, [exclusion_row(one) for one in exclusions])
            if counts:
                self.count(counts)

    def exclusions(self) -> tuple[Exclusion, ...]:
        """All of them, over or not, by scope; of one node POLICY before CAPACITY."""
        return self._tables("exclusions")[0]

    def readmit(self, kind: str, *scopes: str) -> bool:
        """Forget these exclusions, and how often each refused; whether there was any."""
        with self._transaction("exclusions") as db:
            sql = "delete from exclusions where kind = ? and scope = ?"
            return db.executemany(sql, [(kind, one) for one in scopes]).rowcount > 0

    def cool_downs(self, now: float) -> tuple[Exclusion, ...]:
        """The cool-downs that are not over at ``now``, by key."""
        return tuple(c for c in self.exclusions() if c.kind == COOL_DOWN and c.until > now)

    def direct(self, directive: Directive) -> Directive:
        """Write an operator's word down; returns it with its number, which no other ever had."""
        with self._transaction("directives") as db:
            (last,) = db.execute("select coalesce(max(number), 0) from directives").fetchone()
            number = max(last + 1, int(directive.since))
            sql = (
                f"insert into directives (number, {DIRECTIVE_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)"
            )
            db.execute(sql, (number, *directive_row(directive)))
        return msgspec.structs.replace(directive, number=number)

    def directives(self) -> tuple[Directive, ...]:
        """All that are not ended, in force or not, in the order in which they were given."""
        return self._tables("directives")[0]

    def end_directive(self, number: int) -> bool:
        """Forget it; whether there was one."""
        with self._transaction("directives") as db:
            return db.execute("delete from directives where number = ?", (number,)).rowcount > 0

    def breakers(self) -> tuple[Exclusion, ...]:
        """The breakers of all pools whose last machines never registered, by name."""
        return tuple(b for b in self.exclusions() if b.kind == BREAKER)

    def holds(self) -> tuple[Exclusion, ...]:
        """All holds of nodes, over or not, by node; of one node POLICY before CAPACITY before
        OPERATOR.
        """
        return tuple(h for h in self.exclusions() if h.kind in HOLDS)

    def review_holds(self, pool: str, now: float) -> int:
        """Have the daemon look at the holds of ``pool`` with its next round; how many there are."""
        with self._transaction("exclusions") as db:
            sql = "update exclusions set until = min(until, ?) where pool = ? and kind = ?"
            return db.execute(sql, (now, pool, CAPACITY)).rowcount

    def end_far(self, now: float, longest: float) -> int:
        """Have all be over that is to last for more than ``longest`` seconds from ``now``, which
        nothing is set for: the clock was set back since. How many cool-downs, pauses and holds.
        """
        with self._transaction("exclusions") as db:
            kinds = ", ".join("?" * len(TIMED))
            sql = f"update exclusions set until = ? where until > ? and kind in ({kinds})"
            return db.execute(sql, (now, now + longest, *TIMED)).rowcount

    def dollars(self, cloud: str, since: float, now: float, lease: int) -> float:
        """The cost of the cloud's machines from ``since`` until ``now``: see SPENT."""
        return sum(dollars for _, dollars in self.paid(cloud, since, now, lease))

    def paid(
        self, cloud: str, since: float, now: float, lease: int
    ) -> tuple[tuple[dict[str, int], float], ...]:
        """The same with who pays it, each account so many parts: (accounts, dollars)."""
        rows = self._select(SPENT, cloud, since, now, float(lease), MINIMUM)
        decode = msgspec.json.decode
        return tuple((decode(r["accounts"], type=dict[str, int]), r["dollars"]) for r in rows)

    def want(self, accounts: Mapping[str, Mapping[str, int]], now: float) -> None:
        """By node, for whom its next machine is started; takes the place of an earlier word."""
        rows = [(node, to_json(of), now) for node, of in accounts.items()]
        with self._transaction(None) as db:
            db.executemany(
                "insert or replace into wanted_by (node, accounts, at) values (?, ?, ?)", rows
            )

    def want_for_nobody(self, nodes: Sequence[str], before: float) -> None:
        """Forget for whom these were to be started, where that was said before then."""
        rows = [(node, before) for node in nodes]
        with self._transaction(None) as db:
            db.executemany("delete from wanted_by where node = ? and at < ?", rows)

    def _wanted_by(self, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
        sql = "select * from wanted_by where node in (select value from json_each(?))"
        rows = self._select(sql, to_json(nodes))
        decode = msgspec.json.decode
        return {row["node"]: decode(row["accounts"], type=dict[str, int]) for row in rows}

    def set_aside(self, rows: Sequence[Aside]) -> None:
        """Remember how these jobs were before they are kept from public clouds."""
        values = [(r.job, r.account, to_json(r.partitions), r.begin, r.until) for r in rows]
        with self._transaction(None) as db:
            db.executemany(
                "insert or replace into set_aside (job, account, partitions, begin, until) "
                "values (?, ?, ?, ?, ?)",
                values,
            )

    def asides(self) -> tuple[Aside, ...]:
        """All jobs that are set aside, by number."""
        return tuple(aside_from(r) for r in self._select("select * from set_aside order by job"))

    def let_back(self, jobs: Sequence[int]) -> None:
        """Forget these: they are as they were, or gone."""
        with self._transaction(None) as db:
            db.executemany("delete from set_aside where job = ?", [(job,) for job in jobs])

    def lift_requeue(self, job: int, restarts: int, now: float) -> None:
        """Before a ``--no-requeue`` job (restarted so often) is given leave to be requeued."""
        sql = "insert or ignore into lifted_requeues (job, restarts, at) values (?, ?, ?)"
        self._put("lifted", sql, job, restarts, now)

    def lifted_requeues(self, until: float = math.inf) -> tuple[tuple[int, int], ...]:
        """Jobs whose own setting is not put back yet, each with its restarts at that time; those
        that were lifted ``until`` then (Unix time).
        """
        (rows,) = self._tables("lifted")
        return tuple((job, restarts) for job, restarts, at in rows if at <= until)

    def requeue_put_back(self, job: int) -> None:
        """The job has its own setting again, or is gone."""
        self._put("lifted", "delete from lifted_requeues where job = ?", job)

    # runs of jobs on the machines, nodes that took none, and counters of all

    def write_runs(self, runs: Sequence[Run], drains: Sequence[Drained] = ()) -> None:
        """New ones, and what is known better of those that are there."""
        if not runs and not drains:
            return
        with self._transaction("runs", "drains") as db:
            db.executemany(_PUT, [run_row(run) for run in runs])
            db.executemany(
                "insert or replace into drains (node, begin, end) values (?, ?, ?)",
                [astuple(drain) for drain in drains],
            )

    def runs(self, since: float, until: float) -> tuple[Run, ...]:
        """The runs of which some part is in that span of time, by begin and job."""
        sql = (
            f"select {RUN_COLUMNS} from runs where (end is null or end > ?) and begin < ? "
            "order by begin, job"
        )
        return tuple(run_from(row) for row in self._select(sql, since, until))

    def runs_of(self, job: int) -> tuple[Run, ...]:
        """All runs of one job that are known, by begin."""
        sql = f"select {RUN_COLUMNS} from runs where job = ? order by begin"
        return tuple(run_from(row) for row in self._select(sql, job))

    def open_runs(self) -> tuple[Run, ...]:
        """The runs that are not known to have ended, by begin and job."""
        return self._tables("runs")[0]

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters, ``name{label="value"}`` as Prometheus has them."""
        with self._transaction(None) as db:
            db.executemany(_COUNT, list(counts.items()))

    def counters(self) -> Mapping[str, float]:
        """All counters by name."""
        rows = self._select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def settle(self, until: float, counts: Mapping[str, float]) -> None:
        """The counters have all up to ``until`` with these."""
        with self._transaction(None) as db:
            self.count(counts)
            db.execute("delete from settled")
            db.execute("insert into settled (at) values (?)", (until,))

    def settled(self) -> float | None:
        """Up to when the counters have what machines and jobs came to; None: they never had."""
        rows = self._select("select at from settled")
        return float(rows[0]["at"]) if rows else None

    def newly_told(
        self, keys: Sequence[str], now: float, again: float, most: int, within: float
    ) -> list[str]:
        """Write down that people are told of these: those of ``keys`` that they were not told of in
        the last ``again`` seconds, as far as that makes ``most`` in ``within`` seconds.
        """
        with self._transaction(None) as db:
            db.execute("delete from told where at < ?", (now - max(again, within),))
            rows = dict(db.execute("select key, at from told"))
            room = most - sum(at > now - within for at in rows.values())
            new = [key for key in dict.fromkeys(keys) if rows.get(key, -math.inf) <= now - again]
            new = new[: max(room, 0)]
            db.executemany(
                "insert or replace into told (key, at) values (?, ?)", [(key, now) for key in new]
            )
        return new

    def drains(self, since: float, until: float) -> tuple[Drained, ...]:
        """The spans without jobs of which some part is in that span of time, by node and begin."""
        sql = (
            "select node, begin, end from drains where (end is null or end > ?) and begin < ? "
            "order by node, begin"
        )
        return tuple(drained_from(row) for row in self._select(sql, since, until))
