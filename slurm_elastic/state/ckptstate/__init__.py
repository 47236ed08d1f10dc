"""The state of slurm-elastic-ckptman. It has its own journal and view (``store``), so that neither
service can stop the other.

``<state_dir>/checkpoints.db``::

    notices        key, body (RecordedNotice), closed
    migrations     job, attempt (key), step, over, changed, body (Migration)
    images         job, attempt, number (key), taken, body (Image): the known good images;
                   ``taken`` is by the service's own clock
    interruptions  instance (key), offer, at: for the mean time between interruptions
    unsavable      job (key), body (UnsavableRun): jobs that cannot be saved
    suspensions    job (key), body (Suspension): jobs that must be suspended again
    avoided        job (key), body (AvoidedNodes): nodes that could not use a job's image
    releases       node (key): our drain must be undone, because its notice is over
    counters       name (key), value
"""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.state.ckptstate.facts import (
    AvoidedNodes,
    Migration,
    RecordedNotice,
    Suspension,
    UnsavableRun,
)
from slurm_elastic.state.ckptstate.schema import SCHEMA
from slurm_elastic.state.store.counters import COUNT
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.endurance import Endurance, Refuge
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.store import KeyedTable, Reader, Store
from slurm_elastic.state.store.trouble import TroubleKind
from slurm_elastic.state.store.view import to_json

IN_MEMORY = "in memory only"
IN_MEMORY_EFFECT = (
    "jobs are saved and requeued as ever; what is under way is forgotten if slurm-elastic-ckptman "
    "ends before it is over"
)
"""The effect on jobs while nothing is written to the disk."""

MAX_OLDER_IMAGES = 4
"""The number of older images of a job that are kept in addition to the newest one."""

_Row = Mapping[str, Any] | sqlite3.Row


class _PastMove(Struct, frozen=True):
    """How a run was moved: ``renewed`` at its time limit, or at least ``stopped`` for a move.
    ``excludes``: the move is over, and its job still has our list of excluded nodes. ``key``: the
    identity of the job; None if there is nothing to know about the run.
    """

    renewed: bool = False
    stopped: bool = False
    excludes: bool = False
    key: JobKey | None = None


_NO_PAST_MOVE = _PastMove()


