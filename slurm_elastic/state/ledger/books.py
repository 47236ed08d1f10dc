"""The ledger's rows of money: the costs so far, and who pays for the next machines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from slurm_elastic.base.billing import MINIMUM_S, paid_until
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.money.recorded_reservations import (
    RecordedReservation,
    counted_reservations,
    records_after,
)
from slurm_elastic.policies.money.reservations import ReservedLease
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import OF_LIST, to_json

_PAID = """
    , paid as (
        select accounts, price, launched, case
            when unit <= 1 then max(seconds, ?5)
            else max(cast(seconds / unit as integer)
                + (seconds > unit * cast(seconds / unit as integer)), 1) * unit
            end as seconds
        from leases
    )
    select accounts, sum(price / 3600.0 * max(seconds - max(?2 - launched, 0), 0)) as dollars
    from paid group by accounts order by accounts
"""
_UNIT = "billing_increment as unit"
# ``indexed by`` is needed: without it sqlite would read all machines of the cloud of a year.
SPENT_BY_LIVE = f"""
    with leases as (
        select accounts, price, launched, max(?3 - launched, 0) as seconds, {_UNIT}
        from machines indexed by machines_live where cloud = ?1 and ended is null
        and reservation = ''
    ) {_PAID}
"""
SPENT_BY_ENDED = f"""
    with leases as (
        select accounts, price, launched, max(ended - launched, 0) as seconds, {_UNIT}
        from machines indexed by machines_ended where cloud = ?1 and ended >= ?2 - ?4
        and reservation = ''
    ) {_PAID}
"""
"""The cost of ended machines by payers ($). Values: cloud, since, now, longest increment, minimum;
times and durations in seconds. Each begun lease counts whole, at the price and the increment at
which its machine was bought (the rule of ``base.billing``). If a lease began before ``since``, only
its part after ``since`` counts. All machines with the same payers and parts make one row. Machines
that were launched on a reservation are left out: see ``reserved``.
"""
_RESERVED_COLUMNS = (
    "reservation, accounts, price, worst_price, launched, ended, billing_increment, disk_price"
)
RESERVED_LIVE = f"""
    select {_RESERVED_COLUMNS} from machines indexed by machines_live
    where cloud = ?1 and ended is null and reservation != ''
"""
RESERVED_ENDED = f"""
    select {_RESERVED_COLUMNS} from machines indexed by machines_ended
    where cloud = ?1 and ended >= ?2 - ?3 and reservation != ''
"""
ENDED_STAMP = """
    select count(*) as machines, coalesce(sum(cast(ended * 1000 as integer)), 0) as ends
    from machines indexed by machines_ended where ended >= ?1
