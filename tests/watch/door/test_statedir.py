"""Nobody but SlurmUser opens a file of the state directory."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import needs
import pytest

from slurm_elastic.state import statedir
from slurm_elastic.state.ledger import Ledger

NOBODY = 65534
ATTACK = """
import fcntl, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = []
for path in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH):
        try:
            held.append(os.open(path, flags))
        except (PermissionError, IsADirectoryError):
            continue
        print("opened", path)
"""


def modes(path: Path) -> dict[str, int]:
    everything = [path, *path.rglob("*")]
    return {str(p.relative_to(path)): stat.S_IMODE(p.lstat().st_mode) for p in everything}


def test_what_others_may_read_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for name in ("requests/bad", "notices", "signal-saves"):
        (state / name).mkdir(parents=True)
    for name in ("ledger.db", "ledger.db-shm", "daemon.lock", "requests/1-2-resume.json"):
        (state / name).touch(mode=0o644)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(state / "wake.sock"))
    assert statedir.close_to_others(state, os.geteuid()) == 10
    found = modes(state)
    assert {found[n] for n in (".", "requests", "requests/bad", "notices")} == {0o700}
    assert not any(mode & 0o077 for mode in found.values())
    assert statedir.close_to_others(state, os.geteuid()) == 0
    listener.close()


def test_no_link_is_followed(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    for place in (state, elsewhere):
        place.mkdir(mode=0o755)
    (elsewhere / "file").touch(mode=0o644)
    (state / "directory").symlink_to(elsewhere)
    (state / "file").symlink_to(elsewhere / "file")
    statedir.close_to_others(state, os.geteuid())
    assert modes(elsewhere) == {".": 0o755, "file": 0o644}


@needs.ROOT
def test_what_belongs_to_another_user_is_left_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger.db").touch(mode=0o644)
    os.chown(tmp_path / "ledger.db", NOBODY, NOBODY)
    statedir.close_to_others(tmp_path, 0)
    assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o644
    assert f"{tmp_path}/ledger.db belongs to uid {NOBODY}, not to 0" in caplog.text


CLOSE = """
import logging, os, sys
from pathlib import Path
from slurm_elastic.state import statedir
logging.basicConfig(format="%(message)s")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
statedir.close_to_others(Path(sys.argv[1]), os.geteuid())
"""


@needs.ROOT
def test_a_directory_that_only_root_may_enter_keeps_nothing_else_open(open_path: Path) -> None:
    """Such as lost+found, where the state directory is a file system of its own."""
    state = open_path / "state"
    (state / "requests").mkdir(parents=True)
    names = [f"requests/{number}.json" for number in range(9)] + [f"{n}.db" for n in range(9)]
    for name in names:
        (state / name).touch(mode=0o644)
    for path in (state, *state.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (state / "lost+found").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", CLOSE, str(state)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert f"{state}/lost+found is not closed to other users: Permission denied" in done.stderr
    assert not any(mode & 0o077 for mode in modes(state).values())


def test_a_setgid_directory_is_closed_and_setgid_no_more(tmp_path: Path) -> None:
    """A service under systemd's RestrictSUIDSGID= may set no mode with that bit."""
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests").chmod(0o2775)
    statedir.close_to_others(tmp_path, os.geteuid())
    assert modes(tmp_path)["requests"] == 0o700


def test_closing_keeps_the_locks_of_an_open_ledger(tmp_path: Path) -> None:
    """POSIX locks go when any descriptor of the file is closed that was opened for reading."""
    ledger = Ledger(tmp_path / "ledger.db")
    tmp_path.chmod(0o755)
    (tmp_path / "ledger.db").chmod(0o644)
    ledger.health.beat("slurm-elasticd", 1.0, 1)
    held = (tmp_path / "ledger.db").stat().st_ino
    before = locks_on(held)
    assert before
    statedir.close_to_others(tmp_path, os.geteuid())
    assert locks_on(held) == before
    ledger.close()


def locks_on(inode: int) -> list[str]:
    lines = Path("/proc/locks").read_text().splitlines()
    return [line.split(":", 1)[1] for line in lines if f":{inode} " in line]


@needs.ROOT
def test_another_user_opens_none_of_the_files_and_so_locks_none(open_path: Path) -> None:
    """One who could open the shared memory would stop every writer by a lock of one byte; one who
    could open a service's lock file would stop its next start.
    """
    state = open_path / "state"
    state.mkdir(mode=0o755)
    with statedir.private_umask():
        ledger = Ledger(state / "ledger.db")
    (state / "daemon.lock").touch(mode=0o644)
    statedir.close_to_others(state, 0)
    ledger.health.beat("slurm-elasticd", 1.0, 1)
    files = [str(path) for path in state.rglob("*")]
    assert len(files) == 7
    done = subprocess.run(
        [sys.executable, "-Es", "-c", ATTACK, *files, str(state)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    # A directory may be named (O_PATH), as that gives no right to anything in it.
    assert done.stdout.splitlines() == [f"opened {state}"]
    ledger.health.beat("slurm-elasticd", 2.0, 1)
    with open(state / "daemon.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ledger.close()