class CheckpointState(Store):
    """The state of slurm-elastic-ckptman. A write is on the disk when its method returns; writes of
    several threads share one sync.

    sqlite3.Error passes through. ``read_only`` creates nothing, and raises SlurmElasticError if
    there is no file. Only the service writes: after its first ``refresh`` it reads each row only
    once, and its writes also change the cached rows.
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
        """The service's state: if a write or read fails, it is repeated in memory. ``check``
        changes back to the disk.
        """
        state = cls.__new__(cls)
        home = Refuge(path, SCHEMA, Endurance(IN_MEMORY, IN_MEMORY_EFFECT, now, monotonic))
        Store.__init__(state, home, SCHEMA, keyed=_KEYED)
        return state

    @property
    def disk_trouble(self) -> tuple[str, str, float]:
        """Why nothing is written to the disk, what to do, and since when (Unix time); "" if the
        disk is used.
        """
        trouble = self.trouble
        if trouble is None:
            return "", "", 0.0
        return f"{IN_MEMORY}: {trouble.text}", trouble.remedy, self.trouble_since

    @property
    def is_disk_full(self) -> bool:
        """Whether nothing is written because the disk is full."""
        return self.trouble is not None and self.trouble.kind is TroubleKind.FULL

    def check(self) -> None:
        """Change to memory if the files cannot be used, and back once they can."""
        self.look_after()

    def _retry_in_memory(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it answers
        with self.lock:  # Under the lock, so that no other thread changes to memory in between.
            try:
                return call()
            except sqlite3.Error as error:
                # Never repeat only a part of a transaction: the memory does not have its other
                # parts.
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

    def add_notices(self, *notices: RecordedNotice, now: float) -> tuple[RecordedNotice, ...]:
        """Add notices, and count each machine that a notice takes away. A known notice, closed or
        not, stays as it is. Returns the new ones.
        """
        with self.lock:
            known_notices = self.by_key("notices")
            new_notices = {
                recorded.key: recorded for recorded in notices if recorded.key not in known_notices
            }
            # Several notices may take one machine away, which is interrupted once.
            counted_instances = {
                recorded.notice.instance for recorded in known_notices.values() if recorded.takes
            }
        offer_by_instance = {
            recorded.notice.instance: recorded.offer
            for recorded in new_notices.values()
            if recorded.takes
        }
        rows = [
            {"instance": instance, "offer": offer, "at": now}
            for instance, offer in offer_by_instance.items()
            if instance not in counted_instances
        ]
        notice_rows = [_notice_row(recorded, recorded.closed) for recorded in new_notices.values()]
        self._write(Fact(put="notices", rows=notice_rows), Fact(put="interruptions", rows=rows))
        return tuple(new_notices.values())

    def update_notice(self, recorded: RecordedNotice) -> None:
        """Write what was seen of an open notice's node."""
        self._write(Fact(put="notices", rows=[_notice_row(recorded, None)]))

    def close_notice(self, recorded: RecordedNotice, now: float, *, release: str = "") -> None:
        """Record that the notice is over, and that the node ``release`` must be released
        for that.
        """
        release_rows = [{"node": release}] if release else []
        # In one write: after a crash between two writes the node would stay drained for ever.
        closing = Fact(put="notices", rows=[_notice_row(recorded, now)])
        self._write(closing, Fact(put="releases", rows=release_rows))

    def closed_standing_notices(self, source: str) -> tuple[RecordedNotice, ...]:
        """The closed notices that this source may still repeat."""
        with self.lock:
            return tuple(
                recorded
                for recorded in self.by_key("notices").values()
                if recorded.closed is not None
                and recorded.is_standing
                and recorded.source == source
            )

    def forget_notices(self, *notices: RecordedNotice) -> None:
        """Delete closed notices. If their source gives them again, they are new."""
        self._write(Fact(drop="notices", rows=[{"key": recorded.key} for recorded in notices]))

    def releases(self) -> tuple[str, ...]:
        """Nodes whose drain must be undone."""
        with self.lock:
            return tuple(sorted(self.by_key("releases")))

    def forget_releases(self, *nodes: str) -> None:
        """Delete the record of nodes to release: these were released, or need no release any
        longer.
        """
        self._write(Fact(drop="releases", rows=[{"node": node} for node in nodes]))

    def notices(self) -> tuple[RecordedNotice, ...]:
        """The open notices, oldest first."""
        with self.lock:
            open_notices = [
                recorded for recorded in self.by_key("notices").values() if recorded.closed is None
            ]
        return tuple(
            sorted(open_notices, key=lambda recorded: (recorded.notice.seen, recorded.key))
        )

    def put(self, *migrations: Migration, image: Image | None = None) -> None:
        """Write the state of these migrations, and a new good image with them."""
        images = [] if image is None else self._image_facts(image)
        rows = [
            {"job": move.run.job, "attempt": move.run.attempt, "step": str(move.step),
             "over": int(move.is_over), "changed": move.changed, "body": to_json(move)}
            for move in migrations
        ]  # fmt: skip
        self._write(*images, Fact(put="migrations", rows=rows))

    def migrations(self, *, since: float | None = None) -> tuple[Migration, ...]:
        """The open migrations; with ``since`` (Unix time) also moves changed since."""
        if since is None:
            with self.lock:
                moves = list(self.by_key("migrations").values())
        else:
            rows = self.select("select body from migrations where over = 0 or changed >= ?", since)
            moves = [_migration_of(row) for row in rows]
        return tuple(sorted(moves, key=lambda move: move.changed))

    def migrations_of(self, job: int) -> tuple[Migration, ...]:
        """All migrations of a job's runs, oldest first."""
        rows = self.select("select body from migrations where job = ? order by attempt", job)
        return tuple(_migration_of(row) for row in rows)

    def open_migration(self, job: int, attempt: int) -> Migration | None:
        """The current migration of one run; None if it is over."""
        with self.lock:
            move: Migration | None = self.by_key("migrations").get((job, attempt))
            return move

    def was_stopped(self, job: int, attempt: int) -> bool:
        """Whether that run was stopped for a move."""
        with self.lock:
            past_move: _PastMove = self.by_key("runs").get((job, attempt), _NO_PAST_MOVE)
            return past_move.stopped

    def renewals(self, job: int, restarts: int) -> int:
        """How many of the job's runs before the current one were requeued at their time limit."""
        with self.lock:
            runs = self.by_key("runs")
            return sum(
                runs.get((job, attempt), _NO_PAST_MOVE).renewed for attempt in range(restarts)
            )

    def jobs_with_exclusions(self) -> frozenset[int]:
        """Jobs whose move is over, and whose list of excluded nodes is ours instead of the
        user's.
        """
        with self.lock:
            runs = self.by_key("runs")
            return frozenset(job for (job, _), past_move in runs.items() if past_move.excludes)

    # images

    def add_image(self, image: Image) -> None:
        """Add a good image."""
        self._write(*self._image_facts(image))

    def _image_facts(self, image: Image) -> list[Fact]:
        """The facts that add the image and drop the images older than the kept ones."""
        row = {**_image_key(image), "taken": image.taken, "body": to_json(image)}
        other_images = [
            other for other in self.images(image.job) if _image_key(other) != _image_key(image)
        ]
        newest_times = sorted((other.taken for other in (*other_images, image)), reverse=True)[
            : MAX_OLDER_IMAGES + 1
        ]
        old_rows = [_image_key(other) for other in other_images if other.taken < newest_times[-1]]
        return [Fact(put="images", rows=[row]), Fact(drop="images", rows=old_rows)]

    def images(self, job: int | None = None) -> tuple[Image, ...]:
        """The known good images (of one job), newest first."""
        with self.lock:
            all_images = self.by_key("images").values()
            images = [image for image in all_images if job in (None, image.job)]
        return tuple(sorted(images, key=lambda image: image.taken, reverse=True))

    def forget_image(self, image: Image) -> None:
        """Delete the record of an image that is not whole, or is gone."""
        self._forget_images([image])

    def _forget_images(self, images: Sequence[Image]) -> None:
        self._write(Fact(drop="images", rows=[*map(_image_key, images)]))

    def forget_images_of(self, job: int) -> None:
        """Delete the records of a job's images: the job has ended, and its images are gone."""
        self._forget_images(self.images(job))

    # jobs whose number was given to another job

    def forget_earlier_jobs(self, present: Mapping[int, JobKey]) -> frozenset[int]:
        """Delete all records of jobs whose number another job has now, and return these numbers.
        ``present``: the jobs that Slurm lists. Every other method compares only the number.
        """
        with self.lock:
            images = tuple(self.by_key("images").values())
            moves = {run: move.run.key for run, move in self.by_key("migrations").items()}
            moves |= {run: past.key for run, past in self.by_key("runs").items() if past.key}
        recorded = {*moves.values(), *(image.key for image in images)}
        numbers = frozenset(
            key.number
            for key in recorded
            if (job := present.get(key.number)) is not None and not job.may_follow(key)
        )
        if numbers:
            runs = [{"job": job, "attempt": n} for job, n in moves if job in numbers]
            jobs = [{"job": number} for number in sorted(numbers)]
            self._write(
                Fact(drop="images", rows=[_image_key(i) for i in images if i.job in numbers]),
                Fact(drop="migrations", rows=runs),
                Fact(drop="unsavable", rows=jobs),
                Fact(drop="suspensions", rows=jobs),
                Fact(drop="avoided", rows=jobs),
            )
        return numbers

    # jobs that cannot be saved

    def unsavable(self) -> Mapping[int, UnsavableRun]:
        """The verdicts, by job."""
        with self.lock:
            return dict(self.by_key("unsavable"))

    def put_verdict(self, verdict: UnsavableRun) -> None:
        """Write a verdict. It replaces the job's earlier one."""
        row = {"job": verdict.job, "body": to_json(verdict)}
        self._write(Fact(put="unsavable", rows=[row]))

    def forget_verdict(self, job: int) -> None:
        """Delete the verdict on a job that was saved, or is over."""
        self._write(Fact(drop="unsavable", rows=[{"job": job}]))

    # jobs to suspend again

    def suspensions(self) -> Mapping[int, Suspension]:
        """The jobs that must be suspended again, by job."""
        with self.lock:
            return dict(self.by_key("suspensions"))

    def add_suspension(self, suspension: Suspension) -> None:
        """Record that the job must be suspended again."""
        row = {"job": suspension.job, "body": to_json(suspension)}
        self._write(Fact(put="suspensions", rows=[row]))

    def forget_suspension(self, job: int) -> None:
        """Delete the record of a job that was suspended again, or is over."""
        self._write(Fact(drop="suspensions", rows=[{"job": job}]))

    # nodes that could not use a job's image

    def avoided_nodes(self) -> Mapping[int, AvoidedNodes]:
        """The nodes that we have excluded, by job."""
        with self.lock:
            return dict(self.by_key("avoided"))

    def put_avoided(self, avoided: AvoidedNodes) -> None:
        """Record the nodes that we exclude for the job, in place of the earlier record."""
        row = {"job": avoided.job, "body": to_json(avoided)}
        self._write(Fact(put="avoided", rows=[row]))

    def forget_avoided(self, job: int) -> None:
        """Delete the record of a job that is over, or excludes only its user's nodes again."""
        self._write(Fact(drop="avoided", rows=[{"job": job}]))

    # counters

    def interruptions(self, since: float) -> Mapping[str, int]:
        """How many machines of each offer were taken away after that time (Unix time)."""
        sql = "select offer, count(*) as n from interruptions where at >= ? group by offer"
        return {row["offer"]: row["n"] for row in self.select(sql, since)}

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters. Names have the form ``name{label="value"}``, as in Prometheus."""
        if counts:
            self._retry_in_memory(lambda: self.execute(None, COUNT, to_json(counts)))

    def counters(self) -> Mapping[str, float]:
        """All counters, by name."""
        rows = self.select("select name, value from counters order by name")
        return {row["name"]: row["value"] for row in rows}

    def prune(self, before: float, listed_jobs: Collection[int]) -> None:
        """Delete closed migrations and notices, and interruptions, from before that time (Unix
        time). The migrations of a job stay while it has images or Slurm lists it. If Slurm lists no
        job at all, it may not have answered yet, and all migrations stay.
        """
        with self.transaction("notices", "runs") as db:
            if listed_jobs:
                # ``renewals`` and ``was_stopped`` count on the moves of a job that still runs: it
                # may run for months.
                db.execute(
                    "delete from migrations where over = 1 and changed < ? "
                    "and job not in (select value from json_each(?)) "
                    "and job not in (select job from images)",
                    (before, to_json(sorted(listed_jobs))),
                )
            db.execute("delete from notices where closed < ?", (before,))
            db.execute("delete from interruptions where at < ?", (before,))
        self.shorten()


def _notice_row(recorded: RecordedNotice, closed: float | None) -> dict[str, Any]:
    return {"key": recorded.key, "body": to_json(recorded), "closed": closed}


def _notice_of(row: _Row) -> RecordedNotice:
    recorded = msgspec.json.decode(row["body"], type=RecordedNotice)
    return replace(recorded, closed=row["closed"])


@functools.cache
def _move_decoder() -> msgspec.json.Decoder[Migration]:
    """Made at first use: it takes 10 ms, which a command without a move to show need not wait."""
    return msgspec.json.Decoder(Migration)


def _migration_of(row: _Row) -> Migration:
    return _move_decoder().decode(row["body"])


def _past_move_of(row: _Row) -> _PastMove | None:
    move = _migration_of(row)
    past_move = _PastMove(
        renewed=move.was_renewed, stopped=move.was_stopped, excludes=move.has_left_exclusions
    )
    return None if past_move == _NO_PAST_MOVE else replace(past_move, key=move.run.key)


def _image_key(image: Image) -> dict[str, Any]:
    return {"job": image.job, "attempt": image.attempt, "number": image.number}


def _body_of(kind: type[Any]) -> Callable[[_Row], Any]:
    return lambda row: msgspec.json.decode(row["body"], type=kind)


_KEYED = {
    "notices": KeyedTable("notices", _notice_of),
    "migrations": KeyedTable(
        "migrations", lambda row: None if row["over"] else _migration_of(row), "where over = 0"
    ),
    "runs": KeyedTable("migrations", _past_move_of),
    "images": KeyedTable("images", _body_of(Image)),
    "unsavable": KeyedTable("unsavable", _body_of(UnsavableRun)),
    "suspensions": KeyedTable("suspensions", _body_of(Suspension)),
    "avoided": KeyedTable("avoided", _body_of(AvoidedNodes)),
    "releases": KeyedTable("releases", lambda row: row["node"]),
}
"""The rows of ``migrations`` are cached twice: the open moves in full, and by ``runs`` the facts
about each run that its next move needs (``_PastMove``).
"""
