"""The ledger's rows of money: the costs so far, and who pays for the next machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from slurm_elastic.policies.money.reservations import ReservedLease
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import OF_LIST, to_json

MINIMUM = 60.0
"""Seconds that are charged at least, even if the second is the unit (EC2's Linux machines)."""
# ``indexed by`` is needed: without it sqlite would read all machines of the cloud of a year.
SPENT = """
    with leases as (
        select accounts, price, launched, max(?3 - launched, 0) as seconds
        from machines indexed by machines_live where cloud = ?1 and ended is null
        and reservation = ''
        union all
        select accounts, price, launched, max(ended - launched, 0) as seconds
        from machines indexed by machines_ended where cloud = ?1 and ended >= ?2 - ?4
        and reservation = ''
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
"""Values: cloud, since, now, lease, minimum; times and durations in seconds. Each begun lease
counts whole, at the price at which its machine was bought. If a lease began before ``since``, only
its part after ``since`` counts. All machines with the same payers and parts make one row.
Machines that were launched on a reservation are left out: see ``reserved``.
"""
RESERVED = """
    select reservation, accounts, price, worst_price, launched, ended
    from machines indexed by machines_live
    where cloud = ?1 and ended is null and reservation != ''
    union all
    select reservation, accounts, price, worst_price, launched, ended
    from machines indexed by machines_ended
    where cloud = ?1 and ended >= ?2 and reservation != ''
    order by launched
"""


class BookRows:
    """Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def dollars(self, cloud: str, since: float, now: float, lease: int) -> float:
        """The cost in dollars of the cloud's machines from ``since`` until ``now``: see SPENT."""
        return sum(dollars for _, dollars in self.cost_by_payers(cloud, since, now, lease))

    def cost_by_payers(
        self, cloud: str, since: float, now: float, lease: int
    ) -> tuple[tuple[dict[str, int], float], ...]:
        """The cost by payers: (parts by account, dollars)."""
        rows = self._store.select(SPENT, cloud, since, now, float(lease), MINIMUM)
        decode = msgspec.json.decode
        return tuple((decode(r["accounts"], type=dict[str, int]), r["dollars"]) for r in rows)

    def reserved(self, cloud: str, since: float, now: float) -> tuple[ReservedLease, ...]:
        """The machines launched on a reservation that cost money from ``since`` until ``now``."""
        decode = msgspec.json.decode
        return tuple(
            ReservedLease(
                row["reservation"],
                decode(row["accounts"], type=dict[str, int]),
                row["launched"],
                now if row["ended"] is None else min(row["ended"], now),
                row["price"],
                row["worst_price"],
            )
            for row in self._store.select(RESERVED, cloud, since)
        )

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

    def first_launch(self) -> float | None:
        """When the first machine on record was launched; None without machines."""
        rows = self._store.select("select min(launched) as first from machines")
        return next((row["first"] for row in rows), None)
