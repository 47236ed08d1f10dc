"""The memory of slurm-elastic-ckptman: its own sqlite file, so that neither service can stop the
other.

``<state_dir>/checkpoints.db``, schema 2::

    notices        key, body (Warned), closed
    rescues        job, attempt (key), step, over, changed, body (Rescue)
    images         job, attempt, number (key), taken, body (Image): the good ones that are known;
                   the service notes when they were taken by its own clock
    interruptions  instance (key), offer, at: what the mean time between them is counted from
    releases       node (key): its drain of ours is to be undone, as a notice is over
    counters       name (key), value
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_elastic.ckptstate.rows import RecordedNotice, Rescue
from slurm_elastic.ledger.rows import to_json
from slurm_elastic.model import Image
from slurm_elastic.store.files import Schema, open_reader, open_writer
from slurm_elastic.store.store import Store, Write

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
)
SCHEMA = Schema("file of checkpoints", "slurm-elastic-ckptman", _MIGRATIONS)

_RESCUE = (
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
    "insert into counters (name, value) values (?, ?) "
    "on conflict (name) do update set value = value + excluded.value"
)


class CheckpointState(Store):
    """Each write is on the disk when its method returns; many threads' writes share one sync.

    sqlite3.Error passes through. ``read_only`` makes nothing, and raises SlurmElasticError where
    there is no file.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(open_reader(path, SCHEMA) if read_only else open_writer(path, SCHEMA))

    @property
    def trouble(self) -> tuple[str, str, float]:
        """Nothing: this state fails where its file does. See ``ckptstate.enduring``."""
        return "", "", 0.0

    def check(self) -> None:
        """Look after the file: nothing is done about it here."""

    # notices

    def warn(self, *warned: RecordedNotice) -> None:
        """Take notices in; one that is known stays as it is."""
        sql = "insert or ignore into notices (key, body, closed) values (?, ?, ?)"
        self._write([(sql, (w.key, to_json(w), w.closed)) for w in warned])

    def known(self, keys: Sequence[str]) -> frozenset[str]:
        """The keys of these that were taken in before, over or not."""
        sql = "select key from notices where key in (select value from json_each(?))"
        rows = self._select(sql, to_json(list(keys)))
        return frozenset(row["key"] for row in rows)

    def close_notice(self, warned: RecordedNotice, now: float, *, release: str = "") -> None:
        """The warning is over; the node ``release`` is to be let go again for that."""
        writes: list[Write] = [("update notices set closed = ? where key = ?", (now, warned.key))]
        if release:
            writes.append(("insert or ignore into releases (node) values (?)", (release,)))
        self._write(writes)

    def releases(self) -> tuple[str, ...]:
        """Nodes whose drain is to be undone."""
        return tuple(row["node"] for row in self._select("select node from releases order by node"))

    def released(self, *nodes: str) -> None:
        """That was done, or is not to be done any more."""
        self._write([("delete from releases where node = ?", (node,)) for node in nodes])

    def notices(self) -> tuple[RecordedNotice, ...]:
        """The rows that are not over, oldest first."""
        rows = self._select("select body from notices where closed is null")
        found = (msgspec.json.decode(row["body"], type=RecordedNotice) for row in rows)
        return tuple(sorted(found, key=lambda w: (w.notice.seen, w.key)))

    # rescues

    def put(self, *rescues: Rescue, image: Image | None = None) -> None:
        """Write down how far these have come, and with it a good image that is new."""
        images = [] if image is None else _saved(image)
        self._write([*images, *((_RESCUE, _rescue_row(r)) for r in rescues)])

    def rescues(self, *, since: float | None = None) -> tuple[Rescue, ...]:
        """The rows that are not over, and with ``since`` the ones that changed since then."""
        where, values = (
            ("over = 0", ()) if since is None else ("over = 0 or changed >= ?", (since,))
        )
        rows = self._select(f"select body from rescues where {where} order by changed", *values)
        return tuple(msgspec.json.decode(row["body"], type=Rescue) for row in rows)

    def rescue(self, job: int, attempt: int) -> Rescue | None:
        """That of one run, over or not."""
        sql = "select body from rescues where job = ? and attempt = ?"
        rows = self._select(sql, job, attempt)
        return msgspec.json.decode(rows[0]["body"], type=Rescue) if rows else None

    # images

    def saved(self, image: Image) -> None:
        """A good image is there."""
        self._write(_saved(image))

    def images(self, job: int | None = None) -> tuple[Image, ...]:
        """The known good images (of one job), newest first."""
        where, values = ("", ()) if job is None else ("where job = ?", (job,))
        rows = self._select(f"select body from images {where} order by taken desc", *values)
        return tuple(msgspec.json.decode(row["body"], type=Image) for row in rows)

    def forget(self, image: Image) -> None:
        """An image was found not to be whole, or is gone."""
        sql = "delete from images where job = ? and attempt = ? and number = ?"
        self._write([(sql, (image.job, image.attempt, image.number))])

    def forget_job(self, job: int) -> None:
        """The job has ended and its images are gone."""
        self._write([("delete from images where job = ?", (job,))])

    # what is counted

    def interrupted(self, offers: Mapping[str, str], now: float) -> None:
        """These machines (instance to its offer) are taken away; each counts once."""
        sql = "insert or ignore into interruptions (instance, offer, at) values (?, ?, ?)"
        self._write([(sql, (instance, offer, now)) for instance, offer in offers.items()])

    def interruptions(self, since: float) -> Mapping[str, int]:
        """How many machines of each offer were taken since then."""
        sql = "select offer, count(*) as n from interruptions where at >= ? group by offer"
        return {row["offer"]: row["n"] for row in self._select(sql, since)}

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters, ``name{label="value"}`` as Prometheus has them."""
        self._write([(_COUNT, (name, value)) for name, value in counts.items()])

    def counters(self) -> Mapping[str, float]:
        """All counters by name."""
        rows = self._select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def prune(self, before: float) -> None:
        """Forget rescues and notices that were over, and interruptions, before that time."""
        self._write([
            ("delete from rescues where over = 1 and changed < ?", (before,)),
            ("delete from notices where closed < ?", (before,)),
            ("delete from interruptions where at < ?", (before,)),
        ])  # fmt: skip


def _rescue_row(rescue: Rescue) -> tuple[object, ...]:
    run = rescue.run
    return run.job, run.attempt, str(rescue.step), rescue.over, rescue.changed, to_json(rescue)


def _saved(image: Image) -> list[Write]:
    """The image, and the end of those that say nothing more about the job's next save."""
    row = (image.job, image.attempt, image.number, image.taken, to_json(image))
    return [(_IMAGE, row), (_FORGET_OLD, (image.job, image.job, KNOWN_IMAGES))]
