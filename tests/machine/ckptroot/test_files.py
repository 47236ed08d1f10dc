"""Files where somebody else may have put something else: neither waited for nor walked for ever."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import files
from slurm_elastic.machine.ckptroot.site import RequestRefused


def nest(path: Path, depth: int, name: str = "d") -> None:
    """Directories in each other, deeper than any path may be long."""
    path.mkdir()
    at = os.open(path, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_DIRECTORY, dir_fd=at)
        os.close(os.open("file", os.O_CREAT, dir_fd=inner))
        os.close(at)
        at = inner
    os.close(at)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_only_regular_files_are_opened_and_nothing_is_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            (tmp_path / "target").write_bytes(b"secret")
            path.symlink_to(tmp_path / "target")
        case _:
            path.mkdir()
    with pytest.raises((RequestRefused, OSError)):
        files.read(path, 100)


def test_what_is_longer_than_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"12345")
    assert files.read(path, 5) == b"12345"
    os.truncate(path, 1 << 40)
    with pytest.raises(RequestRefused, match="more than 5"):
        files.read(path, 5)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.touch()
    with pytest.raises(RequestRefused, match=f"belongs to uid {os.getuid()}"):
        files.opened(path, owners=(os.getuid() + 1,))


def test_json_that_only_opens_brackets_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested"):
        files.json_of(b"[" * 100_000)


def test_directories_in_directories_are_removed_however_deep(tmp_path: Path) -> None:
    nest(tmp_path / "deep", 5000)
    (tmp_path / "deep" / "beside").mkdir()
    files.remove(tmp_path / "deep")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "it" / "in").mkdir(parents=True)
    for place in ("link", "it/link", "it/in/link"):
        (tmp_path / place).symlink_to(tmp_path / "other")
    files.remove(tmp_path / "link")
    files.remove(tmp_path / "it")
    files.remove(tmp_path / "it")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert (tmp_path / "other" / "file").exists()


def test_a_removal_ends_and_the_next_one_goes_on(tmp_path: Path) -> None:
    nest(tmp_path / "deep", 100)
    with pytest.raises(RequestRefused, match="the rest comes next"):
        files.remove(tmp_path / "deep", max_entries=50)
    for _ in range(20):
        with contextlib.suppress(RequestRefused):
            files.remove(tmp_path / "deep", max_entries=50)
    assert not (tmp_path / "deep").exists()


def test_a_directory_with_too_many_names_is_refused(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    at = os.open(tmp_path, os.O_DIRECTORY)
    try:
        assert files.names(at, 3) == ["a", "b", "c"]
        with pytest.raises(RequestRefused, match="more than 2"):
            files.names(at, 2)
    finally:
        os.close(at)


def test_holes_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"x")
    with open(path, "rb") as file:
        (one,) = files.pieces(file.fileno(), 0, 1 << 40)
        assert one[0] <= 1 << 30 < one[1]
        assert one[1] - one[0] <= 1 << 20
        assert list(files.pieces(file.fileno(), 1 << 35, 1 << 40)) == []


@pytest.fixture
def descriptors() -> Callable[[], int]:
    """How many this process has open more than before the test."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    return lambda: count() - before


def test_nothing_is_left_open(tmp_path: Path, descriptors: Callable[[], int]) -> None:
    (tmp_path / "file").write_bytes(b"123")
    for _ in range(3):
        with pytest.raises(RequestRefused):
            files.opened(tmp_path / "file", max_bytes=2)
    nest(tmp_path / "deep", 3)
    files.remove(tmp_path / "deep")
    files.remove(tmp_path / "no such place" / "file")
    assert descriptors() == 0


def test_what_is_made_is_closed_to_others_unless_told(tmp_path: Path) -> None:
    for mode, more in ((0o600, {}), (0o640, {"mode": 0o640})):
        path = tmp_path / f"{mode:o}"
        os.close(files.opened(path, os.O_WRONLY | os.O_CREAT, **more))
        assert path.stat().st_mode & 0o777 == mode


