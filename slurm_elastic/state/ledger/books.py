"""The ledger's rows of money: what was paid, and for whom the next machines are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import OF_LIST, to_json

MINIMUM = 60.0
"""Seconds that are paid at least, also where the second is the unit (EC2's Linux machines)."""
# The indices are named, as sqlite would read a cloud's machines of a year without.
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
"""cloud, since, now, lease, minimum. Each begun lease counts whole, at the price at which its
machine was bought; of one that began before the span, what lies in it. A row for all machines that
the same accounts pay in the same parts.
"""


class Books:
    """Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def dollars(self, cloud: str, since: float, now: float, lease: int) -> float:
        """The cost of the cloud's machines from ``since`` until ``now``: see SPENT."""
        return sum(dollars for _, dollars in self.paid(cloud, since, now, lease))

    def paid(
        self, cloud: str, since: float, now: float, lease: int
    ) -> tuple[tuple[dict[str, int], float], ...]:
        """The same with who pays it, each account so many parts: (accounts, dollars)."""
        rows = self._store.select(SPENT, cloud, since, now, float(lease), MINIMUM)
        decode = msgspec.json.decode
        return tuple((decode(r["accounts"], type=dict[str, int]), r["dollars"]) for r in rows)

    def want(self, accounts: Mapping[str, Mapping[str, int]], now: float) -> None:
        """By node, for whom its next machine is started; takes the place of an earlier word."""
        rows = [(node, to_json(of), now) for node, of in accounts.items()]
        with self._store.transaction(None):
            self._store.insert("insert or replace into wanted_by", "node, accounts, at", rows)

    def want_for_nobody(self, nodes: Sequence[str], before: float) -> None:
        """Forget for whom these were to be started, where that was said before then."""
        sql = f"delete from wanted_by where node in {OF_LIST} and at < ?"
        self._store.execute(None, sql, to_json(nodes), before)

    def wanted_by(self, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
        sql = "select * from wanted_by where node in (select value from json_each(?))"
        rows = self._store.select(sql, to_json(nodes))
        decode = msgspec.json.decode
        return {row["node"]: decode(row["accounts"], type=dict[str, int]) for row in rows}
