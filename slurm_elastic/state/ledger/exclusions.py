"""The ledger's rows of offers, pools and nodes that must not be used now."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from slurm_elastic.model.causes import decoded, encoded
from slurm_elastic.model.exclusion import (
    BREAKER,
    CAPACITY,
    COOL_DOWN,
    HOLDS,
    TIMED,
    Exclusion,
    ExclusionKind,
    offer_scope,
)
from slurm_elastic.state.ledger.histograms import series
from slurm_elastic.state.ledger.usage import UsageRows
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import OF_LIST, to_json

EXCLUSION_COLUMNS = "kind, scope, until, cause, code, count, since, pool, about"


def _counts(earlier: Sequence[Exclusion], new: Sequence[Exclusion]) -> dict[str, float]:
    """Counters of the refusals and failed boots that ``new`` adds to ``earlier``."""
    failures = {
        exclusion.scope: exclusion.count for exclusion in earlier if exclusion.kind == BREAKER
    }
    counts: dict[str, float] = {}
    for exclusion in new:
        if exclusion.kind == COOL_DOWN:
            scope = offer_scope(exclusion.scope)
            name = series("refusals", cloud=scope.cloud, market=scope.market, code=exclusion.code)
            counts[name] = counts.get(name, 0.0) + 1
        elif exclusion.kind == BREAKER and exclusion.count > failures.get(exclusion.scope, 0):
            new_failures = exclusion.count - failures.get(exclusion.scope, 0)
            counts[series("boot_failures", pool=exclusion.scope)] = float(new_failures)
    return counts


def exclusion_from(row: sqlite3.Row) -> Exclusion:
    """A row of EXCLUSION_COLUMNS as a value."""
    return Exclusion(
        kind=ExclusionKind(row["kind"]),
        scope=row["scope"],
        until=row["until"],
        cause=decoded(row["cause"]),
        code=row["code"],
        count=row["count"],
        since=row["since"],
        pool=row["pool"],
        about=tuple(msgspec.json.decode(row["about"])),
    )


def exclusion_row(exclusion: Exclusion) -> tuple[object, ...]:
    """Values for EXCLUSION_COLUMNS."""
    return (
        str(exclusion.kind),
        exclusion.scope,
        exclusion.until,
        encoded(exclusion.cause),
        exclusion.code,
        exclusion.count,
        exclusion.since,
        exclusion.pool,
        to_json(exclusion.about),
    )


TABLES: Mapping[str, Table] = {
    "exclusions": (
        f"select {EXCLUSION_COLUMNS} from exclusions order by scope, kind desc",
        exclusion_from,
    )
}


class Exclusions:
    """The rows of exclusions: cool-downs, pauses and holds. Each method is one transaction."""

    def __init__(self, store: Store, usage: UsageRows) -> None:
        self._store, self._usage = store, usage

    def add(self, *exclusions: Exclusion) -> None:
        """Record exclusions; each replaces an earlier exclusion of its kind and scope."""
        # Before the write, which replaces the earlier rows that the counts are compared with.
        counts = _counts(self.all(), exclusions)
        with self._store.transaction("exclusions"):
            rows = [exclusion_row(exclusion) for exclusion in exclusions]
            self._store.insert("insert or replace into exclusions", EXCLUSION_COLUMNS, rows)
            if counts:
                self._usage.count(counts)

    def all(self) -> tuple[Exclusion, ...]:
        """All exclusions, also ended ones, by scope; for one node POLICY before CAPACITY."""
        return self._store.tables("exclusions")[0]

    def readmit(self, kind: ExclusionKind, *scopes: str) -> bool:
        """Delete these exclusions with their counts; return whether there was any."""
        with self._store.transaction("exclusions"):
            sql = f"delete from exclusions where kind = ? and scope in {OF_LIST}"
            return bool(self._store.change(sql, str(kind), to_json(scopes)))

    def cool_downs(self, now: float) -> tuple[Exclusion, ...]:
        """The cool-downs still running at ``now``, by scope."""
        return tuple(
            exclusion
            for exclusion in self.all()
            if exclusion.kind == COOL_DOWN and exclusion.until > now
        )

    def breakers(self) -> tuple[Exclusion, ...]:
        """The breakers of all pools whose last machines never registered, by name."""
        return tuple(exclusion for exclusion in self.all() if exclusion.kind == BREAKER)

    def holds(self) -> tuple[Exclusion, ...]:
        """All holds of nodes, also ended ones, by node; for one node POLICY before CAPACITY before
        OPERATOR.
        """
        return tuple(exclusion for exclusion in self.all() if exclusion.kind in HOLDS)

    def review_holds(self, pool: str, now: float) -> int:
        """End the holds of ``pool``, so that the daemon's next round reviews them; return how many
        there are.
        """
        with self._store.transaction("exclusions"):
            # ``min``: a hold that has already ended keeps the time of its end.
            sql = "update exclusions set until = min(until, ?) where pool = ? and kind = ?"
            return len(self._store.change(sql, now, pool, str(CAPACITY)))

    def end_far(self, now: float, longest_s: float) -> int:
        """End the cool-downs, pauses and holds that would last longer than ``longest_s`` seconds
        from ``now``; return how many. No exclusion lasts so long, so the clock was set back.
        """
        with self._store.transaction("exclusions"):
            kinds = ", ".join("?" * len(TIMED))
            sql = f"update exclusions set until = ? where until > ? and kind in ({kinds})"
            return len(self._store.change(sql, now, now + longest_s, *map(str, TIMED)))
