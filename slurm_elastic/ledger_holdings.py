"""What the ledger knows of nodes that are held, and of dollars that are spent."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from slurm_elastic.ledger_file import LedgerFile
from slurm_elastic.ledger_rows import CAPACITY, Hold, hold_from

MINIMUM = 60.0
"""Seconds that are paid at least, also where the second is the unit (EC2's Linux machines)."""

SPENT = """
    with leases as (
        select price, launched, max(coalesce(ended, ?3) - launched, 0) as seconds
        from machines
        where cloud = ?1 and (ended is null or ended >= ?2 - ?4)
    ), paid as (
        select price, launched, case
            when ?4 <= 1 then max(seconds, ?5)
            else max(cast(seconds / ?4 as integer)
                + (seconds > ?4 * cast(seconds / ?4 as integer)), 1) * ?4
            end as seconds
        from leases
    )
    select sum(price / 3600.0 * max(seconds - max(?2 - launched, 0), 0)) as dollars from paid
"""
"""cloud, since, now, lease, minimum. Each begun lease counts whole, at the price at which its
machine was bought; of one that began before the span, what lies in it.
"""


class Holdings(LedgerFile):
    """The part of ``Ledger`` about holds, and what policies ask of machines."""

    def hold(self, holds: Sequence[Hold]) -> None:
        """Remember these holds; a node's new hold takes the place of an earlier of its kind."""
        with self._transaction() as db:
            db.executemany(
                "insert or replace into holds (node, pool, reason, since, until, kind) "
                "values (?, ?, ?, ?, ?, ?)",
                [astuple(h) for h in holds],
            )

    def holds(self) -> tuple[Hold, ...]:
        """All holds, over or not, by node; of one node POLICY before CAPACITY."""
        return tuple(hold_from(r) for r in self._select("select * from holds order by 1, 2 desc"))

    def release(self, nodes: Sequence[str], kind: str = CAPACITY) -> None:
        """Forget the holds of that kind of these nodes."""
        rows = [(node, kind) for node in nodes]
        with self._transaction() as db:
            db.executemany("delete from holds where node = ? and kind = ?", rows)

    def dollars(self, cloud: str, since: float, now: float, lease: int) -> float:
        """What the cloud's machines cost from ``since`` until ``now``: see SPENT."""
        row = self._select(SPENT, cloud, since, now, float(lease), MINIMUM)[0]
        return float(row["dollars"] or 0.0)
