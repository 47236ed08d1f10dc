"""The service reads each row once: after each write its answers are those of the file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.hindrances import JobHindered, SaveErrorLasts, SaveObstacleKind
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from slurm_elastic.state import ckptstate
from slurm_elastic.state.ckptstate import MAX_OLDER_IMAGES, CheckpointState
from slurm_elastic.state.ckptstate.facts import (
    FailedRelease,
    Migration,
    MigrationStep,
    RecordedNotice,
    Suspension,
    UnsavableRun,
)
from slurm_elastic.state.ckptstate.schema import SCHEMA
from slurm_elastic.state.store import disk

RUN = JobRun(
    job=7, label="7", attempt=0, user="u", uid=1, gid=1, nodes=("n1",), partition="p", started=1.0
)
MOVE = Migration(
    run=RUN,
    method="fake",
    threatened=("n1",),
    reason=Quoted(text="r"),
    step=MigrationStep.PLANNED,
    began=1.0,
    changed=1.0,
    stopped=True,
)
NOTICE = RecordedNotice(
    key="k1", source="cloud", offer="spot",
    notice=Notice(instance="i-1", kind=NoticeKind.INTERRUPTION, seen=1.0),
)  # fmt: skip


def image(number: int, job: int = 7) -> Image:
    return Image(
        job=job, label=str(job), attempt=0, number=number, method="fake", node="n1",
        taken=float(number), seconds=1.0,
    )  # fmt: skip


def in_file(directory: Path, sql: str, *values: object) -> None:
    """As another process changes the file."""
    with contextlib.closing(sqlite3.connect(directory / "checkpoints.db")) as db, db:
        db.execute(sql, values)


def test_as_old_rows_are_forgotten_a_long_journal_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 0)
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        state.add_suspension(Suspension(job=7, attempt=0, since=1.0))
        state.prune(100.0, {1})
    assert len(list((tmp_path / "journal").glob("*.jsonl"))) == 2


def test_a_state_that_fails_where_its_file_does_has_no_trouble_of_its_own(tmp_path: Path) -> None:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        state.check()
        assert state.disk_trouble == ("", "", 0.0)


def test_a_move_of_which_only_the_least_was_written_down_is_read(tmp_path: Path) -> None:
    """As releases did that knew less of it."""
    least = {
        name: getattr(MOVE, name)
        for name in ("run", "method", "threatened", "reason", "step", "began", "changed")
    }
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        state.put(replace(MOVE, dump=9.0, tries=9, helped=9, again=True))
        body = msgspec.json.encode(least).decode()
        in_file(tmp_path, "update migrations set body = ?", body)
        (found,) = state.migrations()
    assert (found.cause, found.dump, found.saves, found.again) == (
        ThreatCause.RECLAIM,
        60.0,
        True,
        False,
    )
    assert (found.tries, found.helped, found.held, found.newest) == (0, 0, None, None)
    assert (found.stopped, found.suspended, found.is_hopeless) == (False, 0.0, False)
    assert replace(found, step=MigrationStep.WAITING).is_hopeless
    assert (FailedRelease().cause, FailedRelease().pause) == (None, 0.0)


def test_who_never_begins_a_pass_reads_each_time(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    with (
        contextlib.closing(CheckpointState(path)) as one,
        contextlib.closing(CheckpointState(path)) as other,
    ):
        answers(one)
        other.put(MOVE)
        other.add_notices(NOTICE, now=5.0)
        assert one.migrations() == (MOVE,)
        assert one.was_stopped(7, 0)
        assert one.notices() == (NOTICE,)
        one.put(ended(MigrationStep.BACK))
        assert one.migrations() == other.migrations() == ()


def test_moves_and_runs_are_read_once_and_all_moves_for_the_runs_alone(tmp_path: Path) -> None:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        state.put(MOVE)
        state.refresh()
        asked: list[str] = []
        state._db.set_trace_callback(asked.append)
        for _ in range(2):
            assert state.migrations() == (MOVE,)
            assert state.was_stopped(7, 0)
        assert [statement.strip() for statement in asked] == [
            "select * from migrations where over = 0", "select * from migrations"
        ]  # fmt: skip


def test_moves_that_ended_lately_are_told_beside_those_under_way(tmp_path: Path) -> None:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        early, late = (
            replace(MOVE, run=replace(RUN, job=job), step=MigrationStep.BACK, changed=changed)
            for job, changed in ((8, 50.0), (9, 100.0))
        )
        state.put(early, late, MOVE)
        assert state.migrations() == (MOVE,)
        assert state.migrations(since=100.0) == (MOVE, late)
        assert state.migrations(since=50.0) == (MOVE, early, late)


def test_what_was_over_long_ago_is_forgotten(tmp_path: Path) -> None:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        early, late = (
            replace(MOVE, run=replace(RUN, job=job), step=MigrationStep.BACK, changed=changed)
            for job, changed in ((8, 50.0), (9, 100.0))
        )
        taken = replace(NOTICE, key="k2", notice=replace(NOTICE.notice, instance="i-2"))
        state.put(early, late, MOVE)
        advice = replace(NOTICE.notice, instance="i-3", kind=NoticeKind.REBALANCE)
        state.add_notices(NOTICE, replace(NOTICE, key="k3", notice=advice), now=50.0)
        state.add_notices(taken, now=100.0)
        state.close_notice(NOTICE, 60.0)
        state.close_notice(taken, 100.0)
        assert state.interruptions(0.0) == {"spot": 2}
        state.prune(100.0, {1})
        assert state.migrations(since=0.0) == (MOVE, late)
        assert state.interruptions(0.0) == {"spot": 1}
        assert state.add_notices(NOTICE, taken, now=110.0) == (NOTICE,), "as if it were new"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[CheckpointState]:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as made:
        made.refresh()
        answers(made)
        yield made


def answers(state: CheckpointState) -> tuple[object, ...]:
    return (
        state.notices(), state.migrations(), state.open_migration(7, 0),
        state.was_stopped(7, 0), state.was_stopped(8, 0), state.images(), state.images(7),
        state.releases(), state.interruptions(0.0), state.counters(),
    )  # fmt: skip


def ended(step: MigrationStep) -> Migration:
    return replace(MOVE, step=step, changed=9.0)


Steps = tuple[Callable[[CheckpointState], None], ...]
WARN: Steps = (lambda s: s.add_notices(NOTICE, now=5.0),)
CLOSE: Steps = (lambda s: s.close_notice(NOTICE, 6.0),)
LET_GO: Steps = (lambda s: s.close_notice(NOTICE, 6.0, release="n1"),)
BEGIN: Steps = (lambda s: s.put(MOVE),)
BACK: Steps = (lambda s: s.put(ended(MigrationStep.BACK)),)
SAVED: Steps = (lambda s: s.add_image(image(1)), lambda s: s.add_image(image(1, job=8)))
MANY: Steps = tuple(lambda s, n=n: s.add_image(image(n)) for n in range(MAX_OLDER_IMAGES + 3))
COUNTS = ({"a": 1.0}, {"a": 2.0, "b": 1.0}, {})
WRITES: dict[str, Steps] = {
    "a notice": WARN,
    "a notice twice": WARN + WARN,
    "a notice that is over": WARN + LET_GO,
    "a notice that was over before": WARN + CLOSE + WARN,
    "a node let go": WARN + LET_GO + (lambda s: s.forget_releases("n1"),),
    "a move": BEGIN,
    "a move with its image": (*BEGIN, lambda s: s.put(ended(MigrationStep.SAVED), image=image(1))),
    "a move that is over": BEGIN + BACK,
    "many images": MANY,
    "an image that is not whole": (*SAVED, lambda s: s.forget_image(image(1))),
    "a job without images": (*SAVED, lambda s: s.forget_images_of(7)),
    "old rows": BEGIN + BACK + WARN + CLOSE + (lambda s: s.prune(100.0, {1}),),
    "counts": tuple(lambda s, c=c: s.count(c) for c in COUNTS),
}


def do(state: CheckpointState, steps: Steps) -> None:
    for step in steps:
        step(state)


@pytest.mark.parametrize("write", WRITES)
def test_after_each_write_the_answers_are_those_of_the_file(
    state: CheckpointState, tmp_path: Path, write: str
) -> None:
    do(state, WRITES[write])
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db", read_only=True)) as file:
        assert answers(state) == answers(file)


def test_a_job_keeps_its_newest_images_alone(state: CheckpointState) -> None:
    do(state, MANY)
    assert [i.number for i in state.images(7)] == [6, 5, 4, 3, 2]


def test_a_write_that_fails_is_not_remembered(state: CheckpointState, tmp_path: Path) -> None:
    state.put(MOVE)
    in_file(
        tmp_path,
        "create trigger t before insert on migrations begin select raise(abort, 'no room'); end",
    )
    with pytest.raises(sqlite3.Error, match="no room"):
        state.put(ended(MigrationStep.SAVED))
    assert state.migrations() == (MOVE,)


def test_one_machine_is_counted_once_with_the_first_notice_that_takes_it(
    state: CheckpointState,
) -> None:
    again = replace(NOTICE, key="k2")
    state.add_notices(NOTICE, again, now=5.0)
    state.add_notices(again, now=6.0)
    assert state.interruptions(0.0) == {"spot": 1}


def of_run(job: int, attempt: int, **fields: object) -> Migration:
    return replace(MOVE, run=replace(RUN, job=job, attempt=attempt), **fields)


RENEWED = {
    "cause": ThreatCause.LIMIT,
    "step": MigrationStep.BACK,
    "reached": {MigrationStep.REQUEUED: 5.0},
}


@pytest.mark.parametrize("remembers", [False, True])
def test_a_run_was_stopped_if_it_was_saved_for_this_move_or_an_earlier_one(
    tmp_path: Path, *, remembers: bool
) -> None:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        if remembers:
            state.refresh()
        state.put(
            of_run(
                7, 0, stopped=False, step=MigrationStep.STAYED, reached={MigrationStep.WAITING: 5.0}
            ),
            of_run(
                7, 1, stopped=False, step=MigrationStep.STAYED, reached={MigrationStep.SAVED: 5.0}
            ),
            of_run(7, 2, stopped=True, step=MigrationStep.STAYED),
        )
        assert [state.was_stopped(7, attempt) for attempt in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("remembers", [False, True])
def test_only_runs_that_were_requeued_at_their_time_limit_are_renewals(
    tmp_path: Path, *, remembers: bool
) -> None:
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        if remembers:
            state.refresh()
            assert state.renewals(7, 9) == 0
        state.put(
            of_run(7, 0, **RENEWED),
            of_run(7, 1, **(RENEWED | {"cause": ThreatCause.RECLAIM})),
            of_run(7, 2, **(RENEWED | {"reached": {}})),
            of_run(7, 3, **RENEWED),
            of_run(8, 0, **RENEWED),
        )
        assert [state.renewals(7, restarts) for restarts in (0, 1, 3, 4, 9)] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("remembers", [False, True])
def test_the_moves_of_a_job_are_kept_for_as_long_as_the_job_is_known(
    tmp_path: Path, *, remembers: bool
) -> None:
    """Else ``limit=3`` would be forgotten with the first of three runs of a fortnight."""
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        if remembers:
            state.refresh()
        for job in (7, 8, 9):
            state.put(*(of_run(job, attempt, **RENEWED, changed=9.0) for attempt in range(2)))
        state.add_image(image(1, job=8))

        def renewals() -> list[int]:
            return [state.renewals(job, 2) for job in (7, 8, 9)]

        state.prune(100.0, ())
        assert renewals() == [2, 2, 2], "Slurm has not answered yet"
        state.prune(100.0, {7})
        assert renewals() == [2, 2, 0]
        assert state.was_stopped(7, 0)
        state.forget_images_of(8)
        state.prune(100.0, {1})
        assert renewals() == [0, 0, 0]
        assert state.migrations(since=0.0) == ()


def test_a_move_at_a_time_limit_is_about_the_job_and_any_other_about_its_nodes() -> None:
    assert of_run(7, 0, cause=ThreatCause.LIMIT).targets == ("job:7",)
    assert of_run(7, 0, cause=ThreatCause.PREEMPTION).targets == ("job:7",)
    assert of_run(7, 0).targets == ("n1",)


@pytest.mark.parametrize("step", list(MigrationStep))
def test_a_move_that_is_over_is_open_no_more(state: CheckpointState, step: MigrationStep) -> None:
    state.put(of_run(7, 0), of_run(7, 1))
    state.put(of_run(7, 0, step=step))
    is_over = step in (MigrationStep.BACK, MigrationStep.STAYED, MigrationStep.ENDED)
    assert (state.open_migration(7, 0) is None) is is_over
    assert state.open_migration(7, 1) is not None


def test_moves_are_told_in_the_order_of_their_last_change(state: CheckpointState) -> None:
    state.put(*(of_run(job, 0, changed=at) for job, at in ((1, 9.0), (2, 3.0), (3, 5.0))))
    assert [move.run.job for move in state.migrations()] == [2, 3, 1]
    assert [move.run.job for move in state.migrations(since=0.0)] == [2, 3, 1]


def test_images_are_told_newest_first_and_each_job_keeps_its_own(state: CheckpointState) -> None:
    do(state, MANY)
    state.add_image(image(1, job=8))
    assert [i.number for i in state.images()] == [6, 5, 4, 3, 2, 1]
    assert [i.job for i in state.images(8)] == [8]
    state.forget_image(image(4))
    assert [i.number for i in state.images(7)] == [6, 5, 3, 2]
    state.forget_images_of(7)
    assert [i.job for i in state.images()] == [8]


def test_notices_are_told_oldest_first_until_they_are_over(state: CheckpointState) -> None:
    some = [
        replace(NOTICE, key=key, notice=replace(NOTICE.notice, instance=key, seen=seen))
        for key, seen in (("a", 9.0), ("c", 3.0), ("b", 3.0))
    ]
    assert state.add_notices(*some, now=10.0) == tuple(some)
    assert [one.key for one in state.notices()] == ["b", "c", "a"]
    state.close_notice(some[1], 11.0, release="n1")
    assert [one.key for one in state.notices()] == ["b", "a"]
    assert state.releases() == ("n1",)
    state.forget_releases("n2")
    assert state.releases() == ("n1",)


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        ({}, {"spot": 1}),
        ({"offer": ""}, {}),
        ({"notice": replace(NOTICE.notice, kind=NoticeKind.REBALANCE)}, {}),
    ],
)
def test_a_machine_that_is_taken_away_counts_against_its_offer(
    state: CheckpointState, change: dict[str, object], counted: dict[str, int]
) -> None:
    state.add_notices(replace(NOTICE, **change), now=5.0)
    assert state.interruptions(5.0) == counted
    assert state.interruptions(5.1) == {}


def test_a_verdict_stands_until_another_or_an_acquittal(state: CheckpointState) -> None:
    first = UnsavableRun(
        job=7,
        label="7",
        attempt=0,
        method="criu",
        at=1.0,
        cause=JobHindered(obstacle=SaveObstacleKind.FILE_LOCK),
    )
    assert not first.moved
    other = replace(first, job=8)
    state.put_verdict(first)
    state.put_verdict(other)
    state.put_verdict(replace(first, cause=SaveErrorLasts(error="a socket"), moved=True))
    assert state.unsavable() == {
        7: replace(first, cause=SaveErrorLasts(error="a socket"), moved=True),
        8: other,
    }
    state.forget_verdict(7)
    assert state.unsavable() == {8: other}


def test_what_is_to_be_suspended_again_is_kept_until_it_is(state: CheckpointState) -> None:
    first = Suspension(job=7, attempt=0, since=1.0)
    state.add_suspension(first)
    state.add_suspension(replace(first, job=8))
    state.add_suspension(replace(first, attempt=1))
    assert state.suspensions() == {7: replace(first, attempt=1), 8: replace(first, job=8)}
    state.forget_suspension(7)
    assert list(state.suspensions()) == [8]


# while the file cannot be used


@pytest.fixture
def enduring(tmp_path: Path) -> Iterator[CheckpointState]:
    with contextlib.closing(
        CheckpointState.enduring(tmp_path / "checkpoints.db", lambda: 50.0, lambda: 5.0)
    ) as made:
        yield made


def breaks(state: CheckpointState, table: str) -> None:
    state._db.execute(
        f"create temp trigger t before insert on {table} begin select raise(abort, 'no room'); end"
    )


def test_a_write_that_fails_is_done_in_memory(enduring: CheckpointState, tmp_path: Path) -> None:
    enduring.put(MOVE)
    assert enduring.disk_trouble == ("", "", 0.0)
    breaks(enduring, "migrations")
    enduring.put(of_run(8, 0))
    what, remedy, since = enduring.disk_trouble
    assert what.startswith("in memory only: ")
    assert (bool(remedy), since) == (True, 50.0)
    assert [move.run.job for move in enduring.migrations()] == [7, 8]
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db", read_only=True)) as file:
        assert [move.run.job for move in file.migrations()] == [7]


def test_a_write_that_fails_is_done_once_the_files_are_mended(
    enduring: CheckpointState, tmp_path: Path
) -> None:
    enduring.put(MOVE)
    for segment in (tmp_path / "journal").glob("*.jsonl"):
        segment.unlink()
    enduring.put(of_run(8, 0))
    assert enduring.disk_trouble == ("", "", 0.0)
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db", read_only=True)) as file:
        assert [move.run.job for move in file.migrations()] == [7, 8]


def test_what_fails_in_memory_too_is_an_error(enduring: CheckpointState) -> None:
    breaks(enduring, "migrations")
    enduring.put(MOVE)
    breaks(enduring, "migrations")
    with pytest.raises(sqlite3.Error, match="no room"):
        enduring.put(of_run(8, 0))


def test_a_read_that_fails_is_answered_of_memory(enduring: CheckpointState) -> None:
    enduring.put(MOVE)
    enduring._db.execute("alter table releases rename to other")
    assert enduring.releases() == ()
    assert enduring.disk_trouble[0] != ""
    assert not enduring.is_disk_full
    assert enduring.migrations() == (MOVE,)
    enduring._db.execute("drop table releases")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        enduring.releases()


def test_a_release_refuses_the_files_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoints.db"
    later = replace(SCHEMA, version=SCHEMA.version + 1)
    monkeypatch.setattr(ckptstate, "SCHEMA", later)
    with contextlib.closing(CheckpointState(path)) as state:
        state.put(MOVE)
    monkeypatch.setattr(ckptstate, "SCHEMA", SCHEMA)
    for is_there in (True, False):
        # The journal alone says which release wrote it, if the database is gone.
        if not is_there:
            path.unlink()
        for read_only in (False, True):
            with pytest.raises(
                ConfigError, match="has schema 2, this release knows schemas up to 1"
            ):
                CheckpointState(path, read_only=read_only)
    assert not path.exists()
    monkeypatch.setattr(ckptstate, "SCHEMA", later)
    with contextlib.closing(CheckpointState(path)) as state:
        assert state.migrations() == (MOVE,)
