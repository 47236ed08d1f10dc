"""A job's images in its directory: numbered, sealed, the kept ones and no more."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from needs import ROOT

from slurm_elastic.ckptroot import files
from slurm_elastic.ckptroot.site import Refused, Site
from slurm_elastic.ckptroot.store import Store

pytestmark = ROOT


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(Site(cluster="t", directory=tmp_path, key=b"k" * 64, reader=(0, 1234)), 7)
    (made.path / "images").mkdir(parents=True)
    return made


def names(store: Store) -> list[str]:
    return sorted(os.listdir(store.path / "images"))


def image(store: Store, name: str) -> Path:
    path = store.path / "images" / name
    path.mkdir()
    (path / "pages").write_bytes(b"memory")
    return path


def test_images_are_those_that_are_whole_the_newest_first(store: Store) -> None:
    for name in ("9", "10", "2", "11.new", "x"):
        image(store, name)
    assert [path.name for path in store.images()] == ["10", "9", "2"]
    files.remove(store.path)
    assert store.images() == []


def test_a_new_one_has_the_next_number_and_what_was_half_done_is_gone(store: Store) -> None:
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
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = image(store, "1"), image(store, "2")
    real = files.remove

    def busy(path: Path) -> None:
        if path == one:
            raise Refused("it is in use")
        real(path)

    monkeypatch.setattr(files, "remove", busy)
    store.drop_image(one)
    store.drop_image(other)
    assert names(store) == ["1"]
    assert store._lines[-1].endswith("image 1 stays: it is in use")


def test_a_file_of_roots_is_replaced_in_one_step(store: Store) -> None:
    (store.path / "status.json.new").write_text("left by one that was killed")
    for content in (b"one", b"other"):
        store.replace("status.json", content, 0o640)
        path = store.path / "status.json"
        assert path.read_bytes() == content
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 0, 1234)
    assert sorted(os.listdir(store.path)) == ["images", "status.json"]


def test_the_last_fifty_sentences_are_kept(store: Store) -> None:
    for number in range(60):
        store.say(f"line {number}")
    assert [line.split(" ", 1)[1] for line in store._lines] == [f"line {n}" for n in range(10, 60)]
