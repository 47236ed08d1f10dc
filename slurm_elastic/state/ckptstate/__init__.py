"""The memory of slurm-elastic-ckptman: its own journal and view (``store``), so that neither
service can stop the other.

``<state_dir>/checkpoints.db``::

    notices        key, body (RecordedNotice), closed
    migrations     job, attempt (key), step, over, changed, body (Migration)
    images         job, attempt, number (key), taken, body (Image): the good ones that are known;
                   the service notes when they were taken by its own clock
    interruptions  instance (key), offer, at: what the mean time between them is counted from
    unsavable      job (key), body (UnsavableRun): jobs of which a save is not possible
    suspensions    job (key), body (Suspension): jobs that are to be suspended again
    releases       node (key): its drain of ours is to be undone, as a notice is over
    counters       name (key), value
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.checkpoint import Image
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice, Suspension, UnsavableRun
from slurm_elastic.state.ckptstate.schema import SCHEMA
from slurm_elastic.state.store.counters import COUNT
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.endurance import Endurance, Refuge
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.store import Keyed, Reader, Store
from slurm_elastic.state.store.view import to_json

IN_MEMORY = "in memory only"
IN_MEMORY_EFFECT = (
    "jobs are saved and requeued as ever; what is under way is forgotten if slurm-elastic-ckptman "
    "ends before it is over"
)

MAX_OLDER_IMAGES = 4
"""The images of a job, besides the last one."""

_Row = Mapping[str, Any] | sqlite3.Row


class _PastMove(Struct, frozen=True):
    """How a run was moved: ``renewed`` at its time limit, or ``stopped`` for it at least."""

    renewed: bool = False
    stopped: bool = False


_NO_PAST_MOVE = _PastMove()


class CheckpointState(Store):
    """Each write is on the disk when its method returns; many threads' writes share one sync.

    sqlite3.Error passes through. ``read_only`` makes nothing, and raises SlurmElasticError where
    there is no file. Only the service writes: from its first ``refresh`` on it reads each row once,
    and its writes change what it remembers, too.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        home = Reader if read_only else Disk
        super().__init__(home(path, SCHEMA), SCHEMA, keyed=_KEYED)

    @classmethod
    def enduring(
        cls,
        path: Path,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> CheckpointState:
        """The service's: a write or read that fails is done once more in memory; ``check`` changes
        back.
        """
        made = cls.__new__(cls)
        home = Refuge(path, SCHEMA, Endurance(IN_MEMORY, IN_MEMORY_EFFECT, now, monotonic))
        Store.__init__(made, home, SCHEMA, keyed=_KEYED)
        return made

    @property
    def disk_trouble(self) -> tuple[str, str, float]:
        """Why nothing is written to the disk, what to do, since when; "" where it is."""
        found = self.trouble
        if found is None:
            return "", "", 0.0
        return f"{IN_MEMORY}: {found.what}", found.remedy, self.trouble_since

    def check(self) -> None:
        """Go over to memory where the files cannot be used, and back where they can."""
        self.look_after()

    def _retry_in_memory(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it answers
        with self.lock:  # nobody else gives up in between
            try:
                return call()
            except sqlite3.Error as error:
                # A part of a transaction is not repeated alone: in memory there is nothing of the
                # other parts.
                if self._depth or not self.give_up(error):
                    raise
                return call()

    def select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        rows: list[sqlite3.Row] = self._retry_in_memory(
            lambda: super(CheckpointState, self).select(sql, *values)
        )
        return rows

    def _append(self, batches: Sequence[Sequence[Fact]]) -> None:
        self._retry_in_memory(lambda: super(CheckpointState, self)._append(batches))

    # notices

    def add_notices(self, *warned: RecordedNotice, now: float) -> tuple[RecordedNotice, ...]:
        """Take notices in, and count each machine that one takes away; a notice that is known, over
        or not, stays as it is. Returns the new ones.
        """
        with self.lock:
            known = self.by_key("notices")
            fresh = {w.key: w for w in warned if w.key not in known}
            # Several notices may take one machine away, which is interrupted once.
            counted = {w.notice.instance for w in known.values() if w.takes}
        taken = {w.notice.instance: w.offer for w in fresh.values() if w.takes}
        rows = [
            {"instance": instance, "offer": offer, "at": now}
            for instance, offer in taken.items()
            if instance not in counted
        ]
        notices = [_notice_row(one, one.closed) for one in fresh.values()]
        self._write(Fact(put="notices", rows=notices), Fact(put="interruptions", rows=rows))
        return tuple(fresh.values())

    def close_notice(self, warned: RecordedNotice, now: float, *, release: str = "") -> None:
        """The warning is over; the node ``release`` is to be let go again for that."""
        released = [{"node": release}] if release else []
        # In one write: a crash between the two would leave the node drained for good.
        over = Fact(put="notices", rows=[_notice_row(warned, now)])
        self._write(over, Fact(put="releases", rows=released))

    def releases(self) -> tuple[str, ...]:
        """Nodes whose drain is to be undone."""
        with self.lock:
            return tuple(sorted(self.by_key("releases")))

    def forget_releases(self, *nodes: str) -> None:
        """That was done, or is not to be done any more."""
        self._write(Fact(drop="releases", rows=[{"node": node} for node in nodes]))

    def notices(self) -> tuple[RecordedNotice, ...]:
        """The notices that are not over, oldest first."""
        with self.lock:
            found = [w for w in self.by_key("notices").values() if w.closed is None]
        return tuple(sorted(found, key=lambda w: (w.notice.seen, w.key)))

    # migrations

    def put(self, *migrations: Migration, image: Image | None = None) -> None:
        """Write down how far these have come, and with it a good image that is new."""
        images = [] if image is None else self._image_facts(image)
        rows = [
            {"job": move.run.job, "attempt": move.run.attempt, "step": str(move.step),
             "over": int(move.over), "changed": move.changed, "body": to_json(move)}
            for move in migrations
        ]  # fmt: skip
        self._write(*images, Fact(put="migrations", rows=rows))

    def migrations(self, *, since: float | None = None) -> tuple[Migration, ...]:
        """The migrations that are not over, and with ``since`` those that changed since then."""
        if since is None:
            with self.lock:
                found = list(self.by_key("migrations").values())
        else:
            rows = self.select("select body from migrations where over = 0 or changed >= ?", since)
            found = [_migration_of(row) for row in rows]
        return tuple(sorted(found, key=lambda move: move.changed))

    def migrations_of(self, job: int) -> tuple[Migration, ...]:
        """All migrations of one job that are known, over or not, by its runs."""
        rows = self.select("select body from migrations where job = ? order by attempt", job)
        return tuple(_migration_of(row) for row in rows)

    def open_migration(self, job: int, attempt: int) -> Migration | None:
        """The migration of one run as it is now; None where it is over."""
        with self.lock:
            found: Migration | None = self.by_key("migrations").get((job, attempt))
            return found

    def was_stopped(self, job: int, attempt: int) -> bool:
        """Whether that run was stopped for a move."""
        with self.lock:
            past: _PastMove = self.by_key("runs").get((job, attempt), _NO_PAST_MOVE)
            return past.stopped

    def renewals(self, job: int, restarts: int) -> int:
        """How many of its runs before the present one were requeued at their time limit."""
        with self.lock:
            runs = self.by_key("runs")
            return sum(
                runs.get((job, attempt), _NO_PAST_MOVE).renewed for attempt in range(restarts)
            )

    # images

    def add_image(self, image: Image) -> None:
        """A good image is there."""
        self._write(*self._image_facts(image))

    def _image_facts(self, image: Image) -> list[Fact]:
        """The image, and the end of those that say nothing more about the job's next save."""
        row = {**_image_key(image), "taken": image.taken, "body": to_json(image)}
        known = [one for one in self.images(image.job) if _image_key(one) != _image_key(image)]
        newest = sorted((one.taken for one in (*known, image)), reverse=True)[
            : MAX_OLDER_IMAGES + 1
        ]
        old = [_image_key(one) for one in known if one.taken < newest[-1]]
        return [Fact(put="images", rows=[row]), Fact(drop="images", rows=old)]

    def images(self, job: int | None = None) -> tuple[Image, ...]:
        """The known good images (of one job), newest first."""
        with self.lock:
            known = self.by_key("images").values()
            found = [image for image in known if job in (None, image.job)]
        return tuple(sorted(found, key=lambda image: image.taken, reverse=True))

    def forget_image(self, image: Image) -> None:
        """An image was found not to be whole, or is gone."""
        self._forget_images([image])

    def _forget_images(self, images: Sequence[Image]) -> None:
        self._write(Fact(drop="images", rows=[*map(_image_key, images)]))

    def forget_images_of(self, job: int) -> None:
        """The job has ended and its images are gone."""
        self._forget_images(self.images(job))

    # what cannot be saved

    def unsavable(self) -> Mapping[int, UnsavableRun]:
        """The verdicts by job."""
        with self.lock:
            return dict(self.by_key("unsavable"))

    def put_verdict(self, verdict: UnsavableRun) -> None:
        """Keep a verdict, in the place of an earlier one."""
        row = {"job": verdict.job, "body": to_json(verdict)}
        self._write(Fact(put="unsavable", rows=[row]))

    def forget_verdict(self, job: int) -> None:
        """The job was saved, or is over."""
        self._write(Fact(drop="unsavable", rows=[{"job": job}]))

    # what is to be suspended again

    def suspensions(self) -> Mapping[int, Suspension]:
        """By job."""
        with self.lock:
            return dict(self.by_key("suspensions"))

    def add_suspension(self, one: Suspension) -> None:
        """The job is to be suspended again."""
        row = {"job": one.job, "body": to_json(one)}
        self._write(Fact(put="suspensions", rows=[row]))

    def forget_suspension(self, job: int) -> None:
        """That was done, or the job is over."""
        self._write(Fact(drop="suspensions", rows=[{"job": job}]))

    # what is counted

    def interruptions(self, since: float) -> Mapping[str, int]:
        """How many machines of each offer were taken since then."""
        sql = "select offer, count(*) as n from interruptions where at >= ? group by offer"
        return {row["offer"]: row["n"] for row in self.select(sql, since)}

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters, ``name{label="value"}`` as Prometheus has them."""
        if counts:
            self._retry_in_memory(lambda: self.execute(None, COUNT, to_json(counts)))

    def counters(self) -> Mapping[str, float]:
        """All counters by name."""
        rows = self.select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def prune(self, before: float) -> None:
        """Forget migrations and notices that were over, and interruptions, before that time."""
        with self.transaction("notices", "runs") as db:
            db.execute("delete from migrations where over = 1 and changed < ?", (before,))
            db.execute("delete from notices where closed < ?", (before,))
            db.execute("delete from interruptions where at < ?", (before,))
        self.shorten()


def _notice_row(warned: RecordedNotice, closed: float | None) -> dict[str, Any]:
    return {"key": warned.key, "body": to_json(warned), "closed": closed}


def _notice_of(row: _Row) -> RecordedNotice:
    warned = msgspec.json.decode(row["body"], type=RecordedNotice)
    return replace(warned, closed=row["closed"])


def _migration_of(row: _Row) -> Migration:
    return msgspec.json.decode(row["body"], type=Migration)


def _past_move_of(row: _Row) -> _PastMove | None:
    move = _migration_of(row)
    past = _PastMove(renewed=move.renewed, stopped=move.was_stopped)
    return None if past == _NO_PAST_MOVE else past


def _image_key(image: Image) -> dict[str, Any]:
    return {"job": image.job, "attempt": image.attempt, "number": image.number}


def _body_of(kind: type[Any]) -> Callable[[_Row], Any]:
    return lambda row: msgspec.json.decode(row["body"], type=kind)


_KEYED = {
    "notices": Keyed("notices", _notice_of),
    "migrations": Keyed(
        "migrations", lambda row: None if row["over"] else _migration_of(row), "where over = 0"
    ),
    "runs": Keyed("migrations", _past_move_of),
    "images": Keyed("images", _body_of(Image)),
    "unsavable": Keyed("unsavable", _body_of(UnsavableRun)),
    "suspensions": Keyed("suspensions", _body_of(Suspension)),
    "releases": Keyed("releases", lambda row: row["node"]),
}
"""Of the moves the open ones, and of all what the next one asks of them."""
