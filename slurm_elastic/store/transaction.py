"""All or nothing, in one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Everything that is written inside is on the disk afterwards; after an error none of it is."""
    db.execute("begin immediate")
    try:
        yield db
    except BaseException:
        if db.in_transaction:  # sqlite ends it itself where the disk is full
            db.execute("rollback")
        raise
    db.execute("commit")
