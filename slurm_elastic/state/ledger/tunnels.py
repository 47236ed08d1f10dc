"""The ledger's rows of tunnels: which public key is which machine's.

Part of ``state.ledger.Ledger``, which opens the file and describes its tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from slurm_elastic.model.memory import Tunnel
from slurm_elastic.state.store.store import Store

TUNNELS = "select generation, node, address, key, since from tunnels order by node, generation"


class Tunnels(Store):
    """All methods are one transaction each."""

    def tunnels(self) -> tuple[Tunnel, ...]:
        """All of them, by node."""
        return self._tables("tunnels")[0]

    def enrol(self, one: Tunnel) -> str:
        """Believe that this machine has that key, which is then at its address in the tunnel. "",
        or why not: another machine has the key or the address, or this one has another key.
        """
        row = (one.generation, one.node, one.address, one.key, one.since)
        with self._transaction("tunnels", "machines") as db:
            for known in self.tunnels():
                if (known.generation, known.node) == row[:2]:
                    return "" if known.key == one.key else "the machine has another key already"
                if known.key == one.key:
                    return f"the key is that of {known.node} already"
                if known.address == one.address:
                    return f"{one.address} is the address of another machine, of {known.node}"
            db.execute("insert into tunnels values (?, ?, ?, ?, ?)", row)
            db.execute(
                "update machines set address = ? "
                "where generation = ? and node = ? and ended is null",
                (one.address, one.generation, one.node),
            )
        return ""

    def end_tunnels(self, some: Iterable[Tunnel]) -> None:
        """Forget the keys of machines that have gone."""
        with self._transaction("tunnels") as db:
            db.executemany(
                "delete from tunnels where generation = ? and node = ?",
                [(one.generation, one.node) for one in some],
            )


def tunnel_from(row: sqlite3.Row) -> Tunnel:
    """A row of TUNNELS as a value."""
    return Tunnel(**dict(row))
