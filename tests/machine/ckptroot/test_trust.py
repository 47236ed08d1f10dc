"""Root's configuration, directories and callers: what is believed, and what is not."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import caller as callers
from slurm_elastic.machine.ckptroot import job_state
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import JobStore, Meta
from slurm_elastic.machine.ckptroot.sweep import sweep

from .helpers import ROOT
from .squeue_stand_in import answer, write_squeue
from .test_files import nest

pytestmark = ROOT
NOBODY = 65534


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of root's below /tmp, whose parents are root's or sticky."""
    path = Path(tempfile.mkdtemp(prefix="se-trust-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def site(home: Path) -> HelperSite:
    (home / "shared").mkdir(mode=0o755)
    return HelperSite(
        cluster="t", directory=home / "shared", key=b"k" * 64, reader=(NOBODY, NOBODY)
    )


def meta(**changes: object) -> Meta:
    return replace(Meta(7, "7", NOBODY, NOBODY, "criu", []), **changes)


class TestJobDirectory:
    def test_is_roots_and_closed(self, site: HelperSite) -> None:
        store = JobStore(site, 7)
        store.open()
        store.claim(0)
        store.begin(meta(), b"#!/bin/sh\n")
        modes = {p.name: (p.stat().st_uid, p.stat().st_mode & 0o7777) for p in store.path.iterdir()}
        assert store.path.stat().st_mode & 0o7777 == 0o751
        assert modes["images"] == (0, 0o751)
        assert modes["keep"] == (0, 0o700)
        assert modes["meta.json"] == (0, 0o600)
        assert modes["script"] == (0, 0o550)  # by an ACL, whose mask this shows
        assert modes["request"] == (NOBODY, 0o600)
        image = store.new_image()
        assert (image.stat().st_uid, image.stat().st_mode & 0o7777) == (0, 0o2750)
        store.close()

    @pytest.mark.parametrize("squat", ["directory", "link", "file"])
    def test_that_somebody_else_made_is_refused(
        self, site: HelperSite, home: Path, squat: str
    ) -> None:
        site.jobs.mkdir()
        path = site.jobs / "7"
        match squat:
            case "directory":
                path.mkdir()
                os.chown(path, NOBODY, NOBODY)
            case "link":
                (home / "target").mkdir()
                path.symlink_to(home / "target")
            case _:
                path.touch()
        with pytest.raises(RequestRefused):
            JobStore(site, 7).open()

    def test_on_an_export_that_squashes_root_is_refused(
        self, site: HelperSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A directory that root makes there belongs to the user nobody."""
        made = os.mkdir

        def squashed(path: str | os.PathLike[str], mode: int = 0o777) -> None:
            made(path, mode)
            os.chown(path, NOBODY, NOBODY)

        monkeypatch.setattr(os, "mkdir", squashed)
        with pytest.raises(RequestRefused, match="no_root_squash"):
            JobStore(site, 7).open()
        assert not site.jobs.exists()

    def test_where_root_may_not_write_is_refused_with_the_likely_cause(
        self, site: HelperSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def squashed(path: str | os.PathLike[str], mode: int = 0o777) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(os, "mkdir", squashed)
        said = "root may not write there .Permission denied.: the export squashes root"
        with pytest.raises(RequestRefused, match=f"^{site.jobs}: {said}"):
            JobStore(site, 7).open()

    def test_has_one_driver(self, site: HelperSite) -> None:
        first = JobStore(site, 7)
        first.open()
        with pytest.raises(RequestRefused, match="another process"):
            JobStore(site, 7).open()
        first.close()
        second = JobStore(site, 7)
        second.open()
        second.close()

    def test_is_emptied_for_a_number_that_was_given_out_again(self, site: HelperSite) -> None:
        store = JobStore(site, 7)
        store.open()
        store.claim(0)
        store.begin(meta(), b"#!/bin/sh\n")
        (store.path / "images" / "1").mkdir()
        (store.path / "images" / "link").symlink_to("/etc")
        store.begin(meta(uid=1), b"#!/bin/sh\nother\n")
        assert store.images() == []
        assert os.listdir(store.path / "images") == []
        assert Path("/etc/passwd").exists()
        store.close()

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{",
            "[]",
            "7",
            '{"id": "1"}',
            '{"id": "1", "verb": "x", "within": "soon"}',
            "\0" * 99,
        ],
    )
    def test_takes_no_request_that_cannot_be_read(self, site: HelperSite, content: str) -> None:
        store = JobStore(site, 7)
        store.open()
        store.claim(0)
        store.begin(meta(), b"#!/bin/sh\n")
        (store.path / "request").write_text(content)
        assert store.request() is None
        store.close()

    def test_takes_no_request_of_others_and_no_link(self, site: HelperSite, home: Path) -> None:
        store = JobStore(site, 7)
        store.open()
        store.claim(0)
        store.begin(meta(), b"#!/bin/sh\n")
        path = store.path / "request"
        path.write_text('{"id": "1", "verb": "release"}')
        assert store.request() is not None
        os.chown(path, 1, 1)
        assert store.request() is None
        path.unlink()
        (home / "request").write_text('{"id": "1", "verb": "release"}')
        path.symlink_to(home / "request")
        assert store.request() is None
        store.close()


class TestCaller:
    """A made-up /proc: the chain of parents from us up to slurmstepd."""

    @pytest.fixture
    def user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SUDO_UID", str(NOBODY))
        monkeypatch.setenv("SUDO_GID", str(NOBODY))
        monkeypatch.setattr(os, "getppid", lambda: 30)

    @pytest.fixture
    def made(self, home: Path, site: HelperSite) -> tuple[HelperSite, Path]:
        for name in ("sudo", "slurmstepd", "bash"):
            (home / name).touch()
        site = replace(site, sudo=f"{home}/sudo", slurmstepd=f"{home}/slurmstepd")
        proc = home / "proc"
        process(proc, 30, f"{home}/sudo", 20, env=b"A=1\0B=x=y\0\0bad\0")
        process(proc, 20, f"{home}/slurmstepd", 1, title=b"slurmstepd: [123.batch]\0")
        (proc / "self").mkdir()
        return site, proc

    def test_is_the_job_of_the_step(self, made: tuple[HelperSite, Path], user: None) -> None:
        found = callers.identify(made[0], proc=made[1])
        assert (found.job, found.uid, found.user) == (123, NOBODY, "nobody")
        assert found.environment == {b"A": b"1", b"B": b"x=y"}

    def test_titles_of_a_users_own_are_not_believed(
        self, made: tuple[HelperSite, Path], user: None, home: Path
    ) -> None:
        """``ln -s /usr/bin/sudo slurmstepd; exec -a 'slurmstepd: [99.batch]' ./slurmstepd ...``"""
        title = b"slurmstepd: [99.batch]\0"
        process(made[1], 30, f"{home}/sudo", 25, title=title)
        process(made[1], 25, f"{home}/bash", 20, title=title)
        with pytest.raises(RequestRefused, match="batch script itself"):
            callers.identify(made[0], proc=made[1])

    def test_a_slurmstepd_that_is_not_root_is_not_believed(
        self, made: tuple[HelperSite, Path], user: None, home: Path
    ) -> None:
        title = b"slurmstepd: [99.batch]\0"
        process(made[1], 20, f"{home}/slurmstepd", 1, title=title, uids="1000 0 0 0")
        with pytest.raises(RequestRefused, match="batch script itself"):
            callers.identify(made[0], proc=made[1])

    @pytest.mark.parametrize(
        "title", [b"slurmstepd: [123.0]\0", b"slurmstepd: [123.extern]\0", b""]
    )
    def test_other_steps_are_refused(
        self, made: tuple[HelperSite, Path], user: None, home: Path, title: bytes
    ) -> None:
        process(made[1], 20, f"{home}/slurmstepd", 1, title=title)
        with pytest.raises(RequestRefused, match="batch step"):
            callers.identify(made[0], proc=made[1])

    def test_another_jobs_control_group_is_refused(
        self, made: tuple[HelperSite, Path], user: None
    ) -> None:
        (made[1] / "self" / "cgroup").write_text(
            "0::/system.slice/slurmstepd.scope/job_77/step_batch\n"
        )
        with pytest.raises(RequestRefused, match="job 77"):
            callers.identify(made[0], proc=made[1])

    def test_its_own_control_group_is_fine(self, made: tuple[HelperSite, Path], user: None) -> None:
        (made[1] / "self" / "cgroup").write_text("0::/x/job_123/step_batch/user/task_0\n")
        assert callers.identify(made[0], proc=made[1]).job == 123

    def test_without_sudo_nobody_is_believed(
        self, made: tuple[HelperSite, Path], user: None, home: Path
    ) -> None:
        process(made[1], 30, f"{home}/bash", 20)
        with pytest.raises(RequestRefused, match="sudo"):
            callers.identify(made[0], proc=made[1])

    @pytest.mark.parametrize("uid", ["0", "", "-1", "99999999", "65534x"])
    def test_strange_users_are_refused(
        self, made: tuple[HelperSite, Path], user: None, monkeypatch: pytest.MonkeyPatch, uid: str
    ) -> None:
        monkeypatch.setenv("SUDO_UID", uid)
        with pytest.raises(RequestRefused):
            callers.identify(made[0], proc=made[1])


def process(
    proc: Path, pid: int, exe: str, parent: int, *, title: bytes = b"", env: bytes = b"",
    uids: str = "0 0 0 0",
) -> None:  # fmt: skip
    directory = proc / str(pid)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "exe").unlink(missing_ok=True)
    (directory / "exe").symlink_to(exe)
    (directory / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nUid:\t{uids}\n")
    (directory / "cmdline").write_bytes(title)
    (directory / "environ").write_bytes(env)


class TestSweeper:
    @pytest.fixture
    def swept(self, site: HelperSite, home: Path) -> HelperSite:
        """A site whose squeue says what the file ``answer`` has."""
        script = home / "scontrol"
        script.write_text("#!/bin/sh\necho Slurmctld is UP\n")
        script.chmod(0o755)
        write_squeue(home / "squeue", f"{home}/answer")
        site = replace(site, scontrol=str(script))
        store = JobStore(site, 7)
        store.open()
        store.claim(0)
        store.begin(meta(), b"#!/bin/sh\n")
        store.close()
        return site

    def say(self, home: Path, state: str, uid: int = NOBODY) -> None:
        (home / "answer").write_text(answer(state, uid))

    @pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "REQUEUED", "SUSPENDED"])
    def test_leaves_what_may_go_on(self, swept: HelperSite, home: Path, state: str) -> None:
        self.say(home, state)
        assert sweep(swept) == []
        assert (swept.jobs / "7").exists()

    @pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "DEADLINE"])
    def test_removes_what_is_over(self, swept: HelperSite, home: Path, state: str) -> None:
        self.say(home, state)
        assert len(sweep(swept)) == 1
        assert not (swept.jobs / "7").exists()

    @pytest.mark.parametrize("state", ["TIMEOUT", "PREEMPTED"])
    def test_leaves_what_the_head_may_still_requeue(
        self, swept: HelperSite, home: Path, state: str
    ) -> None:
        self.say(home, state)
        assert sweep(swept) == []
        assert (swept.jobs / "7").exists()
        request = swept.jobs / "7" / "request"
        request.write_text('{"id": "1", "verb": "remove"}')
        assert sweep(swept) == [f"job 7: removed, Slurm says {state}"]

    def test_removes_what_slurm_forgot(self, swept: HelperSite, home: Path) -> None:
        (home / "answer").write_text("slurm_load_jobs error: Invalid job id specified\n")
        assert len(sweep(swept)) == 1

    def test_removes_nothing_on_doubt(self, swept: HelperSite, home: Path) -> None:
        (home / "answer").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
        assert sweep(swept) == []
        assert (swept.jobs / "7").exists()

    def test_leaves_what_is_driven(self, swept: HelperSite, home: Path) -> None:
        self.say(home, "CANCELLED")
        store = JobStore(swept, 7)
        store.open()
        assert sweep(swept) == []
        store.close()

    @pytest.mark.parametrize(
        "failure", [RecursionError(), MemoryError(), RequestRefused("too much")]
    )
    def test_whatever_one_job_brings_about_keeps_no_other(
        self, swept: HelperSite, home: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
    ) -> None:
        (swept.jobs / "6").mkdir()
        self.say(home, "COMPLETED")
        asks = job_state.ask

        def ask(site: HelperSite, job: int) -> job_state.JobState | None:
            if job == 6:
                raise failure
            return asks(site, job)

        monkeypatch.setattr(job_state, "ask", ask)
        stays, removed = sweep(swept)
        assert stays.startswith("job 6: stays: ")
        assert not stays.endswith(": ")
        assert removed.startswith("job 7: removed")

    def test_removes_directories_in_directories_however_deep(
        self, swept: HelperSite, home: Path
    ) -> None:
        """As a user can make them in his own image's directory while it is written."""
        nest(swept.jobs / "7" / "images" / "1.new", 1100)
        self.say(home, "COMPLETED")
        assert len(sweep(swept)) == 1
        assert list(swept.jobs.iterdir()) == []

    def test_leaves_strangers_alone(self, swept: HelperSite, home: Path) -> None:
        self.say(home, "COMPLETED")
        (swept.jobs / "blcr").mkdir()
        (swept.jobs / "8").symlink_to("/etc")
        sweep(swept)
        assert (swept.jobs / "blcr").exists()
        assert (swept.jobs / "8").is_symlink()


def test_the_bundle_runs_alone(home: Path) -> None:
    import subprocess

    from slurm_elastic.machine.ckptroot import bundle

    program = home / "ckpt-root"
    program.write_bytes(bundle.build(f"{home}/none.conf"))
    assert bundle.build() == bundle.build()
    environment = {"PYTHONPATH": "/nowhere", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["/usr/bin/python3", "-I", str(program), "sweep"], cwd="/", env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, "none.conf: No such file" in done.stderr) == (1, True)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr[:6]) == (2, "usage:")
