"""Files of a directory of ours are opened, and nothing that somebody has put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slurm_elastic.base import ownfile, writing
from slurm_elastic.base.account import account

NOBODY = account("nobody").pw_uid


def test_a_file_is_read_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\n")
    descriptor = ownfile.opened(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"two\n")
    os.close(descriptor)
    with ownfile.reader(path) as file:
        assert file.read() == b"one\ntwo\n"


def test_a_link_is_not_followed_and_the_sentence_says_that_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    path = tmp_path / "file"
    path.symlink_to(tmp_path / "target")
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_CREAT):
        with pytest.raises(OSError, match=r"is a link, expected a file: '.*/file'"):
            ownfile.opened(path, flags)


def test_nobody_waits_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OSError, match="is no regular file"):
        ownfile.reader(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_roots_file_with_a_second_name_in_a_directory_of_another_user_is_not_opened(
    tmp_path: Path,
) -> None:
    (tmp_path / "target").write_bytes(b"")
    directory = tmp_path / "theirs"
    directory.mkdir()
    os.chown(directory, NOBODY, -1)
    os.link(tmp_path / "target", directory / "file")
    with pytest.raises(OSError, match=f"belongs to uid 0, not to uid {NOBODY}"):
        ownfile.opened(directory / "file", os.O_RDWR)
    os.chown(directory / "file", NOBODY, -1)
    os.close(ownfile.opened(directory / "file", os.O_RDWR))


def test_a_draft_that_was_exchanged_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"as it was")
    for exchanged in (os.symlink, os.link):
        with writing.draft(tmp_path / "file") as made:
            made.unlink()
            exchanged(target, made)
            with pytest.raises(
                OSError, match=r"Too many levels|is no longer the file that was created"
            ):
                writing.open_draft(made)
        assert target.read_bytes() == b"as it was"


def test_a_file_that_is_made_has_its_mode(tmp_path: Path) -> None:
    os.close(ownfile.opened(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600))
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
