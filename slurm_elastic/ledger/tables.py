"""The part of the ledger that goes into memory while its file cannot be used, and back.

Decisions stay in the file, as there are many of them and nothing but ``explain`` reads those of
long ago; new ones are added to it.
"""

from __future__ import annotations

import sqlite3

from slurm_elastic.ledger.rows import aside_from, hold_from, launch_from, machine_from
from slurm_elastic.store.moving import Table

_NEWS = ("state", "address", "last_seen", "misses", "suspending", "ended", "why", "registered")
LEDGER_TABLES = (
    Table(
        name="launches",
        keys=("generation",),
        where="where state = 'intent' or created >= :since",
        reader=launch_from,
    ),
    Table(
        name="machines",
        keys=("cloud", "id"),
        where="where ended is null or ended >= :since",
        reader=machine_from,
        newer=_NEWS,
    ),
    Table(name="cool_downs", keys=("key",)),
    Table(name="holds", keys=("node", "kind"), reader=hold_from),
    Table(name="breakers", keys=("pool",)),
    Table(name="wanted_by", keys=("node",)),
    Table(name="set_aside", keys=("job",), reader=aside_from),
    Table(name="lifted_requeues", keys=("job",)),
    # A cloud may have machines that are not among the rows.
    Table(name="read_whole", keys=("cloud",), doubted=True),
    Table(name="health", keys=("name",)),
)


def add_decisions(memory: sqlite3.Connection, file: sqlite3.Connection) -> None:
    """The rows of memory come to the ones of the file."""
    columns = "at, correlation, kind, subjects, reason, detail"
    for row in memory.execute(f"select id, {columns} from decisions order by id"):
        sql = f"insert into decisions ({columns}) values (?, ?, ?, ?, ?, ?)"
        number = file.execute(sql, tuple(row)[1:]).lastrowid
        subjects = memory.execute(
            "select subject from decision_subjects where decision = ?", (row["id"],)
        ).fetchall()
        file.executemany(
            "insert or ignore into decision_subjects (subject, decision) values (?, ?)",
            [(subject["subject"], number) for subject in subjects],
        )
