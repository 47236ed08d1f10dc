"""An export and its import: neither stops who writes, and neither costs what is known nowhere
else.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sqlite3
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from ledger_cases import T0
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import backup, disk
from slurm_elastic.state.store.journal import Fact, is_whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger that knows of three jobs."""
    made = tmp_path / "head" / "ledger.db"
    made.parent.mkdir()
    with closing(Ledger(made)) as ledger:
        for job in range(3):
            ledger.requeues.lift(job, 0, T0)
    return made


@pytest.fixture
def other(tmp_path: Path) -> Path:
    made = tmp_path / "other" / "ledger.db"
    made.parent.mkdir()
    return made


def jobs(path: Path) -> list[int]:
    with closing(Ledger(path)) as ledger:
        return [job for job, _ in ledger.requeues.lifted()]


SOUND = backup.JournalHealth(
    name="ledger", segments=1, lines=4, facts=3, last=3, damages=(), missing=0, lacking=0
)


def test_a_journal_is_read_through(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = path, LEDGER
    assert backup.verify(memory) == SOUND
    assert SOUND.sound
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(disk, "BYTES_PER_FIRST_ROW", 0)
    with closing(Ledger(path)) as ledger:
        ledger.store.shorten()
        ledger.requeues.lift(3, 0, T0)
    both = replace(SOUND, segments=2, lines=7, facts=7, last=4)
    assert backup.verify(memory) == both
    newest = path.parent / "journal" / "ledger-000002.jsonl"
    lines = newest.read_bytes().splitlines(keepends=True)
    newest.write_bytes(lines[0] + lines[2])
    assert backup.verify(memory) == replace(both, lines=6, facts=4, lacking=3)
    newest.write_bytes(b"".join(lines[:2]))
    assert backup.verify(memory) == replace(both, lines=6, facts=6, last=3, missing=1)


def test_lines_that_are_gone_from_the_middle_are_counted(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        for job in range(3, 6):
            ledger.requeues.lift(job, 0, T0)
    segment = path.parent / "journal" / "ledger-000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:2] + lines[4:]))
    health = backup.verify((path, LEDGER))
    assert health == replace(SOUND, lines=5, facts=4, last=6, missing=2)
    assert not health.sound


def test_a_slow_target_keeps_no_writer_waiting(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()

    class Slow(io.BytesIO):
        def write(self, content: object) -> int:
            assert written.wait(60)
            return super().write(content)  # type: ignore[arg-type]

    target = Slow()
    thread = threading.Thread(target=backup._copy, args=((path, LEDGER), target))
    with closing(Ledger(path)) as ledger:
        thread.start()
        for job in range(3, 6):
            ledger.requeues.lift(job, 0, T0)
        written.set()
    thread.join()
    export = tmp_path / "export"
    export.write_bytes(target.getvalue())
    found = tmp_path / "found" / "ledger.db"
    found.parent.mkdir()
    backup.put_back(export, [(found, LEDGER)], older=False)
    assert jobs(found)[:3] == [0, 1, 2]


def test_where_there_is_no_journal_nothing_is_exported(other: Path, tmp_path: Path) -> None:
    with pytest.raises(SlurmElasticError, match=f"there is no journal yet beside {other}$"):
        backup.export([(other, LEDGER)], tmp_path / "export")
    assert {one.name for one in tmp_path.iterdir()} == {"other"}


def test_an_export_is_of_the_moment_at_which_it_began(
    path: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(path)) as ledger:
        later = iter([9])

        def meanwhile(raw: bytes) -> bool:
            for job in later:
                ledger.requeues.lift(job, 0, T0)
            return is_whole(raw)

        monkeypatch.setattr(backup, "is_whole", meanwhile)
        backup.export([(path, LEDGER)], tmp_path / "export")
    assert next(later, None) is None, "it was written"
    assert backup.put_back(tmp_path / "export", [(other, LEDGER)], older=False) == SOUND.lines
    assert jobs(other) == [0, 1, 2]


def test_half_a_line_at_the_end_is_left_out_of_an_export(path: Path, tmp_path: Path) -> None:
    segment = path.parent / "journal" / "ledger-000001.jsonl"
    before = segment.read_bytes()
    segment.write_bytes(before + b"half")
    assert backup.export([(path, LEDGER)], tmp_path / "export") == SOUND.lines
    assert (tmp_path / "export").read_bytes() == before


def test_a_memory_that_was_never_begun_is_left_out_of_an_export(
    path: Path, other: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    assert backup.export([(other, LEDGER), (path, LEDGER)], export) == SOUND.lines
    assert len(export.read_bytes().splitlines()) == SOUND.lines


def test_a_pipe_or_a_device_is_no_target(path: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is no regular file") as refused:
        backup.export([(path, LEDGER)], pipe)
    assert refused.value.errno == errno.EEXIST
    assert pipe.is_fifo()


def test_a_segment_that_was_copied_while_it_was_written_is_put_back(
    path: Path, other: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "ledger-000001.jsonl"
    copy.write_bytes((path.parent / "journal" / "ledger-000001.jsonl").read_bytes()[:-10])
    backup.put_back(copy, [(other, LEDGER)], older=False)
    assert jobs(other) == [0, 1]
    assert "an incomplete last line is ignored; its write never finished" in caplog.text
    with pytest.raises(SlurmElasticError, match="line 4 is damaged"):
        backup.put_back(copy.rename(tmp_path / "export"), [(other, LEDGER)], older=True)
    copy.write_bytes(b"half")
    with pytest.raises(SlurmElasticError, match="is empty"):
        backup.put_back(copy, [(other, LEDGER)], older=False)


def test_rows_that_are_in_no_journal_are_not_given_up_unasked(
    path: Path, other: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    backup.export([(path, LEDGER)], export)
    with closing(Ledger(other)) as ledger:
        ledger.requeues.lift(9, 0, T0)
    shutil.rmtree(other.parent / "journal")
    with pytest.raises(SlurmElasticError, match="in no journal"):
        backup.put_back(export, [(other, LEDGER)], older=False)
    backup.put_back(export, [(other, LEDGER)], older=True)
    assert jobs(other) == [0, 1, 2]


def test_an_export_is_put_back_where_it_was_made_as_long_as_nothing_was_written_since(
    path: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    backup.export([(path, LEDGER)], export)
    for _ in range(2):
        assert backup.put_back(export, [(path, LEDGER)], older=False) == SOUND.lines
        assert jobs(path) == [0, 1, 2]
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(3, 0, T0)
    with pytest.raises(
        SlurmElasticError, match=r"has the ledger up to line 4, but .* ends with line 3 of"
    ):
        backup.put_back(export, [(path, LEDGER)], older=False)


def test_a_later_release_takes_one_export_of_an_earlier_one_after_another(
    path: Path, other: Path, tmp_path: Path
) -> None:
    """It begins a segment of its own schema, and has still written nothing of its own."""
    later = replace(LEDGER, version=LEDGER.version + 1)
    for job in (3, 4):
        backup.export([(path, LEDGER)], tmp_path / "export")
        backup.put_back(tmp_path / "export", [(other, later)], older=False)
        assert len(list((other.parent / "journal").glob("*.jsonl"))) == 2
        with closing(Ledger(path)) as ledger:
            ledger.requeues.lift(job, 0, T0)
    with closing(disk.Disk(other, later)) as own:
        own.put(
            [[Fact(put="lifted_requeues", rows=[{"job": 9, "restarts": 0, "at": T0}])]], lambda: T0
        )
    backup.export([(path, LEDGER)], tmp_path / "export")
    with pytest.raises(SlurmElasticError, match="of another journal"):
        backup.put_back(tmp_path / "export", [(other, later)], older=False)


def test_one_line_more_than_the_export_has_is_not_given_up_unasked(
    path: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    backup.export([(path, LEDGER)], export)
    with closing(Ledger(path)) as ledger:
        ledger.requeues.lift(3, 0, T0)
    journal = path.parent / "journal"
    why = f"{journal} has the ledger up to line 4, but {export} ends with line 3. The lines"
    with pytest.raises(SlurmElasticError, match=why):
        backup.put_back(export, [(path, LEDGER)], older=False)
    assert jobs(path) == [0, 1, 2, 3]


def test_an_import_is_in_the_view_at_once(path: Path, other: Path, tmp_path: Path) -> None:
    backup.export([(path, LEDGER)], tmp_path / "export")
    with closing(Ledger(other)) as ledger:
        ledger.requeues.lift(9, 0, T0)
    backup.put_back(tmp_path / "export", [(other, LEDGER)], older=True)
    with closing(sqlite3.connect(other)) as db:
        found = db.execute("select job from lifted_requeues order by job").fetchall()
    assert found == [(0,), (1,), (2,)]


def test_an_import_takes_the_place_of_a_damaged_view(
    path: Path, other: Path, tmp_path: Path
) -> None:
    backup.export([(path, LEDGER)], tmp_path / "export")
    Ledger(other).close()
    other.write_bytes(b"no database" * 500)
    backup.put_back(tmp_path / "export", [(other, LEDGER)], older=False)
    assert jobs(other) == [0, 1, 2]


def test_an_import_that_is_killed_before_its_view_is_there_is_gone_on_with(
    path: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    backup.export([(path, LEDGER)], tmp_path / "export")
    with closing(Ledger(other)) as ledger:
        for job in range(10, 15):
            ledger.requeues.lift(job, 0, T0)
        with monkeypatch.context() as patched:
            patched.setattr(backup, "Disk", killed)
            with pytest.raises(KeyboardInterrupt):
                backup.put_back(tmp_path / "export", [(other, LEDGER)], older=True)
        ledger.requeues.lift(20, 0, T0)
    assert jobs(other) == [0, 1, 2, 20]


def test_an_import_is_read_line_by_line(path: Path, other: Path, tmp_path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        for begin in range(0, 30000, 1000):
            rows = [(begin + job + 100000, 0, T0) for job in range(1000)]
            with ledger.store.transaction(None):
                ledger.store.insert("insert into lifted_requeues", "job, restarts, at", rows)
    export = tmp_path / "export"
    backup.export([(path, LEDGER)], export)
    tracemalloc.start()
    backup.put_back(export, [(other, LEDGER)], older=False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5e6, "of a file of that size"
    assert len(jobs(other)) == 30003


def test_an_import_is_taken_from_a_pipe(path: Path, other: Path, tmp_path: Path) -> None:
    export, pipe = tmp_path / "export", tmp_path / "pipe"
    backup.export([(path, LEDGER)], export)
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_bytes(export.read_bytes()))
    thread.start()
    backup.put_back(pipe, [(other, LEDGER)], older=False)
    thread.join()
    assert jobs(other) == [0, 1, 2]
