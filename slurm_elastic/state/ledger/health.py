"""The ledger's rows of how services, clouds and Slurm are: of the moment, and in no journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from msgspec.structs import astuple

from slurm_elastic.model.memory import Health
from slurm_elastic.state.store.store import Store, Table

NO_NEWS = 60.0
"""Seconds for which an answer of a cloud or of Slurm that did not change is not written anew."""


def health_from(row: sqlite3.Row) -> Health:
    return Health(name=row[0], checked=row[1], error=row[2], code=row[3])


def _is_news(last: Health | None, health: Health) -> bool:
    if last is None or (last.error, last.code) != (health.error, health.code):
        return True
    # Below 0 the clock was set back: what is written is of the future.
    return not 0 <= health.checked - last.checked < NO_NEWS


TABLES: Mapping[str, Table] = {
    "health": ("select name, checked, error, code from health order by name", health_from)
}


class ServiceHealth:
    """Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def beat(self, service: str, now: float, pid: int) -> None:
        """Sign of life of a service."""
        sql = "insert or replace into heartbeats (service, at, pid) values (?, ?, ?)"
        self._store.passing(None, sql, service, now, pid)

    def heartbeat(self, service: str) -> tuple[float, int] | None:
        """The service's last sign of life: when, and its process id."""
        rows = self._store.select("select at, pid from heartbeats where service = ?", service)
        return (float(rows[0]["at"]), int(rows[0]["pid"])) if rows else None

    def report(self, *healths: Health) -> None:
        """How clouds or ``slurm`` answered just now; what one said a moment ago is no news."""
        with self._store.lock:
            known = {h.name: h for h in self.all()}
            news = [h for h in healths if _is_news(known.get(h.name), h)]
            if not news:
                return
            values = ", ".join(["(?, ?, ?, ?)"] * len(news))
            sql = f"insert or replace into health (name, checked, error, code) values {values}"
            after = known | {h.name: h for h in news}
            rows = tuple(after[name] for name in sorted(after))
            self._store.passing(
                "health", sql, *(value for h in news for value in astuple(h)), rows=rows
            )

    def all(self) -> tuple[Health, ...]:
        """The last answer of each cloud and of ``slurm``, by name."""
        return self._store.tables("health")[0]