def test_what_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "it").write_bytes(b"123456")
    monkeypatch.setattr(files, "_check", lambda *_: None)  # it was shorter then
    with pytest.raises(RequestRefused, match="it: more than 5 bytes long"):
        files.read(tmp_path / "it", 5)


@pytest.mark.parametrize("below", [False, True])
def test_a_removal_takes_as_many_as_it_may_and_no_more(tmp_path: Path, below: bool) -> None:
    """A directory below counts as one."""
    for most, fits in ((4 if below else 3, True), (3 if below else 2, False)):
        path = tmp_path / str(most)
        inner = path / "inner" if below else path
        inner.mkdir(parents=True)
        for name in "abc":
            (inner / name).touch()
        if fits:
            files.remove(path, most)
        else:
            with pytest.raises(RequestRefused, match="more is in it than is removed at a time"):
                files.remove(path, most)
        assert path.exists() is not fits


MIB = 1 << 20


@pytest.mark.parametrize("error", [None, errno.EINVAL, errno.ENOTSUP])
def test_a_file_is_read_in_blocks_also_where_nothing_is_known_of_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    (tmp_path / "it").write_bytes(b"x" * (2 * MIB + 5))

    def no_holes(*_: int) -> int:
        raise OSError(error, "no such call")

    with open(tmp_path / "it", "rb") as file:
        if error is not None:
            monkeypatch.setattr(files.os, "lseek", no_holes)
        found = list(files.pieces(file.fileno(), 3, 2 * MIB + 5))
    assert found == [(3, MIB + 3), (MIB + 3, 2 * MIB + 3), (2 * MIB + 3, 2 * MIB + 5)]


def test_another_failure_is_no_want_of_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.os, "lseek", fails)
    with pytest.raises(OSError, match="Input/output"):
        list(files.pieces(0, 0, 10))


class TestCopy:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Iterator[Callable[..., tuple[int, bytes]]]:
        """From a file of ten bytes; how many were copied, and what is there then."""
        (tmp_path / "source").write_bytes(b"0123456789")
        with open(tmp_path / "source", "r+b") as source, open(tmp_path / "target", "w+b") as target:

            def copied(*bounds: int, **more: int) -> tuple[int, bytes]:
                done = files.copy(source.fileno(), target.fileno(), *bounds, **more)
                return done, (tmp_path / "target").read_bytes()

            yield copied

    def test_of_a_part_goes_to_its_place(self, copy: Callable[..., tuple[int, bytes]]) -> None:
        assert copy(2, 10) == (8, b"\0\00023456789")
        assert copy(4, 6, shift=4) == (2, b"45" + b"23456789")

    def test_takes_as_much_as_it_may(self, copy: Callable[..., tuple[int, bytes]]) -> None:
        assert copy(0, 10, max_bytes=10)[0] == 10
        with pytest.raises(RequestRefused, match="more than 9 bytes of data to copy"):
            copy(0, 10, max_bytes=9)

    def test_of_more_than_there_is_is_refused(self, copy: Callable[..., tuple[int, bytes]]) -> None:
        with pytest.raises(RequestRefused, match=r"^a copy ends at byte 10 of 11$"):
            copy(0, 11)

    def test_keeps_a_hole_at_the_end(
        self, copy: Callable[..., tuple[int, bytes]], tmp_path: Path
    ) -> None:
        os.truncate(tmp_path / "source", MIB)
        assert copy(MIB - 9, MIB, shift=MIB - 9) == (0, bytes(9))

    def test_goes_on_where_less_was_written(
        self, copy: Callable[..., tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.pwrite
        monkeypatch.setattr(files.os, "pwrite", lambda fd, block, at: write(fd, block[:3], at))
        assert copy(0, 10) == (10, b"0123456789")

    def test_of_what_becomes_shorter_is_refused(
        self, copy: Callable[..., tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files.os, "pread", lambda *_: b"")
        with pytest.raises(RequestRefused, match=r"^a copy ends at byte 0 of 10$"):
            copy(0, 10)
