"""One file after the other into an image and out of it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import packing
from slurm_elastic.machine.ckptroot.packing import Item, finish, item_of, pack, unpack
from slurm_elastic.machine.ckptroot.site import RequestRefused

MIB = 1 << 20


class Image:
    """An image's data, and what was made way for."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = os.open(place / "data", os.O_RDWR | os.O_CREAT)
        self.names: dict[tuple[int, int], str] = {}
        self.at = 0
        self.gone: list[str] = []

    def pack(self, name: str, most: int = 1 << 40) -> Item:
        path = self.place / name
        item, self.at = pack(str(path), path.lstat(), self.names, self.data, self.at, most)
        return item_of(json.loads(json.dumps(asdict(item))))

    def unpack(self, *items: Item) -> int:
        at = 0
        for item in items:
            at = unpack(item, self.data, at, self.make_way)
        for item in items:
            if stat.S_ISDIR(item.mode):
                finish(item)
        return at

    def make_way(self, path: str) -> None:
        if os.path.lexists(path):
            self.gone.append(os.path.basename(path))
            os.rename(path, f"{path}.before")


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    found = Image(tmp_path)
    yield found
    os.close(found.data)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_files_come_back_one_after_the_other_with_time_mode_and_holes(
    image: Image, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"x" * (MIB + 5))
    os.truncate(tmp_path / "b", 8 * MIB)
    (tmp_path / "a").chmod(0o640)
    os.utime(tmp_path / "a", ns=(5, 7_000_000_001))
    before = descriptors()
    items = [image.pack(name) for name in ("a", "b")]
    assert image.at < 2 * MIB
    content = (tmp_path / "b").read_bytes()
    for name in ("a", "b"):
        (tmp_path / name).unlink()
    assert image.unpack(*items) == image.at
    assert descriptors() == before
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "b").read_bytes() == content
    found = (tmp_path / "a").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o640, 7_000_000_001)
    assert (tmp_path / "b").stat().st_blocks * 512 < 2 * MIB
    assert image.gone == []


def test_as_much_as_may_travel_travels(image: Image, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"12345")
    image.pack("a", 5)
    before = descriptors()
    with pytest.raises(RequestRefused, match="b and others are more than may travel"):
        image.pack("b", 9)
    image.pack("b", 10)
    assert descriptors() == before


def test_what_is_the_same_stays_as_it_is(image: Image, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0" * 10)
    (tmp_path / "sparse").write_bytes(b"x")
    os.truncate(tmp_path / "sparse", 4 * MIB)
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").chmod(0o620)
    (tmp_path / "dir").mkdir()
    names = ("a", "sparse", "link", "pipe", "dir")
    items = [image.pack(name) for name in names]
    inodes = [(tmp_path / name).lstat().st_ino for name in names]
    (tmp_path / "pipe").chmod(0o600)
    assert image.unpack(*items) == image.at
    assert [(tmp_path / name).lstat().st_ino for name in names] == inodes
    assert image.gone == []
    assert stat.S_IMODE((tmp_path / "pipe").stat().st_mode) == 0o620


@pytest.mark.parametrize("other", [b"", b"01234567X9", b"012345678", b"0123456789X"])
def test_a_file_with_other_content_makes_way(image: Image, tmp_path: Path, other: bytes) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    item = image.pack("a")
    (tmp_path / "a").write_bytes(other)
    before = descriptors()
    image.unpack(item)
    assert descriptors() == before
    assert image.gone == ["a"]
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_what_stands_in_a_hole_is_other_content_and_zeros_are_not(
    image: Image, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.truncate(tmp_path / "a", 4 * MIB)
    item = image.pack("a")
    with open(tmp_path / "a", "r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), 2 * MIB)
        image.unpack(item)
        assert image.gone == []
        os.pwrite(file.fileno(), b"y", 2 * MIB)
    image.unpack(item)
    assert image.gone == ["a"]
    assert (tmp_path / "a").read_bytes() == b"x" + bytes(4 * MIB - 1)


def test_links_and_pipes_make_way_for_each_other(image: Image, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    os.utime(tmp_path / "link", ns=(1, 2_000_000_000), follow_symlinks=False)
    items = [image.pack(name) for name in ("link", "pipe")]
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "pipe").unlink()
    (tmp_path / "pipe").write_text("a file")
    image.unpack(*items)
    assert image.gone == ["link", "pipe"]
    assert os.readlink(tmp_path / "link") == "a"
    assert (tmp_path / "link").lstat().st_mtime == 2
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)


def test_two_names_of_a_file_are_two_names_again(image: Image, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    os.link(tmp_path / "a", tmp_path / "b")
    items = [image.pack(name) for name in ("a", "b")]
    assert image.at == 5, "its data once"
    assert items[1].same == str(tmp_path / "a")
    (tmp_path / "b").unlink()
    image.unpack(*items)
    image.unpack(*items)
    assert image.gone == []
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_bytes(b"12345")
    image.unpack(*items)
    assert image.gone == ["b"]
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("mode", [0o500, 0o700])
def test_a_directory_is_open_until_it_is_filled(image: Image, tmp_path: Path, mode: int) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir").chmod(mode)
    item = image.pack("dir")
    for there in (True, False):
        if not there:
            (tmp_path / "dir").rmdir()
        unpack(item, image.data, 0, image.make_way)
        assert stat.S_IMODE((tmp_path / "dir").stat().st_mode) == 0o700
        finish(item)
        assert stat.S_IMODE((tmp_path / "dir").stat().st_mode) == mode
    assert image.gone == []


def test_the_way_to_it_is_made_for_its_user_alone(image: Image, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    item = image.pack("a")
    moved = Item(**{**asdict(item), "path": str(tmp_path / "x" / "y"), "pieces": item.pieces})
    image.unpack(moved)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o700
    assert (tmp_path / "x" / "y").read_bytes() == b"1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a group")
def test_its_group_comes_back_where_that_may_be(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    os.chown(tmp_path / "a", -1, 4321)
    item = image.pack("a")
    (tmp_path / "a").unlink()
    image.unpack(item)
    assert (tmp_path / "a").stat().st_gid == 4321

    def denied(*_: object) -> None:
        raise PermissionError

    (tmp_path / "a").unlink()
    monkeypatch.setattr(packing.os, "chown", denied)
    image.unpack(item)
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_copy_that_is_cut_off_is_refused(image: Image, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    item = image.pack("a")
    (tmp_path / "a").unlink()
    os.truncate(tmp_path / "data", 3)
    with pytest.raises(RequestRefused, match=r"^a copy ends at byte 3 of 5$"):
        image.unpack(item)
