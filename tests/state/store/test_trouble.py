"""Troubles of a file, by the error, and what a person does about them."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from slurm_elastic.state.store.trouble import (
    JournalError,
    LostFileError,
    TroubleKind,
    kind_of,
    locked_error,
    require_room,
    set_aside,
    trouble_of,
)

PATH = Path("/var/lib/x/ledger.db")


LOST = LostFileError(errno.ENOENT, "it was removed", str(PATH))


def of_journal(cause: OSError) -> sqlite3.Error:
    try:
        with JournalError.of_system():
            raise cause
    except sqlite3.Error as error:
        return error


def of_sqlite(code: int | None, text: str = "x") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    if code is not None:
        error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (of_sqlite(sqlite3.SQLITE_FULL), TroubleKind.FULL),
        (of_sqlite(sqlite3.SQLITE_BUSY), TroubleKind.LOCKED),
        (of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), TroubleKind.LOCKED),
        (of_sqlite(sqlite3.SQLITE_LOCKED), TroubleKind.LOCKED),
        (of_sqlite(sqlite3.SQLITE_PROTOCOL), TroubleKind.LOCKED),
        (of_sqlite(sqlite3.SQLITE_CORRUPT), TroubleKind.CORRUPT),
        (of_sqlite(sqlite3.SQLITE_CORRUPT_VTAB), TroubleKind.CORRUPT),
        (of_sqlite(sqlite3.SQLITE_NOTADB), TroubleKind.CORRUPT),
        (of_sqlite(sqlite3.SQLITE_READONLY), TroubleKind.READ_ONLY),
        (of_sqlite(sqlite3.SQLITE_READONLY_DBMOVED), TroubleKind.READ_ONLY),
        (of_sqlite(sqlite3.SQLITE_IOERR), TroubleKind.UNUSABLE),
        (of_sqlite(sqlite3.SQLITE_IOERR_SHMSIZE), TroubleKind.FULL),
        (of_sqlite(sqlite3.SQLITE_CANTOPEN, "disk is full"), TroubleKind.UNUSABLE),
        (of_sqlite(None, "database or disk is full"), TroubleKind.FULL),
        (of_sqlite(None), TroubleKind.UNUSABLE),
        (OSError(errno.ENOSPC, "x"), TroubleKind.FULL),
        (OSError(errno.EDQUOT, "x"), TroubleKind.FULL),
        (OSError(errno.EFBIG, "x"), TroubleKind.FULL),
        (OSError(errno.EROFS, "x"), TroubleKind.READ_ONLY),
        (OSError(errno.EACCES, "x"), TroubleKind.UNUSABLE),
        (OSError("x"), TroubleKind.UNUSABLE),
        (LOST, TroubleKind.LOST),
        (locked_error(PATH), TroubleKind.LOCKED),
        (of_journal(LOST), TroubleKind.LOST),
        (of_journal(OSError(errno.ENOSPC, "x")), TroubleKind.FULL),
    ],
)
def test_the_kind_is_told_by_the_code(error: Exception, kind: TroubleKind) -> None:
    assert kind_of(error) is kind
    found = trouble_of(error, PATH)
    assert found.kind is kind
    assert found.text.endswith(f" ({error})")


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (OSError(errno.ENOSPC, "x"), "the disk of /var/lib/x is full", "(df /var/lib/x)"),
        (of_sqlite(sqlite3.SQLITE_BUSY), f"another process has locked {PATH}", f"fuser -v {PATH}*"),
        (of_sqlite(sqlite3.SQLITE_CORRUPT), f"{PATH} is damaged", "sets the file aside"),
        (LOST, f"{PATH} was removed or replaced", "from its memory"),
        (locked_error(Path("/x/y")), "another process has locked /x/y", "fuser -v /x/y*"),
        (OSError(errno.EROFS, "x"), f"{PATH} cannot be written", f"ls -l {PATH}"),
        (OSError(errno.EACCES, "x"), f"{PATH} cannot be used", "mode of /var/lib/x"),
    ],
)
def test_each_is_told_with_its_remedy(error: Exception, what: str, remedy: str) -> None:
    found = trouble_of(error, PATH)
    assert found.text.startswith(what)
    assert remedy in found.remedy


def test_room_is_what_a_file_of_that_size_can_have(tmp_path: Path) -> None:
    require_room(tmp_path, 4096)
    assert list(tmp_path.iterdir()) == [], "it leaves none"
    with pytest.raises(OSError):
        require_room(tmp_path, 2**62)
    with pytest.raises(FileNotFoundError):
        require_room(tmp_path / "left", 1)


def test_a_damaged_file_is_kept_beside_and_what_sqlite_left_of_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    for number in range(2):
        path.write_text(f"damaged {number}")
        path.with_name("ledger.db-wal").touch()
        set_aside(path, 0.0)
    found = {one.name: one.read_text() for one in tmp_path.iterdir()}
    name = "ledger.db.damaged-19700101T000000Z"
    assert found == {name: "damaged 0", f"{name}-2": "damaged 1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="takes on the rights of another user")
def test_a_user_who_may_not_enter_the_directory_gets_the_trouble_and_no_error(
    tmp_path: Path,
) -> None:
    """`doctor` of every user, once the services have a state directory."""
    path = tmp_path / "closed" / "checkpoints.db"
    path.parent.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        trouble = trouble_of(PermissionError(errno.EACCES, "Permission denied", str(path)), path)
    finally:
        os.seteuid(0)
    assert trouble.kind is TroubleKind.UNUSABLE
    assert trouble.remedy.endswith(str(path))
