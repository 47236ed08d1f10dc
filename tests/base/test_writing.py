"""Files are written in one way, which no planted link or file turns against the writer."""

from __future__ import annotations

import ast
import errno
import os
import stat
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from needs import ROOT

import slurm_elastic
from slurm_elastic.base import writing

PACKAGE = Path(slurm_elastic.__file__).parent

OTHER_WAYS = {
    "setup/making/credential_file.py": "the owner of a file that it has just created",
    "setup/making/login_key.py": "the owner of a key that it has just created",
    "base/writing.py": "the one way",
    "checkpointers/node_helper_client.py": "a request into a file of the launcher's, as it is",
    "machine/ckptroot/": "one file on nodes, with its own way (files.opened) into directories of users",
    "cli/setting_up/bundle.py": "an archive, written into a file that is made or refused (O_EXCL)",
    "state/locks.py": "a lock",
    "base/processes/unixsocket.py": "a socket",
    "cli/streams.py": "descriptors that are open already",
    "base/processes/bounded_process.py": "the kernel's order of who goes first where memory is out",
    "base/faults.py": "a mark for tests that stop a service",
    "state/heartbeat.py": "over the last one, in place: a full disk has room for that",
    "machine/hub/link.py": "a sysctl",
    "image/": "in trees of its own that it makes",
    "machine/jobfiles/": "files of users, into directories that are open, and one file on machines",
    "machine/local/": "a socket, a lock, and a log to whose end alone is written",
    "machine/programs/": "run on machines, or in slurmctld's time: the standard library alone",
    "providers/aws/boothook.py": "run on machines: the standard library alone",
    "providers/gcp/boothook.py": "run on machines: the standard library alone",
    "providers/openstack/boothook.py": "run on machines: the standard library alone",
    "sandbox/": "a rehearsal, in a directory of its user's alone (require_own)",
    "slurm/conf/check.py": "in a temporary directory of its own",
    "slurm/conf/dryrun.py": "in a temporary directory of its own",
    "slurm/conf/isolated.py": "in a temporary directory of its own",
    "slurm/conf/transaction.py": "directories that it has made",
    "state/spool.py": "a request that cannot be read is put aside",
    "state/statedir.py": "modes, by descriptors",
    "state/store/": "a journal and its view: drafts take their place, one file has lines put to its end",
    "testing/": "in directories of tests",
    "watch/web/listening.py": "a socket",
}
"""Modules (a trailing slash: all below) that write otherwise, with the reason."""

WRITERS = {"write_text", "write_bytes", "mkstemp", "NamedTemporaryFile", "touch"}
RIGHTS = {"chmod", "fchmod", "chown", "fchown", "lchmod", "lchown"}
NAMES = {"rename", "renames"}
FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT"}


def ways_of_writing(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the text of each call that writes a file, names it or changes its rights."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FLAGS:
            yield node.lineno, ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node)
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        renames = last in NAMES or name == "os.replace"
        renames = renames or (last == "replace" and len(node.args) == 1 and not node.keywords
                              and not isinstance(node.args[0], ast.Starred)
                              and name.rpartition(".")[0].endswith(("path", "draft", "temporary")))  # fmt: skip
        if last in WRITERS | RIGHTS or renames or opens_to_write(node, last):
            yield node.lineno, text


def opens_to_write(node: ast.Call, last: str) -> bool:
    if last not in ("open", "fdopen"):
        return False
    modes = [*node.args[:2], *(k.value for k in node.keywords if k.arg == "mode")]
    said = [one.value for one in modes if isinstance(one, ast.Constant)]
    return any(isinstance(m, str) and len(m) <= 3 and set(m) & set("wax+") for m in said)


def allowed(name: str) -> str | None:
    return next((way for way in OTHER_WAYS if name == way or (
        way.endswith("/") and name.startswith(way))), None)  # fmt: skip


def test_files_are_written_in_one_way() -> None:
    found = defaultdict(list)
    used: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for line, text in ways_of_writing(ast.parse(path.read_text())):
            if (way := allowed(name)) is None:
                found[name].append(f"{line}: {text[:80]}")
            else:
                used.add(way)
    assert not found, "slurm_elastic.base.writing is the way; or OTHER_WAYS says why not"
    assert used == set(OTHER_WAYS), "a way that nobody takes any more"


