"""A session's directory on its machine: root's, bounded, and nothing of a killed one stays."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_elastic.machine.ckptroot import scratch
from slurm_elastic.machine.ckptroot.rights import as_user
from slurm_elastic.machine.ckptroot.scratch import Scratch
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT, aside, user_of

pytestmark = ROOT
USER = 65534


@pytest.fixture
def site() -> Iterator[HelperSite]:
    home = Path(tempfile.mkdtemp(prefix="se-scratch-", dir="/tmp"))
    home.chmod(0o755)
    yield HelperSite(
        cluster="t", directory=home, key=b"k" * 64, reader=(USER, USER), scratch=home / "run"
    )
    shutil.rmtree(home)


def test_what_is_roots_is_closed_and_users_find_their_way_past_it(site: HelperSite) -> None:
    path = Scratch(site.scratch, 1).path()
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (0, 0o700)
    assert site.scratch.stat().st_mode & 0o777 == 0o711
    site.scratch.chmod(0o700)  # as an earlier release left it
    Scratch(site.scratch, 2).path()
    assert site.scratch.stat().st_mode & 0o777 == 0o711


def test_the_users_part_is_his_and_cannot_be_filled(site: HelperSite) -> None:
    def fills() -> list[object]:
        path = Scratch(site.scratch, 1).of_user(USER, USER)
        with as_user(user_of(USER, USER)):
            (path / "port").write_text("4711")
            with pytest.raises(OSError) as full:
                (path / "much").write_bytes(b"x" * (17 << 20))
            return [full.value.errno, (path / "port").read_text()]

    assert aside(fills) == [errno.ENOSPC, "4711"]
    # It ended with its session, and was never to be seen from outside.
    assert (site.scratch / "1").stat().st_uid == 0
    assert list((site.scratch / "1").iterdir()) == []


def test_what_a_killed_session_left_goes_with_the_next_one(site: HelperSite) -> None:
    Scratch(
        site.scratch, 1
    ).path()  # its lock goes with the object's process; here it is still held
    left = site.scratch / "2"
    (left / "deep" / "deeper").mkdir(parents=True)
    os.mkfifo(left / "pipe")
    third = Scratch(site.scratch, 3)
    third.path()
    assert sorted(path.name for path in site.scratch.iterdir()) == ["1", "3"]
    third.close()
    assert [path.name for path in site.scratch.iterdir()] == ["1"]


def test_one_session_has_it(site: HelperSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LOCK_TIMEOUT_S", 0.1)
    Scratch(site.scratch, 1).path()
    with pytest.raises(RequestRefused, match="another session"):
        Scratch(site.scratch, 1).path()


def test_a_session_that_removes_it_as_it_is_made_costs_no_job_its_checkpoints(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when many tasks of an array start on a node at once: each removes what is nobody's yet."""
    chmod, removed = os.chmod, []

    def late(path: Path, mode: int, **more: bool) -> None:
        if Path(path).name == "1" and not removed:
            removed.append(path)
            os.rmdir(path)
        chmod(path, mode, **more)

    monkeypatch.setattr(os, "chmod", late)
    assert Scratch(site.scratch, 1).path().is_dir()
    assert removed


def test_a_session_that_is_removing_it_is_waited_for(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.scratch / "1"
    path.mkdir(parents=True)
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    waits: list[float] = []

    def remove(seconds: float) -> None:
        waits.append(seconds)
        path.rmdir()
        os.close(lock)

    monkeypatch.setattr(scratch.time, "sleep", remove)
    assert Scratch(site.scratch, 1).path().is_dir()
    assert len(waits) == 1


def test_what_was_made_anew_meanwhile_is_not_swept(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has the lock of the new directory, the sweeper that of one which is gone."""
    path = site.scratch / "1"
    path.mkdir(parents=True)
    flock = fcntl.flock

    def late(lock: int, how: int) -> None:
        path.rmdir()
        path.mkdir()
        (path / "criu.log").touch()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    scratch.sweep(site.scratch)
    assert (path / "criu.log").exists()


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_somebody_elses_is_refused(site: HelperSite, kind: str) -> None:
    site.scratch.mkdir(mode=0o711)
    path = site.scratch / "1"
    if kind == "link":
        path.symlink_to("/tmp")
    else:
        path.mkdir()
        os.chown(path, USER, USER)
        (path / "file").touch()
    other = Scratch(site.scratch, 1)
    if kind == "link":
        with pytest.raises(RequestRefused, match="not root's own"):
            other.path()
        assert Path("/tmp").is_dir()
    else:  # of an earlier release, whose session is gone
        assert other.path().stat().st_uid == 0


def test_it_goes_with_its_session_and_nothing_is_left_open(site: HelperSite) -> None:
    before = len(os.listdir("/proc/self/fd"))
    one = Scratch(site.scratch, 1)
    one.close()
    assert not site.scratch.exists(), "it was never asked for"
    for _ in range(2):
        path = one.path()
        assert one.path() == path
        (path / "log").touch()
        one.close()
        assert not path.exists()
    (site.scratch / "2").mkdir()
    scratch.sweep(site.scratch)
    assert list(site.scratch.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_system_of_the_users_is_made_once_and_goes_first(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr(scratch, "unshare_mounts", lambda: done.append("unshare"))
    monkeypatch.setattr(scratch, "mount_small", lambda *what: done.append(what))
    monkeypatch.setattr(scratch, "unmount", lambda path: done.append(path))
    one = Scratch(site.scratch, 1, 150)
    path = str(site.scratch / "1")
    for _ in range(2):
        one.of_user(USER, USER)
    one.close()
    assert done == ["unshare", (path, USER, USER, 150), path]
    one.path()
    one.close()
    assert len(done) == 3, "what is root's alone is not mounted"


def test_one_that_cannot_be_bounded_is_refused(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(scratch, "unshare_mounts", denied)
    one = Scratch(site.scratch, 1)
    with pytest.raises(
        RequestRefused, match="1: no file system of its own: Operation not permitted"
    ):
        one.of_user(USER, USER)
    one.close()


def test_another_session_is_waited_for_five_seconds(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    sleep = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda _: clock.append(clock.pop() + 1.0)
    )
    monkeypatch.setattr(scratch, "time", sleep)
    first = Scratch(site.scratch, 1)
    first.path()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RequestRefused, match="another session has it"):
        Scratch(site.scratch, 1).path()
    assert clock == [6.0], "the first look after it"
    assert len(os.listdir("/proc/self/fd")) == before
    first.close()
