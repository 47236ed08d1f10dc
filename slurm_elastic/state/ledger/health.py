"""The ledger's rows about the health of services, clouds and Slurm. They are in no journal, because
they describe only the moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from msgspec.structs import astuple

from slurm_elastic.model.memory import Health
from slurm_elastic.state.store.store import Store, Table

NO_NEWS = 60.0
"""Seconds for which an unchanged answer of a cloud or of Slurm is not written again."""


def health_from(row: sqlite3.Row) -> Health:
    return Health(name=row[0], checked=row[1], error=row[2], code=row[3])


def _is_news(previous: Health | None, health: Health) -> bool:
    if previous is None or (previous.error, previous.code) != (health.error, health.code):
        return True
    # A negative difference means that the clock was set back. The row of the future must be
    # replaced, or it would hide all answers until its time has come.
    return not 0 <= health.checked - previous.checked < NO_NEWS


TABLES: Mapping[str, Table] = {
    "health": ("select name, checked, error, code from health order by name", health_from)
}


class ServiceHealth:
    """The rows about services and clouds: heartbeats and health. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def beat(self, service: str, now: float, pid: int) -> None:
        """Record a sign of life of a service."""
        sql = "insert or replace into heartbeats (service, at, pid) values (?, ?, ?)"
        self._store.passing(None, sql, service, now, pid)

    def heartbeat(self, service: str) -> tuple[float, int] | None:
        """The service's last sign of life: Unix time and process id."""
        rows = self._store.select("select at, pid from heartbeats where service = ?", service)
        return (float(rows[0]["at"]), int(rows[0]["pid"])) if rows else None

    def report(self, *healths: Health) -> None:
        """Record how clouds or ``slurm`` answered, unless the same answer was written less than
        NO_NEWS seconds before.
        """
        # One lock around reading and writing: each cloud's thread reports here.
        with self._store.lock:
            previous = {h.name: h for h in self.all()}
            changed = [h for h in healths if _is_news(previous.get(h.name), h)]
            if not changed:
                return
            values = ", ".join(["(?, ?, ?, ?)"] * len(changed))
            sql = f"insert or replace into health (name, checked, error, code) values {values}"
            current = previous | {h.name: h for h in changed}
            rows = tuple(current[name] for name in sorted(current))
            self._store.passing(
                "health", sql, *(value for h in changed for value in astuple(h)), rows=rows
            )

    def all(self) -> tuple[Health, ...]:
        """The last answer of each cloud and of ``slurm``, by name."""
        return self._store.tables("health")[0]
