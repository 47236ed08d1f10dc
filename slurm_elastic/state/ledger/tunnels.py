"""The ledger's rows of tunnels: which public key is which machine's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from slurm_elastic.model.memory import Tunnel
from slurm_elastic.state.store.store import Store, Table

COLUMNS = "generation, node, address, key, since"


def tunnel_from(row: sqlite3.Row) -> Tunnel:
    """A row of COLUMNS as a value."""
    return Tunnel(**dict(row))


TABLES: Mapping[str, Table] = {
    "tunnels": (f"select {COLUMNS} from tunnels order by node, generation", tunnel_from)
}


class Tunnels:
    """Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> tuple[Tunnel, ...]:
        """All of them, by node."""
        return self._store.tables("tunnels")[0]

    def enrol(self, one: Tunnel) -> str:
        """Believe that this machine has that key, which is then at its address in the tunnel. "",
        or why not: another machine has the key or the address, or this one has another key.
        """
        row = (one.generation, one.node, one.address, one.key, one.since)
        with self._store.transaction("tunnels", "machines"):
            for known in self.all():
                if (known.generation, known.node) == row[:2]:
                    return "" if known.key == one.key else "the machine has another key already"
                if known.key == one.key:
                    return f"the key is that of {known.node} already"
                if known.address == one.address:
                    return f"{one.address} is the address of another machine, of {known.node}"
            self._store.change(f"insert into tunnels ({COLUMNS}) values (?, ?, ?, ?, ?)", *row)
            self._store.change(
                "update machines set address = ? "
                "where generation = ? and node = ? and ended is null",
                one.address, one.generation, one.node,
            )  # fmt: skip
        return ""

    def end(self, some: Iterable[Tunnel]) -> None:
        """Forget the keys of machines that have gone."""
        with self._store.transaction("tunnels"):
            for one in some:
                sql = "delete from tunnels where generation = ? and node = ?"
                self._store.change(sql, one.generation, one.node)
