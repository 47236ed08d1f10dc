"""How the ledger's file is made, opened and brought up to date.

The tables are described in ``slurm_elastic.ledger``; the file of checkpoints is made here, too,
from its own schema (``ckptstate``). ``MIGRATIONS[n]`` takes a file from
user_version n to n + 1; each runs in one transaction with the new number, so that a crash leaves
either the old schema or the new one. Migrations are only ever appended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from slurm_elastic import statedir
from slurm_elastic.errors import ConfigError, SlurmElasticError
from slurm_elastic.ledger.trouble import LostFileError

BUSY_TIMEOUT = 10.0

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """create table launches (
            generation text primary key,
            request text not null,
            pool text not null,
            cloud text not null,
            nodes text not null,
            jobs text not null,
            offer text not null,
            minimum integer not null,
            state text not null check (state in ('intent', 'done', 'failed')),
            created real not null,
            finished real,
            error text
        ) without rowid""",
        "create index launches_request on launches (request)",
        "create index launches_open on launches (created) where state = 'intent'",
        """create table machines (
            id text primary key,
            cloud text not null,
            node text not null,
            generation text not null,
            instance_type text not null,
            zone text not null,
            market text not null,
            price real not null,
            state text not null,
            launched real not null,
            address text,
            pool text not null,
            jobs text not null,
            last_seen real not null,
            misses integer not null,
            suspending real,
            ended real,
            why text,
            worst_price real not null
        ) without rowid""",
        "create index machines_live on machines (cloud) where ended is null",
        "create index machines_ended on machines (ended) where ended is not null",
        """create table cool_downs (
            key text primary key,
            until real not null,
            code text not null,
            reason text not null,
            strikes integer not null
        ) without rowid""",
        """create table holds (
            node text primary key,
            pool text not null,
            reason text not null,
            since real not null,
            until real not null
        ) without rowid""",
        """create table decisions (
            id integer primary key,
            at real not null,
            correlation text not null,
            kind text not null,
            subjects text not null,
            reason text not null,
            detail text
        )""",
        "create index decisions_at on decisions (at)",
        """create table decision_subjects (
            subject text not null,
            decision integer not null,
            primary key (subject, decision)
        ) without rowid""",
        "create index decision_subjects_decision on decision_subjects (decision)",
        """create table heartbeats (
            service text primary key,
            at real not null,
            pid integer not null
        ) without rowid""",
        """create table health (
            name text primary key,
            checked real not null,
            error text,
            code text
        ) without rowid""",
    ),
    (
        """create table lifted_requeues (
            job integer primary key,
            restarts integer not null,
            at real not null
        )""",
    ),
    (
        # Two clouds may count their machines alike; and a machine of before has registered.
        """create table machines_by_cloud (
            id text not null,
            cloud text not null,
            node text not null,
            generation text not null,
            instance_type text not null,
            zone text not null,
            market text not null,
            price real not null,
            state text not null,
            launched real not null,
            address text,
            pool text not null,
            jobs text not null,
            last_seen real not null,
            misses integer not null,
            suspending real,
            ended real,
            why text,
            worst_price real not null,
            registered real,
            primary key (cloud, id)
        ) without rowid""",
        "insert into machines_by_cloud select *, launched from machines",
        "drop table machines",
        "alter table machines_by_cloud rename to machines",
        "create index machines_live on machines (cloud) where ended is null",
        "create index machines_ended on machines (ended) where ended is not null",
        """create table breakers (
            pool text primary key,
            failures integer not null,
            until real,
            reason text not null
        ) without rowid""",
    ),
    (
        # A node may be kept from Slurm for two causes, and is let go when both are over.
        "alter table holds rename to holds_of_one_kind",
        """create table holds (
            node text not null,
            kind text not null,
            pool text not null,
            reason text not null,
            since real not null,
            until real not null,
            primary key (node, kind)
        ) without rowid""",
        """insert into holds (node, kind, pool, reason, since, until)
            select node, 'capacity', pool, reason, since, until from holds_of_one_kind""",
        "drop table holds_of_one_kind",
    ),
    (
        # Whose budget pays a machine: its jobs may be forgotten by Slurm when somebody asks.
        "alter table launches add column accounts text not null default '{}'",
        "alter table machines add column accounts text not null default '{}'",
        """create table wanted_by (
            node text primary key,
            accounts text not null,
            at real not null
        ) without rowid""",
        """create table set_aside (
            job integer primary key,
            account text not null,
            partitions text not null,
            begin real not null,
            until real not null
        )""",
    ),
    (
        # With a cloud that was at work before, the ledger has what there is.
        """create table read_whole (
            cloud text primary key,
            at real not null
        ) without rowid""",
        """insert or ignore into read_whole (cloud, at)
            select name, checked from health where error is null
            union all select cloud, created from launches
            union all select cloud, last_seen from machines""",
    ),
    (
        # All launches took one machine as the least; nobody ever asked for another number.
        "alter table launches drop column minimum",
    ),
)


class Schema(Struct, frozen=True):
    """A file of ours: what it is called, who makes it, and its migrations."""

    name: str
    maker: str
    migrations: tuple[tuple[str, ...], ...]


LEDGER = Schema("ledger", "the daemon", MIGRATIONS)


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
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    draft = Path(name)
    try:
        try:
            os.fchmod(fd, statedir.FILE)
            if os.geteuid() == 0:
                owner = draft.parent.stat()
                os.fchown(fd, owner.st_uid, owner.st_gid)
        finally:
            os.close(fd)  # before sqlite opens it: closing any descriptor drops its POSIX locks
        with contextlib.closing(_connect(f"{_uri(draft)}?mode=rw")) as connection:
            _prepare(connection, draft, schema)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _migrate(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    migrations = schema.migrations
    if _version(connection, path, schema) == len(migrations):
        return
    connection.execute("begin immediate")
    try:
        # again under the write lock: another process may have been faster
        for number in range(_version(connection, path, schema), len(migrations)):
            for statement in migrations[number]:
                connection.execute(statement)
        connection.execute(f"pragma user_version = {len(migrations)}")
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


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
