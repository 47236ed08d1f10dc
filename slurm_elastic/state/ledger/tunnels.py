"""The ledger's rows of tunnels: the public keys of machines."""

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


class TunnelRows:
    """The rows of machines' tunnels. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> tuple[Tunnel, ...]:
        """All tunnels, by node."""
        return self._store.tables("tunnels")[0]

    def enrol(self, tunnel: Tunnel) -> str:
        """Accept the key of a machine, and give the machine its address in the tunnel. Return "",
        or the reason of a refusal: another machine has the key or the address, or this machine has
        another key.
        """
        row = (tunnel.generation, tunnel.node, tunnel.address, tunnel.key, tunnel.since)
        with self._store.transaction("tunnels", "machines"):
            # Inside the transaction, so that no second machine gets the same key or address.
            for recorded in self.all():
                # A machine that repeats its own request gets the same answer again.
                if (recorded.generation, recorded.node) == row[:2]:
                    return (
                        "" if recorded.key == tunnel.key else "the machine has another key already"
                    )
                if recorded.key == tunnel.key:
                    return f"node {recorded.node} already has this key"
                if recorded.address == tunnel.address:
                    return f"{tunnel.address} is the address of another machine, of {recorded.node}"
            self._store.change(f"insert into tunnels ({COLUMNS}) values (?, ?, ?, ?, ?)", *row)
            self._store.change(
                "update machines set address = ? "
                "where generation = ? and node = ? and ended is null",
                tunnel.address, tunnel.generation, tunnel.node,
            )  # fmt: skip
        return ""

    def end(self, tunnels: Iterable[Tunnel]) -> None:
        """Delete the keys of ended machines."""
        with self._store.transaction("tunnels"):
            for tunnel in tunnels:
                sql = "delete from tunnels where generation = ? and node = ?"
                self._store.change(sql, tunnel.generation, tunnel.node)
