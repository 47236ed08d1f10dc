"""Take over files of releases without a journal. Their rows become the first segment, and the files
are kept as ``*.before-journal``.
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
    """Whether a release without a journal wrote the file. Raises sqlite3.DatabaseError for another
    program's database.
    """
    with contextlib.closing(view.connect(path)) as db:
        version = view.version_of(db, path, schema)
        if not version and view.tables_of(db):
            raise sqlite3.DatabaseError(f"{path} is a database, and no {schema.name}")
        return version < schema.adoptable_versions.stop


def put_by(path: Path, journal: Journal | None) -> None:
    """Rename the file after its rows are in the journal. Raises ConfigError if the earlier release
    wrote to the file after ``journal``, which lacks those rows (None: the rows were taken over just
    now, so no check is needed).
    """
    if journal is not None:
        _require_taken(path, journal)
    os.replace(path, path.with_name(f"{path.name}.before-journal"))


def _require_taken(path: Path, journal: Journal) -> None:
    newest = journal.path(journal.segments()[-1])
    beside = path.with_name(f"{path.name}-wal")
    written = max(file.stat().st_mtime for file in (path, beside) if file.exists())
    if written > newest.stat().st_mtime + _ROUNDED:
        raise ConfigError(
            f"{path} was written by a release without a journal after {journal.directory}: move "
            f"{journal.directory} away to use {path}, or move {path} away to use the directory"
        )


def carry_over(path: Path, schema: Schema, rows: sqlite3.Connection) -> None:
    """Copy the rows of the file to the tables of the same names; new columns get their defaults.
    Raises ConfigError for a schema that is too old.
    """
    with contextlib.closing(view.connect(path)) as db:
        version = view.version_of(db, path, schema)
        if version and version not in schema.adoptable_versions:
            raise ConfigError(
                f"the {schema.name} {path} has schema {version}, this release takes over schemas "
                f"from {schema.adoptable_versions.start} on: start the last release without a "
                "journal once, then this one"
            )
        # Moves all pages from -wal into the file, because ``put_by`` renames the file alone.
        db.execute("pragma journal_mode = delete")
        filler = Filler(rows, schema)
        with view.transaction(rows):
            filler.facts(view.rows_of(db, schema), 0)