"""
_RESERVATION_COLUMNS = "cloud, name, begins, ends, terms, removed"
_DELETE_RESERVATION = "delete from reservations where cloud = ? and name = ? and begins = ?"
MAX_KEPT = 256
"""The maximum of kept sums: four for each cloud, and the sums of the day before."""


class EndedStamp(NamedTuple):
    """Identifies the set of machines that ended after ``since`` (Unix time). Their rows do not
    change, but the set does: if another machine ends, or if a cloud lists an ended machine again.
    """

    since: float
    machines: int
    ends_ms: int


Value = TypeVar("Value")


class BookRows:
    """Reads costs and records payers. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: SharedDict[Hashable, tuple[EndedStamp, Any]] = SharedDict()

    def dollars(self, cloud: str, since: float, now: float) -> float:
        """The cost in dollars of the cloud's machines from ``since`` until ``now``."""
        return sum(dollars for _, dollars in self.cost_by_payers(cloud, since, now))

    def longest_increment(self) -> int:
        """The longest increment (s) in which a machine on record is billed."""
        (row,) = self._store.select("select max(billing_increment) as longest from machines")
        return int(row["longest"] or 1)

    def cost_by_payers(
        self,
        cloud: str,
        since: float,
        now: float,
        stamp: EndedStamp | None = None,
    ) -> tuple[tuple[dict[str, int], float], ...]:
        """The cost by payers: (parts by account, dollars). ``stamp``: sums of ended machines may be
        reused as long as this stamp is the same.
        """
        longest = self.longest_increment()

        def read(sql: str, until: float) -> list[tuple[str, float]]:
            values = (cloud, since, until, float(longest), MINIMUM_S)
            return [(row["accounts"], row["dollars"]) for row in self._store.select(sql, *values)]

        key = ("spent", cloud, since, longest)
        ended = self._of_ended(stamp, since - longest, key, lambda: read(SPENT_BY_ENDED, 0.0))
        dollars: dict[str, float] = {}
        for accounts, paid in (*ended, *read(SPENT_BY_LIVE, now)):
            dollars[accounts] = dollars.get(accounts, 0.0) + paid
        decode = msgspec.json.decode
        return tuple((decode(key, type=dict[str, int]), dollars[key]) for key in sorted(dollars))

    def reserved(
        self, cloud: str, since: float, now: float, stamp: EndedStamp | None = None
    ) -> tuple[ReservedLease, ...]:
        """The machines launched on a reservation that cost money from ``since`` until ``now``.
        Each begun increment counts whole, so their ends may be later than ``now``.
        """
        longest = self.longest_increment()

        def read(sql: str, *values: object) -> list[ReservedLease]:
            return [_reserved_lease(row, now) for row in self._store.select(sql, *values)]

        ended = self._of_ended(
            stamp, since - longest, ("reserved", cloud, since, longest),
            lambda: read(RESERVED_ENDED, cloud, since, float(longest)),
        )  # fmt: skip
        return tuple(sorted((*read(RESERVED_LIVE, cloud), *ended), key=lambda lease: lease.begin))

    def ended_stamp(self, since: float) -> EndedStamp:
        """Return the present stamp for ``since``. sqlite reads only an index."""
        (row,) = self._store.select(ENDED_STAMP, since)
        return EndedStamp(since, row["machines"], row["ends"])

    def _of_ended(
        self, stamp: EndedStamp | None, since: float, key: Hashable, read: Callable[[], Value]
    ) -> Value:
        """Return the answer of ``read``, which is about machines that ended after ``since``, or the
        kept answer for the same ``stamp``.

        A month of a large site has tens of thousands of such machines, and each launch asks for the
        sums of their costs.
        """
        if stamp is None or stamp.since > since:
            return read()
        kept = self._ended.get(key)
        if kept is not None and kept[0] == stamp:
            value: Value = kept[1]
            return value
        # A machine that ends before this reading is in the value already. The next stamp differs,
        # so the value is read again then.
        value = read()
        if len(self._ended) >= MAX_KEPT:
            self._ended.keep(())
        self._ended[key] = stamp, value
        return value

    def record_payers(self, accounts: Mapping[str, Mapping[str, int]], now: float) -> None:
        """Record by node which accounts pay for its next machine; replaces an earlier record."""
        rows = [
            (node, to_json(parts_by_account), now) for node, parts_by_account in accounts.items()
        ]
        with self._store.transaction(None):
            self._store.insert("insert or replace into wanted_by", "node, accounts, at", rows)

    def delete_payers(self, nodes: Sequence[str], before: float) -> None:
        """Delete the payers of these nodes that were recorded before the time ``before``."""
        sql = f"delete from wanted_by where node in {OF_LIST} and at < ?"
        self._store.execute(None, sql, to_json(nodes), before)

    def payers_by_node(self, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
        """The payers of the next machines: parts by account, by node."""
        sql = "select * from wanted_by where node in (select value from json_each(?))"
        rows = self._store.select(sql, to_json(nodes))
        decode = msgspec.json.decode
        return {row["node"]: decode(row["accounts"], type=dict[str, int]) for row in rows}

    def counted_reservations(
        self, entries: Sequence[Held], now: float
    ) -> dict[str, tuple[Held, ...]]:
        """The reservations that costs count, by cloud: the configuration's ``entries``, and the
        recorded ones without an entry.
        """
        return counted_reservations(self.recorded_reservations(), entries, now)

    def record_reservations(self, entries: Sequence[Held], now: float) -> None:
        """Record the begun reservations of the configuration, and when entries were removed."""
        before = self.recorded_reservations()
        after = records_after(before, entries, now)
        if after == before:
            return
        with self._store.transaction(None):
            # A record is no longer needed if a person has corrected the begin of its entry.
            for key in {r.key for r in before} - {r.key for r in after}:
                self._store.change(_DELETE_RESERVATION, *key)
            rows = [
                (*r.key, r.held.ends_at, to_json(r.held), r.removed_at)
                for r in after
                if r not in before
            ]
            self._store.insert("insert or replace into reservations", _RESERVATION_COLUMNS, rows)

    def recorded_reservations(self) -> tuple[RecordedReservation, ...]:
        """The reservations that have begun, also after their entries were removed."""
        sql = "select terms, removed from reservations order by begins, cloud, name"
        rows = self._store.select(sql)
        decode = msgspec.json.decode
        return tuple(
            RecordedReservation(held=decode(row["terms"], type=Held), removed_at=row["removed"])
            for row in rows
        )

    def first_launch(self) -> float | None:
        """When the first machine on record was launched; None without machines."""
        rows = self._store.select("select min(launched) as first from machines")
        return next((row["first"] for row in rows), None)


def _reserved_lease(row: sqlite3.Row, now: float) -> ReservedLease:
    ended = now if row["ended"] is None else row["ended"]
    return ReservedLease(
        row["reservation"],
        msgspec.json.decode(row["accounts"], type=dict[str, int]),
        row["launched"],
        paid_until(row["launched"], ended, row["billing_increment"]),
        row["price"],
        row["worst_price"],
        row["disk_price"],
    )
