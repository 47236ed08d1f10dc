"""Files of releases that had no journal: their rows become the first segment, and they
are kept beside as ``*.before-journal``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.state.store import view
from slurm_elastic.state.store.journal import Journal
from slurm_elastic.state.store.view import Filler, Schema

_ROUNDED = 1.0
"""Seconds to which file systems may round."""


def is_before(path: Path, schema: Schema) -> bool:
    """Whether the file is one of those. sqlite3.DatabaseError for what is no file of ours."""
    with contextlib.closing(view.connect(path)) as db:
        version = view.version_of(db, path, schema)
        if not version and view.tables_of(db):
            raise sqlite3.DatabaseError(f"{path} is a database, and no {schema.name}")
        return version < schema.before.stop


def put_by(path: Path, journal: Journal | None) -> None:
    """Out of the way, once its rows are in the journal. ConfigError where that release has written
    to it since then, after ``journal`` (None: that was just now), which does not know what.
    """
    if journal is not None:
        _require_taken(path, journal)
    os.replace(path, path.with_name(f"{path.name}.before-journal"))


def _require_taken(path: Path, journal: Journal) -> None:
    newest = journal.path(journal.segments()[-1])
    beside = path.with_name(f"{path.name}-wal")
    written = max(one.stat().st_mtime for one in (path, beside) if one.exists())
    if written > newest.stat().st_mtime + _ROUNDED:
        raise ConfigError(
            f"{path} was written by a release without a journal after {journal.directory}: move "
            f"{journal.directory} away to go on with the one, or {path} to go on with the other"
        )


def carry_over(path: Path, schema: Schema, rows: sqlite3.Connection) -> None:
    """Its rows into the tables of the same names, and all of the file into one: nothing in -wal.
    Columns that are new have their defaults.
    """
    with contextlib.closing(view.connect(path)) as db:
        version = view.version_of(db, path, schema)
        if version and version not in schema.before:
            raise ConfigError(
                f"the {schema.name} {path} has schema {version}, this release takes over schemas "
                f"from {schema.before.start} on: start the last release without a journal once, "
                "then this one"
            )
        db.execute("pragma journal_mode = delete")
        filler = Filler(rows, schema)
        with view.transaction(rows):
            filler.facts(view.rows_of(db, schema), 0)
