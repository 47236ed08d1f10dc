"""The way in: whatever keeps a job from being driven, its script runs as if nobody had tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_elastic.machine.ckptroot import files, image_wait, kernel, starting
from slurm_elastic.machine.ckptroot import main as way_in
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.image_wait import ImageWait
from slurm_elastic.machine.ckptroot.job_state import JobState
from slurm_elastic.machine.ckptroot.session import Session
from slurm_elastic.machine.ckptroot.site import HelperSite
from slurm_elastic.machine.ckptroot.store import JobStore, Meta, Taken

from .helpers import ROOT, aside

pytestmark = ROOT
USER = 65534

# Its parent stands in for sudo: the program that the configuration names, with the job's environment.
SUDO = """
import os, subprocess, sys
environment = {"SUDO_UID": "65534", "SUDO_GID": "65534", "PATH": "/usr/sbin:/usr/bin", "HOME": "/root",
               "PYTHONPATH": sys.argv[1]}
sys.exit(subprocess.run([sys.executable, "-c", *sys.argv[2:]], env=environment).returncode)
"""
RUN = """
import os, sys
from slurm_elastic.machine.ckptroot import main, starting
from slurm_elastic.machine.ckptroot.caller import Caller
config, how, script = sys.argv[1:]
def identify(site, asks=False):
    return Caller(job=7, uid=65534, gid=65534, user="nobody", groups=(65534,), environment={})
def fails(*arguments):
    raise KeyError("nobody has thought of that")
if how != "no step of Slurm":
    starting.callers.identify = identify
if how == "the directory is gone":
    os.rmdir(os.getcwd())
if how == "a surprise":
    starting.begin = fails
if how == "not by sudo":
    starting.HelperSite.sudo = "/usr/bin/true"
sys.exit(main.main(["run", "criu", "027", script, "a", "b c"], config=config))
"""
SCRIPT = """#!/bin/bash
echo "$(id -u):$(id -g) $# $2 $(umask) HOME=$HOME INPUT=$INPUT PLAIN=$SLURM_ELASTIC_PLAIN"
exit 5
"""


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="se-way-in-", dir="/tmp"))
    path.chmod(0o755)
    (path / "shared").mkdir(mode=0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def site(home: Path) -> HelperSite:
    return HelperSite(cluster="t", directory=home / "shared", key=b"k" * 64, reader=(USER, USER))


@pytest.fixture
def config(home: Path) -> Path:
    (home / "key").touch(mode=0o600)
    (home / "key").write_bytes(b"k" * 64)
    config = home / "ckpt-root.conf"
    config.write_text(
        f"directory = {home}/shared\ncluster = t\nkey = {home}/key\nslurm_user = nobody\n"
        f"criu = /bin/true\nscontrol = /bin/false\nsudo = {os.path.realpath(sys.executable)}\n"
    )
    return config


def run(home: Path, config: Path, how: str) -> subprocess.CompletedProcess[str]:
    """``run`` for a job that is in a directory of its own, by a stand-in for sudo."""
    script = home / "script"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    (home / "work").mkdir(mode=0o777)
    words = (os.pathsep.join(sys.path), RUN, str(config), how, str(script))
    return subprocess.run(
        [sys.executable, "-c", SUDO, *words], cwd=home / "work", capture_output=True, text=True,
        env={"HOME": "/home/alice", "INPUT": "/data/x", "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "how", ["slurmctld is silent", "no step of Slurm", "the directory is gone", "a surprise"]
)
def test_a_job_that_cannot_be_driven_runs_as_the_user_with_its_own_environment(
    home: Path, config: Path, how: str
) -> None:
    done = run(home, config, how)
    wanted = f"{USER}:{USER} 2 b c 0027 HOME=/home/alice INPUT=/data/x PLAIN=1\n"
    assert (done.stdout, done.returncode) == (wanted, 5), done.stderr


def test_a_job_whose_environment_cannot_be_known_does_not_run_with_another(
    home: Path, config: Path
) -> None:
    config.write_text(config.read_text() + "nonsense = 1\n")
    done = run(home, config, "not by sudo")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == "slurm-elastic: not started by sudo\n"


def test_what_fails_in_a_job_that_has_started_does_not_start_it_again(site: HelperSite) -> None:
    """Its processes end with ours; two of them at a time would spoil each other's files."""
    store = JobStore(site, 7)
    store.open()

    def fails() -> int:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        starting.drive(store, cast("Session", SimpleNamespace(run=fails)))
    store.open()
    store.close()


