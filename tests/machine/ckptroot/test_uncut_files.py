"""A restored process does not cut the files that others append to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import uncut_files
from slurm_elastic.machine.ckptroot.dmtcp_open_files import appended_files, check_files
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT, aside, eventually, user_of

USER = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    if not uncut_files.is_possible():
        pytest.skip("system calls cannot be filtered here (seccomp user notification)")
    # Not tmp_path: each start of pytest closes the directory above it to other users.
    with tempfile.TemporaryDirectory(prefix="se-uncut-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        for file in ("shared", "own"):
            (place / file).write_bytes(b"x" * 100)
            (place / file).chmod(0o666)
        yield place


def cut(place: Path, restored: Callable[[uncut_files.FileKeeper], None]) -> list[int]:
    """The sizes of both files after a child of the user's has cut them to 10 bytes."""
    handover = uncut_files.Handover.made()
    pid = os.fork()
    if pid == 0:
        try:
            handover.give()
            os.setresuid(USER, USER, USER)
            while not (place / "go").exists():
                pass
            for name in ("shared", "own"):
                os.truncate(place / name, 10)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - this child must not return to the caller
            traceback.print_exc()
            os._exit(1)
    keeper = uncut_files.keep(handover, [str(place / "shared")], user_of(USER, USER))
    restored(keeper)
    (place / "go").touch()
    assert os.waitpid(pid, 0)[1] == 0
    keeper.close()
    return [(place / name).stat().st_size for name in ("shared", "own")]


@ROOT
def test_only_a_file_that_the_job_appends_to_is_left_uncut(place: Path) -> None:
    assert aside(lambda: cut(place, lambda keeper: None)) == [100, 10]


@ROOT
def test_once_the_job_runs_its_own_calls_do_what_they_say(place: Path) -> None:
    def restored(keeper: uncut_files.FileKeeper) -> None:
        keeper.restored()
        eventually(lambda: not pending(keeper))

    def pending(keeper: uncut_files.FileKeeper) -> bool:
        """Whether the keeper still has the end of our pipe open to read."""
        for number in os.listdir(f"/proc/{keeper.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed since the listing
                if int(number) > 2 and "pipe" in os.readlink(f"/proc/{keeper.pid}/fd/{number}"):
                    return True
        return False

    assert aside(lambda: cut(place, restored)) == [10, 10]


@ROOT
def test_a_link_to_the_file_is_the_same_file(place: Path) -> None:
    (place / "shared").rename(place / "real")
    (place / "shared").symlink_to("real")
    assert aside(lambda: cut(place, lambda keeper: None)) == [100, 10]


@ROOT
def test_where_calls_cannot_be_filtered_a_job_that_appends_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uncut_files.platform, "machine", lambda: "riscv64")
    uncut_files.check_possible([])
    with pytest.raises(RequestRefused, match=r"^it appends to /a, as other jobs may"):
        uncut_files.check_possible(["/b", "/a"])
    handover = uncut_files.Handover.made()
    pid = os.fork()
    if pid == 0:
        handover.give()
        os._exit(0)
    with pytest.raises(RequestRefused, match=r"^DMTCP would cut /a"):
        uncut_files.keep(handover, ["/a"], user_of(USER, USER))
    os.waitpid(pid, 0)


OPENS = """
import os, sys, tempfile
files = [open("append", "a"), open("both", "a+"), open("write", "w"), open("read")]
files += [open("out", "a"), open("gone", "a")]
os.unlink("gone")
if sys.argv[1] == "temporary":
    files.append(tempfile.TemporaryFile(dir="."))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["plain", "temporary"])
def test_what_a_job_appends_to_is_seen_and_what_never_had_a_name_is_refused(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "read").touch()
    command = [sys.executable, "-c", OPENS, kind]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as job:
        assert job.stdout
        assert job.stdout.readline() == b"ready\n"
        seen = appended_files([job.pid], [str(tmp_path / "out")])
        assert seen == [str(tmp_path / "append"), str(tmp_path / "both")]
        if kind == "temporary":
            with pytest.raises(
                RequestRefused, match=f"process {job.pid} has a file that never had a name"
            ):
                check_files([job.pid])
        else:
            check_files([job.pid])
