"""A damaged file is put beside, under its name with a date, never deleted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from slurm_elastic.store.trouble import Kind, kind_of

_BESIDE = ("-wal", "-shm")


def is_damaged(connection: sqlite3.Connection) -> bool:
    """Whether sqlite itself says so: an error alone may have been the disk's of that moment."""
    try:
        row = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return kind_of(error) is Kind.CORRUPT
    return row is not None and row[0] != "ok"


def set_aside(path: Path, now: float) -> Path | None:
    """Rename the file and what sqlite has left beside it; None where there was none of them.

    The file itself goes last: a new one that found an old ``-wal`` would take its pages for its
    own. OSError passes.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    there = [p for s in (*_BESIDE, "") if (p := path.with_name(path.name + s)).exists()]
    if not there:
        return None
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for one in there:
        os.rename(one, aside.with_name(aside.name + one.name[len(path.name) :]))
    _sync(path.parent)
    return aside


def _sync(directory: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