class TestReady:
    """Whether the launcher hands the job over where slurmctld does not answer."""

    @pytest.fixture(autouse=True)
    def identified(self, monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
        environment: dict[bytes, bytes] = {}
        caller = Caller(7, USER, USER, "nobody", (USER,), environment)
        monkeypatch.setattr(starting.callers, "identify", lambda *_, **__: caller)
        return environment

    def test_not_a_first_run(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert way_in.main(["ready", "criu"], str(config)) == 1
        assert "slurmctld does not answer" in capsys.readouterr().err

    def test_a_restart(self, config: Path, identified: dict[bytes, bytes]) -> None:
        identified[b"SLURM_RESTART_COUNT"] = b"1"
        assert way_in.main(["ready", "criu"], str(config)) == 0

    def test_a_job_with_images(self, config: Path, site: HelperSite) -> None:
        begun(site)
        assert way_in.main(["ready", "criu"], str(config)) == 0


def begun(site: HelperSite) -> JobStore:
    """The directory of a job with one image, which nobody drives."""
    store = JobStore(site, 7)
    store.open()
    store.begin(Meta(7, "7", USER, USER, "criu", []), b"#!/bin/sh\n")
    (store.path / "images" / "1").mkdir()
    store.close()
    return store


class TestTheLock:
    def test_of_another_run_is_never_overridden(self, site: HelperSite) -> None:
        first = begun(site)
        first.open()
        patience = ImageWait(7, limit=1.5)
        patience.patient = True
        tries = 0
        while True:
            with pytest.raises(Taken, match="driven by another process"):
                JobStore(site, 7).open()
            tries += 1
            if not patience.retry_after_pause("it is taken"):
                break
        assert tries > 1
        assert patience.waited
        assert (first.path / "images" / "1").exists()
        first.close()

    def test_is_not_waited_for_in_a_first_run(self) -> None:
        patience = ImageWait(7)
        assert not patience.retry_after_pause("it is taken")
        assert not patience.waited

    def test_of_a_directory_that_was_just_removed_means_nothing(
        self, site: HelperSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its last run, or the sweeper, was a moment faster."""
        last, new = begun(site), JobStore(site, 7)
        takes = JobStore._take

        def late(store: JobStore, lock: int) -> None:
            last.remove()
            takes(store, lock)

        monkeypatch.setattr(JobStore, "_take", late)
        with pytest.raises(Taken):
            new.open()
        monkeypatch.setattr(JobStore, "_take", takes)
        new.open()
        new.close()


@pytest.mark.parametrize("has_image", [True, False])
def test_a_job_with_images_waits_until_its_directory_is_no_longer_read_only(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch, has_image: bool
) -> None:
    """It must not start over. Without images it does, after five minutes."""
    store = begun(site)
    if not has_image:
        (store.path / "images" / "1").rmdir()
    state = JobState(state="RUNNING", uid=USER, restarts=1)
    monkeypatch.setattr(starting.job_state, "ask", lambda *_, **__: state)
    caller = Caller(7, USER, USER, "nobody", (USER,), {b"SLURM_RESTART_COUNT": b"1"})
    shared, clock = str(site.directory), [0.0]

    def pause(_: object, seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 1000:
            mount("-o", "remount,bind,rw", shared)

    def restart() -> str:
        kernel.unshare_mounts()
        mount("--bind", shared, shared)
        mount("-o", "remount,bind,ro", shared)
        monkeypatch.setattr(image_wait.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(image_wait.signal, "sigtimedwait", pause)
        try:
            starting.take(site, caller, JobStore(site, 7), ImageWait(7))
        except OSError as error:
            return f"{os.strerror(error.errno or 0)} after {clock[0]:.0f} s"
        return f"has it: {clock[0] > 1000}"

    expected = "has it: True" if has_image else "Read-only file system after 300 s"
    assert aside(restart) == expected


def test_images_that_cannot_be_listed_are_not_taken_for_none_before_the_lock_either(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begun(site)

    def stale(*_: object) -> list[str]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(store, "images", stale)
    assert starting._has_images(store)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def test_images_stay_where_it_cannot_be_read_whose_they_are(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begun(site)

    def fails(path: Path, *_: int, **__: object) -> bytes:
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(files, "read", fails)
    with pytest.raises(OSError, match="Stale"):
        store.meta()
    monkeypatch.undo()
    assert asdict(cast("Any", store.meta())) == json.loads((store.path / "meta.json").read_text())
