"""Whatever writes a file of ours has it on the disk before it goes by its name, and the name after.

Each kind of file has a case; ``test_power_cut.py`` cuts the power from those that money depends on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_cases import spec

from slurm_elastic.base import writing
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.checkpointers import blcr, signal
from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.checkpointers.node_helper_client import _Request as Request
from slurm_elastic.config.configfile import ensure_uuid
from slurm_elastic.features.network import enrolment
from slurm_elastic.features.network.enrolment import word_of
from slurm_elastic.machine.ckptroot import inventory, manifest, outputs, pinned_task, proc
from slurm_elastic.machine.ckptroot import store as kept
from slurm_elastic.machine.ckptroot.quota import JobQuota, QuotaPart
from slurm_elastic.machine.programs import power
from slurm_elastic.providers import catalogues
from slurm_elastic.providers.catalogues import Catalogue
from slurm_elastic.state.ckptstate.orders import SaveOrder, drop
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import backup, disk
from slurm_elastic.state.store.trouble import set_aside


class Synced:
    """The number and content of each file when it was synced, and the names of each directory."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.numbers: list[int] = []
        self.names: dict[str, set[str]] = {}

    def fsync(self, file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path.is_dir():
            self.names[str(path)] = set(os.listdir(path))
        else:
            self.files.append(path.read_bytes())
            self.numbers.append(path.stat().st_ino)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    made = Synced()
    monkeypatch.setattr(os, "fsync", made.fsync)
    return made


def request_of_slurm(place: Path) -> Path:
    power.store(str(place), "suspend", "pub[1-2]")
    return next(place.glob("*.json"))


def uuid_of_a_cluster(place: Path) -> Path:
    ensure_uuid(place / "slurm-elastic.yaml")
    return next(place.iterdir())


def configuration_of_slurm(place: Path) -> Path:
    writing.replace(place / "a.conf", b"new", 0o644)
    return place / "a.conf"


def order_of_a_person(place: Path) -> Path:
    return drop(place, SaveOrder(job=7), 5.0)


def book_of_a_signalled_job(place: Path) -> Path:
    method: Any = object.__new__(signal.SignalCheckpointer)
    method._directory = place
    method._write(7, signal.Book(**BOOK))
    return next(place.iterdir())


def book_of_a_blcr_job(place: Path) -> Path:
    method: Any = object.__new__(blcr.BlcrCheckpointer)
    method._records = place
    method._write(7, blcr._Records())
    return place / "7.json"


def request_to_a_launcher(place: Path) -> Path:
    method: Any = object.__new__(LaunchedCheckpointer)
    method._directory, method._newest_requests, method._in_time = place, {}, InTime()
    (place / "7").mkdir()
    (place / "7" / "request").touch()
    method._write(7, Request(id="a", verb="release"))
    return place / "7" / "request"


def script_of_a_job(place: Path) -> Path:
    kept._write(place / "script", b"#!/bin/sh\n", 0o600, (os.getuid(), os.getgid()))
    return place / "script"


def room_of_a_user(place: Path) -> Path:
    quota: Any = object.__new__(JobQuota)
    quota._file = place / "1000"
    quota._write({"7": QuotaPart(has=1, next=2)})
    return place / "1000"


def secret_of_the_machines(place: Path) -> Path:
    word_of(place, "g1")
    return place / enrolment.FILE


def catalogue_of_a_cloud(place: Path) -> Path:
    catalogues.keep(place / "kept" / "aws.json", Catalogue(cloud="aws", at=5.0, types={}))
    return place / "kept" / "aws.json"


def backup_of_the_journal(place: Path) -> Path:
    path = place / "ledger.db"
    with closing(Ledger(path)) as ledger:
        ledger.launches.record_intent(spec(), "r", 5.0)
    backup.export([(path, LEDGER)], place / "backup")
    return place / "backup"


BOOK: dict[str, Any] = {"uid": 1000, "directory": "/"}
WRITERS = (
    request_of_slurm, uuid_of_a_cluster, configuration_of_slurm, order_of_a_person,
    book_of_a_signalled_job, book_of_a_blcr_job, request_to_a_launcher, script_of_a_job,
    room_of_a_user, secret_of_the_machines, catalogue_of_a_cloud, backup_of_the_journal,
)  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
def test_the_content_is_synced(
    tmp_path: Path, synced: Synced, write: Callable[[Path], Path]
) -> None:
    file = write(tmp_path)
    written = (file.stat().st_ino, file.read_bytes())
    assert written in zip(synced.numbers, synced.files, strict=True), "not another of that content"


@pytest.mark.parametrize(
    "write",
    [request_of_slurm, uuid_of_a_cluster, configuration_of_slurm, backup_of_the_journal],
)
def test_the_name_is_synced(tmp_path: Path, synced: Synced, write: Callable[[Path], Path]) -> None:
    file = write(tmp_path)
    assert file.name in synced.names[str(tmp_path)]


def test_that_a_damaged_file_is_aside_is_synced(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "ledger.db").write_text("damaged")
    aside = set_aside(tmp_path / "ledger.db", 5.0)
    assert synced.names[str(tmp_path)] == {aside.name}


def test_a_line_of_the_journal_is_synced_before_the_view_has_it(
    tmp_path: Path, synced: Synced
) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.launches.record_intent(spec(), "r", 5.0)
    journal = tmp_path / "journal" / "ledger-000001.jsonl"
    assert synced.files[-1] == journal.read_bytes()
    assert journal.name in synced.names[str(journal.parent)]


def test_a_new_segment_is_synced_with_its_name_before_an_old_one_goes(
    tmp_path: Path, synced: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(disk, "BYTES_PER_FIRST_ROW", 0)
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for number in range(3):
            ledger.requeues.lift(number, 0, 5.0)
            ledger.store.shorten()
    place = tmp_path / "journal"
    segments = {one.name for one in place.glob("ledger-*")}
    assert segments == {"ledger-000003.jsonl", "ledger-000004.jsonl"}
    assert synced.files[-1] == (place / "ledger-000004.jsonl").read_bytes()
    assert synced.names[str(place)] >= {f"ledger-{n:06d}.jsonl" for n in (2, 3, 4)}


def test_images_are_synced_before_they_are_vouched_for(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "pages.img").write_bytes(b"pages")
    assert list(manifest.digests(tmp_path)) == ["pages.img"]
    assert synced.files == [b"pages"]
    assert synced.names == {str(tmp_path): {"pages.img"}}


def test_what_a_task_wrote_by_its_memory_is_synced(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "mapped").write_bytes(b"by memory")
    with (tmp_path / "mapped").open("rb") as file:
        ours = pinned_task.TaskOwner(os.geteuid(), proc.numbers_of(os.getpid()) or (0, 0))
        inventory._write_out(os.getpid(), ours, file.fileno())
    assert synced.files == [b"by memory"]


def test_what_is_kept_of_an_output_is_synced(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "out").write_bytes(b"lines")
    source = os.open(tmp_path / "out", os.O_RDONLY)
    outputs._extend(tmp_path / "kept", source, 5, 1000)
    os.close(source)
    assert synced.files == [b"lines"]


def test_what_is_cut_off_an_output_is_synced_before(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "out").write_bytes(b"lines more")
    file = os.open(tmp_path / "out", os.O_RDWR)
    one: Any = SimpleNamespace(path=str(tmp_path / "out"), size=5)
    caller: Any = SimpleNamespace(uid=os.getuid(), gid=os.getgid(), groups=(), job=7)
    outputs._move_rest_aside(file, one, caller, 1)
    os.close(file)
    assert synced.files == [b" more"]
    assert (tmp_path / "out").read_bytes() == b"lines"
