"""The memory of slurm-elastic-ckptman: its own sqlite file, so that neither service can stop the
other.

``<state_dir>/checkpoints.db``, schema 4::

    notices        key, body (Warned), closed
    rescues        job, attempt (key), step, over, changed, body (Migration)
    images         job, attempt, number (key), taken, body (Image): the good ones that are known;
                   the service notes when they were taken by its own clock
    interruptions  instance (key), offer, at: what the mean time between them is counted from
    unsavable      job (key), body (Verdict): jobs of which a save is not possible
    suspensions    job (key), body (Suspension): jobs that are to be suspended again
    releases       node (key): its drain of ours is to be undone, as a notice is over
    counters       name (key), value
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.cluster import Image
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice, Suspension, Verdict
from slurm_elastic.state.store.files import Schema, open_reader, open_writer
from slurm_elastic.state.store.store import Store, Write

FILE = "checkpoints.db"
_MIGRATIONS = (
    (
        """create table notices (
            key text primary key,
            body text not null,
            closed real
        ) without rowid""",
        "create index notices_open on notices (key) where closed is null",
        """create table rescues (
            job integer not null,
            attempt integer not null,
            step text not null,
            over integer not null,
            changed real not null,
            body text not null,
            primary key (job, attempt)
        ) without rowid""",
        "create index rescues_open on rescues (changed) where over = 0",
        """create table images (
            job integer not null,
            attempt integer not null,
            number integer not null,
            taken real not null,
            body text not null,
            primary key (job, attempt, number)
        ) without rowid""",
        """create table interruptions (
            instance text primary key,
            offer text not null,
            at real not null
        ) without rowid""",
        "create table counters (name text primary key, value real not null) without rowid",
    ),
    ("create table releases (node text primary key) without rowid",),
    ("create table unsavable (job integer primary key, body text not null) without rowid",),
    ("create table suspensions (job integer primary key, body text not null) without rowid",),
)
SCHEMA = Schema("file of checkpoints", "slurm-elastic-ckptman", _MIGRATIONS)

_MIGRATE = (
    "insert or replace into rescues (job, attempt, step, over, changed, body) values (?,?,?,?,?,?)"
)
_IMAGE = "insert or replace into images (job, attempt, number, taken, body) values (?, ?, ?, ?, ?)"
_FORGET_OLD = (
    "delete from images where job = ? and taken < "
    "(select taken from images where job = ? order by taken desc limit 1 offset ?)"
)
KNOWN_IMAGES = 4
"""The images of a job, besides the last one."""
_COUNT = (
    "insert into counters (name, value) select key, value from json_each(?) where true "
    "on conflict (name) do update set value = value + excluded.value"
)
_Key = TypeVar("_Key")
_Body = TypeVar("_Body")
_Run = tuple[int, int]
"""Job and attempt."""


class _Past(Struct, frozen=True):
    """How a run was moved: ``renewed`` at its time limit, or ``stopped`` for it at least."""

    renewed: bool = False
    stopped: bool = False


_NOTHING = _Past()


class CheckpointState(Store):
    """Each write is on the disk when its method returns; many threads' writes share one sync.

    sqlite3.Error passes through. ``read_only`` makes nothing, and raises SlurmElasticError where
    there is no file. Only the service writes: from its first ``refresh`` on it reads each row once,
    and its writes change what it remembers, too.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(open_reader(path, SCHEMA) if read_only else open_writer(path, SCHEMA))

    @property
    def trouble(self) -> tuple[str, str, float]:
        """Nothing: this state fails where its file does. See ``state.ckptstate.enduring``."""
        return "", "", 0.0

    def check(self) -> None:
        """Look after the file: nothing is done about it here."""

    def _table(
        self, name: str, sql: str, read: Callable[[sqlite3.Row], tuple[_Key, _Body]]
    ) -> dict[_Key, _Body]:
        """A table by key, under the lock: what ``_write`` changes where it is remembered."""
        if name in self._memory:
            return cast("dict[_Key, _Body]", self._memory[name])
        rows = dict(read(row) for row in self._select(sql))
        if self._version is not None:
            self._memory[name] = rows
        return rows

    def _known(self, name: str) -> dict[Any, Any]:
        """The rows remembered of a table, for ``applied``; a dict of nobody's where it is not."""
        return cast("dict[Any, Any]", self._memory.get(name, {}))

    # notices

    def _all_notices(self) -> dict[str, RecordedNotice]:
        return self._table("notices", "select key, body, closed from notices", _notice_from)

    def warn(self, *warned: RecordedNotice, now: float) -> tuple[RecordedNotice, ...]:
        """Take notices in, and count each machine that one takes away; a notice that is known, over
        or not, stays as it is. Returns the new ones.
        """
        with self._lock:
            fresh = {w.key: w for w in warned if w.key not in self._all_notices()}
        sql = "insert or ignore into notices (key, body, closed) values (?, ?, ?)"
        writes: list[Write] = [(sql, (w.key, _json(w), w.closed)) for w in fresh.values()]
        sql = "insert or ignore into interruptions (instance, offer, at) values (?, ?, ?)"
        taken = {w.notice.instance: w.offer for w in fresh.values() if w.takes}
        writes += [(sql, (instance, offer, now)) for instance, offer in taken.items()]
        self._write(writes, lambda: self._known("notices").update(fresh))
        return tuple(fresh.values())

    def close_notice(self, warned: RecordedNotice, now: float, *, release: str = "") -> None:
        """The warning is over; the node ``release`` is to be let go again for that."""
        writes: list[Write] = [("update notices set closed = ? where key = ?", (now, warned.key))]
        if release:
            writes.append(("insert or ignore into releases (node) values (?)", (release,)))
        self._write(writes)

    def releases(self) -> tuple[str, ...]:
        """Nodes whose drain is to be undone."""
        sql = "select node from releases order by node"
        with self._lock:
            return tuple(self._table("releases", sql, lambda row: (row["node"], None)))

    def released(self, *nodes: str) -> None:
        """That was done, or is not to be done any more."""
        self._write([("delete from releases where node = ?", (node,)) for node in nodes])

    def notices(self) -> tuple[RecordedNotice, ...]:
        """The notices that are not over, oldest first."""
        with self._lock:
            found = [w for w in self._all_notices().values() if w.closed is None]
        return tuple(sorted(found, key=lambda w: (w.notice.seen, w.key)))

    # migrations

    def _open_migrations(self) -> dict[_Run, Migration]:
        if self._version is not None and "rescues" not in self._memory:
            # One reading for both: the next plan asks for the runs.
            moves = dict(map(_migration_from, self._select("select body from rescues")))
            self._memory["runs"] = {key: _past(move) for key, move in moves.items()}
            self._memory["rescues"] = {key: m for key, m in moves.items() if not m.over}
        return self._table("rescues", "select body from rescues where over = 0", _migration_from)

    def _all_runs(self) -> dict[_Run, _Past]:
        sql = "select job, attempt, body from rescues"
        return self._table("runs", sql, _past_from)

    def put(self, *migrations: Migration, image: Image | None = None) -> None:
        """Write down how far these have come, and with it a good image that is new."""
        images = [] if image is None else self._saved(image)
        writes = [*images, *((_MIGRATE, _migration_row(r)) for r in migrations)]
        self._write(writes, partial(self._remember, migrations, image))

    def _remember(self, migrations: Sequence[Migration], image: Image | None) -> None:
        standing, runs = self._known("rescues"), self._known("runs")
        for move in migrations:
            key = move.run.job, move.run.attempt
            runs[key] = _past(move)
            standing.pop(key, None)
            if not move.over:
                standing[key] = move
        if image is not None:
            self._add(image)

    def migrations(self, *, since: float | None = None) -> tuple[Migration, ...]:
        """The migrations that are not over, and with ``since`` those that changed since then."""
        if since is None:
            with self._lock:
                found = list(self._open_migrations().values())
        else:
            rows = self._select("select body from rescues where over = 0 or changed >= ?", since)
            found = [_migration_from(row)[1] for row in rows]
        return tuple(sorted(found, key=lambda move: move.changed))

    def migrations_of(self, job: int) -> tuple[Migration, ...]:
        """All migrations of one job that are known, over or not, by its runs."""
        rows = self._select("select body from rescues where job = ? order by attempt", job)
        return tuple(_migration_from(row)[1] for row in rows)

    def open_migration(self, job: int, attempt: int) -> Migration | None:
        """The migration of one run as it is now; None where it is over."""
        with self._lock:
            return self._open_migrations().get((job, attempt))

    def was_stopped(self, job: int, attempt: int) -> bool:
        """Whether that run was stopped for a move."""
        with self._lock:
            return self._all_runs().get((job, attempt), _NOTHING).stopped

    def renewals(self, job: int, restarts: int) -> int:
        """How many of its runs before the present one were requeued at their time limit."""
        with self._lock:
            runs = self._all_runs()
            return sum(runs.get((job, attempt), _NOTHING).renewed for attempt in range(restarts))

    # images

    def _all_images(self) -> dict[tuple[int, int, int], Image]:
        return self._table("images", "select body from images", _image_from)

    def saved(self, image: Image) -> None:
        """A good image is there."""
        self._write(self._saved(image), partial(self._add, image))

    def _saved(self, image: Image) -> list[Write]:
        """The image, and the end of those that say nothing more about the job's next save."""
        row = (image.job, image.attempt, image.number, image.taken, _json(image))
        writes: list[Write] = [(_IMAGE, row)]
        if len(self.images(image.job)) > KNOWN_IMAGES:
            writes.append((_FORGET_OLD, (image.job, image.job, KNOWN_IMAGES)))
        return writes

    def _add(self, image: Image) -> None:
        known = self._known("images")
        known[_image_key(image)] = image
        mine = sorted((i.taken for i in known.values() if i.job == image.job), reverse=True)
        for key, old in list(known.items()):
            if old.job == image.job and old.taken < mine[: KNOWN_IMAGES + 1][-1]:
                del known[key]

    def images(self, job: int | None = None) -> tuple[Image, ...]:
        """The known good images (of one job), newest first."""
        with self._lock:
            found = [i for i in self._all_images().values() if job in (None, i.job)]
        return tuple(sorted(found, key=lambda image: image.taken, reverse=True))

    def forget(self, image: Image) -> None:
        """An image was found not to be whole, or is gone."""
        sql = "delete from images where job = ? and attempt = ? and number = ?"
        self._write([(sql, _image_key(image))])

    def forget_job(self, job: int) -> None:
        """The job has ended and its images are gone."""
        self._write([("delete from images where job = ?", (job,))])

    # what cannot be saved

    def unsavable(self) -> Mapping[int, Verdict]:
        """The verdicts by job."""
        with self._lock:
            return dict(self._table("unsavable", "select job, body from unsavable", _verdict_from))

    def judge(self, verdict: Verdict) -> None:
        """Keep a verdict, in the place of an earlier one."""
        sql = "insert or replace into unsavable (job, body) values (?, ?)"
        self._write([(sql, (verdict.job, _json(verdict)))])

    def acquit(self, job: int) -> None:
        """The job was saved, or is over."""
        self._write([("delete from unsavable where job = ?", (job,))])

    # what is to be suspended again

    def suspensions(self) -> Mapping[int, Suspension]:
        """By job."""
        sql = "select job, body from suspensions"
        with self._lock:
            return dict(self._table("suspensions", sql, _suspension_from))

    def owe(self, one: Suspension) -> None:
        """The job is to be suspended again."""
        sql = "insert or replace into suspensions (job, body) values (?, ?)"
        self._write([(sql, (one.job, _json(one)))])

    def settled(self, job: int) -> None:
        """That was done, or the job is over."""
        self._write([("delete from suspensions where job = ?", (job,))])

    # what is counted

    def interruptions(self, since: float) -> Mapping[str, int]:
        """How many machines of each offer were taken since then."""
        sql = "select offer, count(*) as n from interruptions where at >= ? group by offer"
        return {row["offer"]: row["n"] for row in self._select(sql, since)}

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters, ``name{label="value"}`` as Prometheus has them."""
        self._write([(_COUNT, (_json(counts),))] if counts else [], lambda: None)

    def counters(self) -> Mapping[str, float]:
        """All counters by name."""
        rows = self._select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def prune(self, before: float) -> None:
        """Forget migrations and notices that were over, and interruptions, before that time."""
        self._write([
            ("delete from rescues where over = 1 and changed < ?", (before,)),
            ("delete from notices where closed < ?", (before,)),
            ("delete from interruptions where at < ?", (before,)),
        ])  # fmt: skip


def _migration_row(move: Migration) -> tuple[object, ...]:
    run = move.run
    return run.job, run.attempt, str(move.step), move.over, move.changed, _json(move)


def _migration_from(row: sqlite3.Row) -> tuple[_Run, Migration]:
    move = msgspec.json.decode(row["body"], type=Migration)
    return (move.run.job, move.run.attempt), move


def _past(move: Migration) -> _Past:
    return _Past(renewed=move.renewed, stopped=move.was_stopped)


def _past_from(row: sqlite3.Row) -> tuple[_Run, _Past]:
    key, move = _migration_from(row)
    return key, _past(move)


def _notice_from(row: sqlite3.Row) -> tuple[str, RecordedNotice]:
    warned = msgspec.json.decode(row["body"], type=RecordedNotice)
    return row["key"], replace(warned, closed=row["closed"])


def _verdict_from(row: sqlite3.Row) -> tuple[int, Verdict]:
    return row["job"], msgspec.json.decode(row["body"], type=Verdict)


def _suspension_from(row: sqlite3.Row) -> tuple[int, Suspension]:
    return row["job"], msgspec.json.decode(row["body"], type=Suspension)


def _image_from(row: sqlite3.Row) -> tuple[tuple[int, int, int], Image]:
    image = msgspec.json.decode(row["body"], type=Image)
    return _image_key(image), image


def _image_key(image: Image) -> tuple[int, int, int]:
    return image.job, image.attempt, image.number


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
