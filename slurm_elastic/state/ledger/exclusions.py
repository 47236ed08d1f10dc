"""The ledger's rows of what is not to be used now: offers that cool down, pools, nodes."""

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
from slurm_elastic.state.ledger.usage import Usage
from slurm_elastic.state.store.store import Store, Table
from slurm_elastic.state.store.view import OF_LIST, to_json

EXCLUSION_COLUMNS = "kind, scope, until, because, code, count, since, pool, about"


def _counts(known: Sequence[Exclusion], new: Sequence[Exclusion]) -> dict[str, float]:
    """The refusals and the machines that did not come up that ``new`` tells of."""
    failures = {one.scope: one.count for one in known if one.kind == BREAKER}
    counts: dict[str, float] = {}
    for one in new:
        if one.kind == COOL_DOWN:
            scope = offer_scope(one.scope)
            name = series("refusals", cloud=scope.cloud, market=scope.market, code=one.code)
            counts[name] = counts.get(name, 0.0) + 1
        elif one.kind == BREAKER and one.count > failures.get(one.scope, 0):
            more = one.count - failures.get(one.scope, 0)
            counts[series("boot_failures", pool=one.scope)] = float(more)
    return counts


def exclusion_from(row: sqlite3.Row) -> Exclusion:
    """A row of EXCLUSION_COLUMNS as a value."""
    return Exclusion(
        kind=ExclusionKind(row["kind"]),
        scope=row["scope"],
        until=row["until"],
        cause=decoded(row["because"]),
        code=row["code"],
        count=row["count"],
        since=row["since"],
        pool=row["pool"],
        about=tuple(msgspec.json.decode(row["about"])),
    )


def exclusion_row(one: Exclusion) -> tuple[object, ...]:
    """Values for EXCLUSION_COLUMNS."""
    return (
        str(one.kind),
        one.scope,
        one.until,
        encoded(one.cause),
        one.code,
        one.count,
        one.since,
        one.pool,
        to_json(one.about),
    )


TABLES: Mapping[str, Table] = {
    "exclusions": (
        f"select {EXCLUSION_COLUMNS} from exclusions order by scope, kind desc",
        exclusion_from,
    )
}


class Exclusions:
    """Each method is one transaction."""

    def __init__(self, store: Store, usage: Usage) -> None:
        self._store, self._usage = store, usage

    def add(self, *exclusions: Exclusion) -> None:
        """Not to be used until then; each takes the place of an earlier of its kind and scope."""
        counts = _counts(self.all(), exclusions)
        with self._store.transaction("exclusions"):
            rows = [exclusion_row(one) for one in exclusions]
            self._store.insert("insert or replace into exclusions", EXCLUSION_COLUMNS, rows)
            if counts:
                self._usage.count(counts)

    def all(self) -> tuple[Exclusion, ...]:
        """All of them, over or not, by scope; of one node POLICY before CAPACITY."""
        return self._store.tables("exclusions")[0]

    def readmit(self, kind: ExclusionKind, *scopes: str) -> bool:
        """Forget these exclusions, and how often each refused; whether there was any."""
        with self._store.transaction("exclusions"):
            sql = f"delete from exclusions where kind = ? and scope in {OF_LIST}"
            return bool(self._store.change(sql, str(kind), to_json(scopes)))

    def cool_downs(self, now: float) -> tuple[Exclusion, ...]:
        """The cool-downs that are not over at ``now``, by key."""
        return tuple(c for c in self.all() if c.kind == COOL_DOWN and c.until > now)

    def breakers(self) -> tuple[Exclusion, ...]:
        """The breakers of all pools whose last machines never registered, by name."""
        return tuple(b for b in self.all() if b.kind == BREAKER)

    def holds(self) -> tuple[Exclusion, ...]:
        """All holds of nodes, over or not, by node; of one node POLICY before CAPACITY before
        OPERATOR.
        """
        return tuple(h for h in self.all() if h.kind in HOLDS)

    def review_holds(self, pool: str, now: float) -> int:
        """Have the daemon look at the holds of ``pool`` with its next round; how many there are."""
        with self._store.transaction("exclusions"):
            sql = "update exclusions set until = min(until, ?) where pool = ? and kind = ?"
            return len(self._store.change(sql, now, pool, str(CAPACITY)))

    def end_far(self, now: float, longest: float) -> int:
        """Have all be over that is to last for more than ``longest`` seconds from ``now``, which
        nothing is set for: the clock was set back since. How many cool-downs, pauses and holds.
        """
        with self._store.transaction("exclusions"):
            kinds = ", ".join("?" * len(TIMED))
            sql = f"update exclusions set until = ? where until > ? and kind in ({kinds})"
            return len(self._store.change(sql, now, now + longest, *map(str, TIMED)))