Write = Callable[[Path, bytes], object]
WRITES: dict[str, Write] = {
    "replace": writing.replace,
    "create": writing.create,
    "append": writing.append,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_through_a_link(tmp_path: Path, write: Write) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    other.chmod(0o600)
    (tmp_path / "file").symlink_to(other)
    if write is writing.append:
        with pytest.raises(OSError, match="symbolic links"):
            write(tmp_path / "file", b"ours")
    else:
        write(tmp_path / "file", b"ours")
    assert (other.read_text(), stat.S_IMODE(other.stat().st_mode)) == ("theirs", 0o600)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_whoever_may_write_there_cannot_foresee_the_draft(tmp_path: Path, write: Write) -> None:
    before = set(os.listdir(tmp_path))
    write(tmp_path / "file", b"ours")
    assert set(os.listdir(tmp_path)) == before | {"file"}
    assert (tmp_path / "file").read_bytes() == b"ours"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_made(tmp_path: Path) -> None:
    assert writing.create(tmp_path / "file", b"first")
    assert not writing.create(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_devices_and_pipes_are_not_taken_away(tmp_path: Path) -> None:
    """``--output /dev/stdout`` of root would leave a file there for everybody else."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("pipe")
    for name in ("pipe", "stdout"):
        with pytest.raises(FileExistsError, match=rf"is no regular file: '{tmp_path}/{name}'"):
            writing.replace(tmp_path / name, b"x")
    assert stat.S_ISFIFO((tmp_path / "stdout").stat().st_mode)
    (tmp_path / "round").symlink_to("round")
    writing.replace(tmp_path / "round", b"x")
    assert (tmp_path / "round").read_bytes() == b"x"


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "none" / "file", tmp_path / "directory"):
        with pytest.raises(OSError, match=rf"'{path}'$"):
            writing.replace(path, b"x")
    assert os.listdir(tmp_path) == ["directory"]


def test_a_full_disk_and_a_failed_rename_name_the_file_and_not_its_draft(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space left on device") as full,
        writing.draft(tmp_path / "export"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")  # as write(2), without a name
    assert full.value.filename == str(tmp_path / "export")
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError) as taken, writing.draft(tmp_path / "directory") as draft:
        os.replace(draft, tmp_path / "directory")
    assert taken.value.filename == str(tmp_path / "directory")
    with pytest.raises(FileNotFoundError) as other, writing.draft(tmp_path / "export"):
        (tmp_path / "none").read_bytes()
    assert other.value.filename == str(tmp_path / "none")


def test_modes_hold_whatever_the_umask(tmp_path: Path) -> None:
    writing.replace(tmp_path / "file", b"all may read", 0o644)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_a_draft_that_is_not_used_is_gone(tmp_path: Path) -> None:
    with writing.draft(tmp_path / "file", b"x") as made:
        assert made.read_bytes() == b"x"
    assert os.listdir(tmp_path) == []


DRAFT = ".file.abcd_123.draft"


def test_a_draft_of_a_killed_program_goes_with_the_next_one_a_day_later(tmp_path: Path) -> None:
    signals = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = f"from slurm_elastic.base import writing; from pathlib import Path; import sys\nwith writing.draft(Path(sys.argv[1]), b'x'): {signals}"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "file")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".file.")
    writing.replace(tmp_path / "file", b"new")
    assert left.exists(), "it may be being written"
    os.utime(left, (0, time.time() - 86401))
    writing.replace(tmp_path / "fil", b"of another name")
    assert left.exists()
    writing.replace(tmp_path / "file", b"newer")
    assert sorted(os.listdir(tmp_path)) == ["fil", "file"]


def test_nothing_but_a_draft_of_ours_goes(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    directory = tmp_path / "place"
    directory.mkdir()
    (directory / DRAFT).symlink_to(victim)
    (directory / ".file.dir_5678.draft").mkdir()
    stay = (".file.original", ".file.old.abcd_123.draft", "file.abcd_123.draft", ".file.draft")
    for name in stay:
        (directory / name).touch()
        os.utime(directory / name, (0, 0))
    os.utime(victim, (0, 0))
    os.utime(directory / DRAFT, (0, 0), follow_symlinks=False)
    before = set(os.listdir(directory))
    writing.replace(directory / "file", b"x")
    assert set(os.listdir(directory)) == before | {"file"}
    assert victim.exists()


@ROOT
def test_a_draft_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / DRAFT).touch()
    os.chown(tmp_path / DRAFT, 65534, 65534)
    os.utime(tmp_path / DRAFT, (0, 0))
    writing.replace(tmp_path / "file", b"x")
    assert (tmp_path / DRAFT).exists()
    writing.replace(tmp_path / "file", b"x", owner=(65534, 65534))
    assert not (tmp_path / DRAFT).exists()


def test_a_program_that_a_caller_names_can_be_run(tmp_path: Path) -> None:
    writing.as_told(tmp_path / "program", b"#!/bin/sh\n", executable=True)
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) == 0o755


def test_what_a_caller_names_is_written_into(tmp_path: Path) -> None:
    read, write = os.pipe()
    writing.as_told(Path(f"/dev/fd/{write}"), "page\n")
    os.close(write)
    with open(read, "rb") as reader:
        assert reader.read() == b"page\n"


def test_what_sqlite_had_beside_a_draft_goes_with_it(tmp_path: Path) -> None:
    long_ago = time.time() - 2 * 86400
    left = [tmp_path / f".file.12345678.draft{end}" for end in ("", "-journal", "-wal", "-shm")]
    other = tmp_path / ".file.12345678.draft-other"
    for one in (*left, other):
        one.touch()
        os.utime(one, (long_ago, long_ago))
    writing.replace(tmp_path / "file", b"ours")
    assert set(os.listdir(tmp_path)) == {"file", other.name}


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_directory_that_the_disk_fails_to_sync_is_an_error_and_one_that_cannot_be_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    writing.sync_directory(tmp_path)
    fails = pytest.raises(OSError, match="Input") if number == errno.EIO else nullcontext()
    with fails:
        writing.require_synced(tmp_path)
