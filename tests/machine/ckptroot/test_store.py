"""A job's images in its directory: numbered, sealed, the kept ones and no more."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import files
from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot import store as stores
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.manifest import ImageManifest
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import HeadRequest, JobStore, Meta, Taken

from .helpers import ROOT

pytestmark = ROOT


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    made = JobStore(HelperSite(cluster="t", directory=tmp_path, key=b"k" * 64, reader=(0, 1234)), 7)
    (made.path / "images").mkdir(parents=True)
    made.claim(0)
    return made


def names(store: JobStore) -> list[str]:
    return sorted(os.listdir(store.path / "images"))


def image(store: JobStore, name: str) -> Path:
    path = store.path / "images" / name
    path.mkdir()
    (path / "pages").write_bytes(b"memory")
    return path


def test_images_are_those_that_are_whole_the_newest_first(store: JobStore) -> None:
    for name in ("9", "10", "2", "11.new", "x"):
        image(store, name)
    assert [path.name for path in store.images()] == ["10", "9", "2"]
    files.remove(store.path)
    assert store.images() == []


def test_images_that_cannot_be_listed_are_not_none(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    image(store, "2")

    def stale(path: Path) -> list[str]:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(stores.os, "listdir", stale)
        with pytest.raises(OSError, match="Stale"):
            store.images()
    assert [path.name for path in store.images()] == ["2"]


def test_a_new_one_has_the_next_number_and_what_was_half_done_is_gone(store: JobStore) -> None:
    assert store.new_image().name == "1.new"
    for name in ("2", "9", "10.new"):
        image(store, name)
    path = store.new_image()
    assert path.name == "10.new"
    assert list(path.iterdir()) == []
    assert names(store) == ["10.new", "2", "9"]
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o2750, 0, 1234)


def test_one_that_cannot_be_dropped_costs_no_other(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = image(store, "1"), image(store, "2")
    real = files.remove

    def busy(path: Path) -> None:
        if path == one:
            raise RequestRefused("it is in use")
        real(path)

    monkeypatch.setattr(files, "remove", busy)
    store.drop_image(one)
    store.drop_image(other)
    assert names(store) == ["1"]
    assert store.lines[-1].endswith("image 1 stays: it is in use")


def test_a_file_of_roots_is_replaced_in_one_step(store: JobStore) -> None:
    (store.path / "status.json.new").write_text("left by one that was killed")
    for content in (b"one", b"other"):
        store.replace("status.json", content, 0o640)
        path = store.path / "status.json"
        assert path.read_bytes() == content
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 0, 1234)
    assert sorted(os.listdir(store.path)) == ["images", "run", "status.json"]


def test_the_last_fifty_sentences_are_kept(store: JobStore) -> None:
    for number in range(60):
        store.add_log_line(f"line {number}")
    assert [line.split(" ", 1)[1] for line in store.lines] == [f"line {n}" for n in range(10, 60)]


# how the job began, and what is asked of it


BEGUN = Meta(7, "7", 1, 1, "criu", ["/out"])


def test_what_an_earlier_run_said_of_the_job_is_read(store: JobStore) -> None:
    store.replace("meta.json", json.dumps(asdict(BEGUN)).encode(), 0o600)
    assert store.meta() == BEGUN
    os.chown(store.path / "meta.json", 1, 1)
    assert store.meta() is None, "of somebody else"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"job": 7, "more": 1}'])
def test_what_makes_no_sense_is_nothing(store: JobStore, content: bytes) -> None:
    assert store.meta() is None
    store.replace("meta.json", content, 0o600)
    assert store.meta() is None


@pytest.mark.parametrize(("name", "most"), [("meta.json", 1 << 20), ("request", 4096)])
def test_no_more_is_read_than_is_written_there(store: JobStore, name: str, most: int) -> None:
    values = asdict(BEGUN) if name == "meta.json" else {"id": "1", "verb": "release"}
    read = store.meta if name == "meta.json" else store.request
    text = json.dumps(values)
    store.replace(name, (text + " " * (most - len(text))).encode(), 0o600)
    assert read() is not None
    store.replace(name, (text + " " * (most + 1 - len(text))).encode(), 0o600)
    assert read() is None


def test_a_request_says_what_it_wants_and_for_how_long(store: JobStore) -> None:
    def request(**values: object) -> HeadRequest | None:
        store.replace("request", json.dumps(values).encode(), 0o600)
        return store.request()

    assert request(id=1, verb="release") == HeadRequest("1", "release", stop=False, within=0.0)
    closing = request(id=1, verb="checkpoint", tcp="close")
    assert closing == HeadRequest("1", "checkpoint", closes=True)
    assert request(id=1, verb="checkpoint", tcp=True) == HeadRequest(
        "1", "checkpoint", closes=False
    )
    wanted = HeadRequest("2", "checkpoint", stop=True, within=5.0)
    assert request(id="2", verb="checkpoint", stop=True, within=5) == wanted
    assert HeadRequest("1", "release") == HeadRequest("1", "release", stop=False, within=0.0)


@pytest.mark.parametrize(("owner", "taken"), [(1233, True), (0, True), (1234, False), (7, False)])
def test_a_request_is_slurmusers_or_roots(tmp_path: Path, owner: int, *, taken: bool) -> None:
    site = HelperSite(cluster="t", directory=tmp_path, key=b"k" * 64, reader=(1233, 1234))
    store = JobStore(site, 7)
    store.path.mkdir(parents=True)
    store.replace("request", json.dumps({"id": 1, "verb": "release"}).encode(), 0o600)
    os.chown(store.path / "request", owner, 0)
    assert (store.request() is not None) is taken


# images


@pytest.fixture
def sealed(store: JobStore) -> Callable[[], Path]:
    """One more image, complete."""

    def accept() -> Path:
        path = store.new_image()
        (path / "pages").write_bytes(b"memory")
        number = int(path.name.partition(".")[0])
        made = ImageManifest(
            cluster="t", job=7, label="7", attempt=0, number=number, method="criu", uid=1, gid=1,
            node="n1", taken=1.5, seconds=0.1, pid=1001, versions={},
            files=manifests.digests(path), writing={"/out": 3}, parent=number - 1,
        )  # fmt: skip
        return store.accept(path, made)

    return accept


def test_two_images_are_kept_and_the_head_is_told_of_the_good_ones(
    store: JobStore, sealed: Callable[[], Path]
) -> None:
    paths = [sealed() for _ in range(3)]
    assert names(store) == ["2", "3"]
    assert paths[2].name == "3"
    found = (paths[2] / manifests.NAME).stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 0, 1234)
    (paths[1] / manifests.NAME).write_text("{}")
    store.add_log_line("a sentence")
    store.publish("running", job=7)
    said = json.loads((store.path / "status.json").read_text())
    assert (said["state"], said["job"], len(said["log"])) == ("running", 7, 1)
    (one,) = said["images"]
    assert (one["number"], one["size"]) == (3, 6)
    assert "files" not in one
    assert "writing" not in one
    mode = (store.path / "status.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o640, "the head reads it"


def test_images_that_cannot_be_listed_now_are_the_last_known(
    store: JobStore, sealed: Callable[[], Path]
) -> None:
    sealed()
    store.publish("running")
    (store.path / "images").rename(store.path / "away")
    store.publish("running")
    said = json.loads((store.path / "status.json").read_text())
    assert [one["number"] for one in said["images"]] == [1]


def test_a_job_that_is_removed_is_none_from_the_first_moment(
    store: JobStore, sealed: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed()
    left: list[str] = []
    monkeypatch.setattr(files, "remove", lambda path: left.append(path.name))
    store.remove()
    assert not store.path.exists()
    assert [name[:11] for name in left] == [".removed-7-"]
    store.remove()  # there is nothing any more


def test_nothing_is_deleted_that_is_open_as_nfs_would_keep_it_and_its_directory(
    store: JobStore, sealed: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(name: str, *, dir_fd: int) -> None:
        found = os.stat(name, dir_fd=dir_fd)
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                mine = os.stat(int(descriptor))
                assert (mine.st_dev, mine.st_ino) != (found.st_dev, found.st_ino), name
        real(name, dir_fd=dir_fd)

    real = os.unlink
    store.open()
    sealed()
    monkeypatch.setattr(files.os, "unlink", unlink)
    store.remove()
    assert [*store.path.parent.iterdir()] == []


def test_a_run_that_waits_for_the_lock_of_a_directory_that_goes_makes_its_own(
    store: JobStore,
) -> None:
    store.open()
    other = JobStore(store.site, 7)
    with pytest.raises(Taken):
        other.open()
    store.remove()
    other.open()
    assert (other.path / "lock").exists()
    other.close()


def test_a_lock_that_was_not_got_is_not_kept_open(store: JobStore) -> None:
    store.open()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Taken, match="job 7 is driven by another process already"):
        JobStore(store.site, 7).open()
    assert len(os.listdir("/proc/self/fd")) == before
    store.close()
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_where_a_file_system_has_no_such_rights_the_script_is_its_users(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "let_run", lambda descriptor, uid: False)
    before = len(os.listdir("/proc/self/fd"))
    store.begin(BEGUN, b"#!/bin/sh\n")
    assert len(os.listdir("/proc/self/fd")) == before
    found = (store.path / "script").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1, 1, 0o500)
    assert sorted(os.listdir(store.path)) == [
        "images", "keep", "meta.json", "request", "run", "script",
    ]  # fmt: skip


def test_the_jobs_own_script_is_what_follows_the_launcher(tmp_path: Path) -> None:
    caller = Caller(7, 0, 0, "root", (0,), {})
    script = tmp_path / "slurm_script"
    script.write_bytes(b"launcher\n#__SLURM_ELASTIC_SCRIPT__\n#!/bin/sh\nits own\n")
    own, digest = stores.read_script(caller, str(script))
    assert own == b"#!/bin/sh\nits own\n"
    script.write_bytes(b"launcher 2\n#__SLURM_ELASTIC_SCRIPT__\n#!/bin/sh\nits own\n")
    assert stores.read_script(caller, str(script))[1] != digest, "of another job"
    script.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(RequestRefused, match="the script has no mark of the launcher"):
        stores.read_script(caller, str(script))
    os.truncate(script, (64 << 20) + 1)
    with pytest.raises(RequestRefused, match="more than 67108864"):
        stores.read_script(caller, str(script))
    script.unlink()
    with pytest.raises(RequestRefused, match="the script cannot be read: No such file"):
        stores.read_script(caller, str(script))
