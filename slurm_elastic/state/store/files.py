"""How a file of ours is made, opened and brought up to date.

``Schema.migrations[n]`` takes a file from ``pragma user_version`` n to n + 1; each runs in one
transaction with the new number, so that a crash leaves either the old schema or the new one.
Migrations are only ever appended. Files are in WAL mode, with locks of several processes: both
services have the ledger open, and commands of root and SlurmUser read beside them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.state import statedir
from slurm_elastic.state.store.store import transaction
from slurm_elastic.state.store.trouble import LostFileError

BUSY_TIMEOUT = 10.0


class Schema(Struct, frozen=True):
    """A file of ours: what it is called, who makes it, and its migrations."""

    name: str
    maker: str
    migrations: tuple[tuple[str, ...], ...]


def open_writer(path: Path, schema: Schema, *, timeout: float | None = None) -> sqlite3.Connection:
    """Open for reading and writing; make the file (mode 0600) and migrate it where needed.
    ``timeout`` (s) is how long to wait for other processes' locks.
    """
    if not path.exists():
        _create(path, schema)
    connection = _connect(f"{_uri(path)}?mode=rw", timeout)
    try:
        _prepare(connection, path, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def wait_as_usual(connection: sqlite3.Connection) -> None:
    """From now on it waits for other processes' locks as long as those that are just opened."""
    connection.execute(f"pragma busy_timeout = {int(BUSY_TIMEOUT * 1000)}")


def _prepare(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    connection.execute("pragma journal_mode = wal")
    # NORMAL may lose the last commits in a power cut; an intent row must not be lost
    connection.execute("pragma synchronous = full")
    _migrate(connection, path, schema)


def open_reader(path: Path, schema: Schema) -> sqlite3.Connection:
    """Open for reading only, also for users who may not write in the directory.

    A WAL file can be read by them only while its ``-wal`` and ``-shm`` stand beside it, as they do
    while the daemon runs. After a clean stop they are gone and the file alone is complete, so that
    reading it as immutable is right (https://www.sqlite.org/wal.html, "Read-Only Databases").
    """
    if not path.exists():
        raise SlurmElasticError(
            f"there is no {schema.name} at {path}; {schema.maker} makes it when it starts"
        )
    try:
        connection = _connect(f"{_uri(path)}?mode=ro")
        _check_version(connection, path, schema)
    except sqlite3.OperationalError:
        if path.with_name(path.name + "-wal").exists():
            raise
        connection = _connect(f"{_uri(path)}?mode=ro&immutable=1")
        _check_version(connection, path, schema)
    return connection


def open_memory(schema: Schema) -> sqlite3.Connection:
    """An empty one that ends with the process."""
    connection = _connect(":memory:")
    _migrate(connection, Path(":memory:"), schema)
    return connection


def lost(path: Path) -> LostFileError:
    """The file that was opened is not at its path any more."""
    return LostFileError(errno.ENOENT, "it is not the file that was opened", str(path))


def _connect(uri: str, timeout: float | None = None) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_TIMEOUT if timeout is None else timeout,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    return connection


def _uri(path: Path) -> str:
    return f"file:{quote(str(path.absolute()))}"


def _create(path: Path, schema: Schema) -> None:
    """Make the file complete under another name, then give it its own, unless it got there first.

    So nobody meets a half-made ledger, and no two processes switch one file to WAL at once (sqlite
    answers "database is locked" to that without waiting). It is its owner's alone: sqlite gives the
    ``-wal`` and ``-shm`` beside it the same mode, and who can open those can lock the ledger.
    When root makes it (a command run before the daemon's first start), it goes to the owner of the
    directory, or the daemon could not write to it.
    """
    owner = writing.owner_in(path.absolute().parent)
    with writing.draft(path, mode=statedir.FILE, owner=owner) as draft:
        with contextlib.closing(_connect(f"{_uri(draft)}?mode=rw")) as connection:
            _prepare(connection, draft, schema)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)


def _migrate(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    migrations = schema.migrations
    if _version(connection, path, schema) == len(migrations):
        return
    with transaction(connection):
        # again under the write lock: another process may have been faster
        for number in range(_version(connection, path, schema), len(migrations)):
            for statement in migrations[number]:
                connection.execute(statement)
        connection.execute(f"pragma user_version = {len(migrations)}")


def _version(connection: sqlite3.Connection, path: Path, schema: Schema) -> int:
    version = int(connection.execute("pragma user_version").fetchone()[0])
    if version > len(schema.migrations):
        raise ConfigError(
            f"the {schema.name} {path} has schema {version}, this release knows schemas up to "
            f"{len(schema.migrations)}: install the newer slurm-elastic again"
        )
    return version


def _check_version(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    try:
        version = _version(connection, path, schema)
    except BaseException:
        connection.close()
        raise
    if version < len(schema.migrations):
        connection.close()
        raise SlurmElasticError(
            f"the {schema.name} {path} has schema {version}, this release reads schema "
            f"{len(schema.migrations)}: {schema.maker} brings it up to date when it starts"
        )
