"""Files where somebody else may have put something else: neither waited for nor walked for ever."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from slurm_elastic.ckptroot import files
from slurm_elastic.ckptroot.site import Refused


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
    with pytest.raises((Refused, OSError)):
        files.read(path, 100)


def test_what_is_longer_than_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"12345")
    assert files.read(path, 5) == b"12345"
    os.truncate(path, 1 << 40)
    with pytest.raises(Refused, match="more than 5"):
        files.read(path, 5)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.touch()
    with pytest.raises(Refused, match=f"belongs to uid {os.getuid()}"):
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
    with pytest.raises(Refused, match="the rest comes next"):
        files.remove(tmp_path / "deep", most=50)
    for _ in range(20):
        with contextlib.suppress(Refused):
            files.remove(tmp_path / "deep", most=50)
    assert not (tmp_path / "deep").exists()


def test_a_directory_with_too_many_names_is_refused(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    at = os.open(tmp_path, os.O_DIRECTORY)
    try:
        assert files.names(at, 3) == ["a", "b", "c"]
        with pytest.raises(Refused, match="more than 2"):
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
