"""The commands of the root part: what they say, in which order, and what stays after a failure."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import bundle, log, starting
from slurm_elastic.machine.ckptroot import main as way_in
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.image_wait import RunEnded
from slurm_elastic.machine.ckptroot.job_state import JobState
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import Meta, Taken

from .helpers import ROOT

CALLER = Caller(job=7, uid=2000, gid=2001, user="alice", groups=(2001,), environment={})
RUNS = JobState(state="RUNNING", uid=2000, restarts=1)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The journal."""
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(log, "write", lambda *line: lines.append(line))
    return lines


def test_names_in_the_journal_are_one_line_that_can_be_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[object] = []
    monkeypatch.setattr(log.syslog, "syslog", lambda *line: said.append(line))
    monkeypatch.setattr(log.syslog, "openlog", lambda *how: said.append(how))
    log.begin()
    log.write(log.WARNING, "job 7: a\n\udcff é")
    opened, line = said
    assert opened == ("slurm-elastic-ckpt-root", log.syslog.LOG_PID, log.syslog.LOG_DAEMON)
    assert line == (log.WARNING, "job 7: a\\n\\udcff é")


def test_the_program_is_the_same_wherever_it_is_built() -> None:
    content = bundle.build("/x.conf")
    assert content.startswith(b"#!/usr/bin/python3 -I\n")
    with zipfile.ZipFile(BytesIO(content)) as archive:
        infos = archive.infolist()
        assert "main(config='/x.conf')" in archive.read("__main__.py").decode()
    assert {one.date_time for one in infos} == {(1980, 1, 1, 0, 0, 0)}
    modules = [one.filename for one in infos if one.filename.startswith("ckptroot/")]
    assert modules == sorted(modules)
    assert {one.rpartition(".")[2] for one in modules} == {"py"}


# the way in


@ROOT
def test_a_refusal_is_told_to_who_asks_and_to_the_journal(
    told: list[tuple[int, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = str(tmp_path / "none.conf")
    for words, why in (
        (["ready", "blcr"], "unknown method 'blcr'"),
        (["sweep"], f"{config}: No such file or directory"),
    ):
        assert way_in.main(words, config) == 1
        assert capsys.readouterr().err == f"slurm-elastic: {why}\n"
        assert told.pop() == (log.WARNING, f"refused: {why}")


@pytest.mark.usefixtures("told")
def test_nobody_but_root_gets_any_further(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(way_in.os, "geteuid", lambda: 1)
    assert way_in.main([], "/none") == 1
    assert capsys.readouterr().err == "slurm-elastic: this is for root: start it by sudo\n"


@ROOT
def test_a_sweep_says_a_line_for_each_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(way_in, "read", lambda config: config)
    monkeypatch.setattr(way_in, "sweep", lambda site: ["job 6: removed", "job 7: stays"])
    assert way_in.main(["sweep"], "/etc/x.conf") == 0
    assert capsys.readouterr().out == "job 6: removed\njob 7: stays\n"


@ROOT
@pytest.mark.usefixtures("told")
def test_a_ready_is_asked_of_the_method_the_caller_and_slurmctld(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0))
    monkeypatch.setattr(starting, "read", lambda config, checks_directory: site)
    method = SimpleNamespace(available=lambda site: asked.append("available"))
    monkeypatch.setitem(starting.METHODS, "criu", method)
    identify = lambda site, asks: asked.append(asks) or CALLER  # noqa: E731
    monkeypatch.setattr(starting.callers, "identify", identify)
    monkeypatch.setattr(starting.job_state, "ask", lambda *_: RUNS)
    assert way_in.main(["ready", "criu"], "/x") == 0
    assert asked == ["available", True]
    other = JobState(state="RUNNING", uid=1, restarts=0)
    monkeypatch.setattr(starting.job_state, "ask", lambda *_: other)
    assert way_in.main(["ready", "criu"], "/x") == 1
    said = "slurm-elastic: job 7 is of uid 1, sudo was called by 2000\n"
    assert capsys.readouterr().err == said


@ROOT
@pytest.mark.usefixtures("told")
def test_a_restart_is_ready_though_its_file_server_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for the server. Without that it would start over at once, without saves."""
    site = HelperSite(cluster="t", directory=tmp_path / "away", key=b"", reader=(0, 0))
    callers = [RESTARTED, CALLER]
    monkeypatch.setattr(starting, "allowed", lambda *_, asks: (site, callers.pop(0)))
    assert way_in.main(["ready", "criu"], "/x") == 0
    assert way_in.main(["ready", "criu"], "/x") == 1
    assert "away: No such file or directory" in capsys.readouterr().err


class BecameError(Exception):
    """Instead of the job's script."""


@ROOT
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (RunEnded("cancelled"), "a job's run is over before it began: cancelled"),
        (RequestRefused("no room"), "a job runs without checkpoints: no room"),
        (KeyError(), "a job runs without checkpoints: KeyError"),
    ],
)
def test_how_a_run_began_is_told(
    monkeypatch: pytest.MonkeyPatch,
    told: list[tuple[int, str]],
    failure: Exception,
    said: str,
) -> None:
    done: list[object] = []

    def fails(*_: object) -> tuple[HelperSite, Caller]:
        raise failure

    def becomes(payload: object) -> None:
        raise BecameError

    monkeypatch.setattr(starting, "allowed", fails)
    monkeypatch.setattr(starting, "plain", lambda *_: "plain")
    monkeypatch.setattr(way_in, "become", becomes)
    monkeypatch.setattr(way_in, "block", lambda: done.append("block"))
    monkeypatch.setattr(way_in, "finish", lambda status: done.append(status) or 143)
    monkeypatch.setattr(way_in.os, "umask", lambda mask: done.append(mask))
    if isinstance(failure, RunEnded):
        assert way_in.main(["run", "criu", "022", "script"], "/x") == 143
        assert done == [0o027, "block", 15]
    else:
        with pytest.raises(BecameError):
            way_in.main(["run", "criu", "022", "script"], "/x")
        assert done == [0o027, "block"]
    level = log.NOTICE if isinstance(failure, RunEnded) else log.WARNING
    assert told == [(level, said)]


# taking the job's directory


class Bed:
    """``answers`` of slurmctld and ``taken``, how often the directory is another run's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.answers: list[JobState | None] = [RUNS]
        self.taken = 0
        self.images: list[Path] = []
        self.waits: list[str] = []
        self.site = HelperSite(cluster="t", directory=tmp_path / "d", key=b"", reader=(0, 0))
        self.site.jobs.mkdir(parents=True)
        self.server: list[Callable[[], object]] = []
        self.claimed: list[int] = []
        self.store: Any = SimpleNamespace(
            open=self.open, images=lambda: self.images, claim=self.claimed.append
        )
        self.patience: Any = SimpleNamespace(
            patient=None,
            waited=False,
            retry_after_pause=self.again,
            raise_if_cancelled=lambda: None,
        )
        monkeypatch.setattr(starting.job_state, "ask", lambda *_, **__: self.answers.pop(0))
        if os.geteuid() != 0:  # whose directories nobody trusts
            monkeypatch.setattr(starting, "trust", lambda *_, **__: None)

    def open(self) -> None:
        if self.taken:
            self.taken -= 1
            raise Taken("driven by another")

    def again(self, why: str, *, is_endless: bool = False) -> bool:
        """``server``: what its file server does in the next waits; the last of them is the end."""
        self.waits.append(why)
        self.patience.waited = self.patience.waited or bool(self.patience.patient)
        if self.server:
            self.server.pop(0)()
            return bool(self.server)
        return bool(self.patience.patient)

    def take(self, caller: Caller = CALLER) -> JobState:
        return starting.take(self.site, caller, self.store, self.patience)


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bed:
    return Bed(monkeypatch, tmp_path)


RESTARTED = Caller(7, 2000, 2001, "alice", (2001,), {b"SLURM_RESTART_COUNT": b"1"})


def test_a_restart_waits_for_slurmctld_and_for_the_directory_and_asks_again(bed: Bed) -> None:
    bed.answers, bed.taken = [None, None, RUNS, RUNS], 2
    assert bed.take(RESTARTED) == RUNS
    assert bed.waits == ["slurmctld does not answer"] * 2 + ["driven by another"] * 2
    assert bed.answers == [], "what it said before the wait is old"


def test_who_did_not_wait_asks_once(bed: Bed) -> None:
    assert bed.take() == RUNS
    assert bed.answers == []
    assert bed.claimed == [1], "the directory is this run's before anything in it is changed"
    assert bed.patience.patient, "it is a restart"


@pytest.mark.parametrize("what", ["slurmctld", "directory"])
def test_a_first_run_waits_for_neither(bed: Bed, what: str) -> None:
    bed.taken = 1
    bed.answers = [None if what == "slurmctld" else JobState("RUNNING", 2000, 0)]
    with pytest.raises(
        RequestRefused, match="does not answer" if what == "slurmctld" else "by another"
    ):
        bed.take()


@ROOT
def test_a_restart_waits_for_its_file_server(bed: Bed) -> None:
    away = bed.site.directory.with_name("away")
    bed.site.directory.rename(away)

    def mount_point() -> None:
        bed.site.directory.mkdir()

    def mount() -> None:
        bed.site.directory.rmdir()
        away.rename(bed.site.directory)

    bed.answers, bed.server = [RUNS, RUNS], [lambda: None, mount_point, mount, lambda: None]
    assert bed.take(RESTARTED) == RUNS
    nothing = "No such file or directory"
    waits_for = (bed.site.directory, bed.site.directory, bed.site.jobs)
    assert bed.waits == [f"{path}: {nothing}" for path in waits_for]
    assert bed.answers == [], "what it said before the wait is old"


@ROOT
@pytest.mark.parametrize("caller", ["first", "restarted"])
def test_without_its_file_server_nothing_is_saved(bed: Bed, caller: str) -> None:
    bed.site.jobs.rmdir()
    bed.site.directory.rmdir()
    bed.server = [lambda: None]
    with pytest.raises(RequestRefused, match="is not there"):
        bed.take(RESTARTED if caller == "restarted" else CALLER)


@ROOT
def test_the_first_job_of_a_cluster_is_saved_though_it_was_restarted(bed: Bed) -> None:
    bed.site.jobs.rmdir()
    bed.server = [lambda: None]
    bed.answers = [RUNS, RUNS]
    bed.patience.waited = False
    assert bed.take(RESTARTED) == RUNS


def test_a_run_that_slurm_has_given_up_while_it_waited_is_none(bed: Bed) -> None:
    gone = JobState(state="RUNNING", uid=2000, restarts=2)
    bed.answers = [None, gone]
    with pytest.raises(RunEnded, match="Slurm says RUNNING, restarted 2 times"):
        bed.take(RESTARTED)
    bed.answers, bed.images = [None, gone, gone], [Path("1")]
    bed.patience.waited = False
    assert bed.take() == gone, "how often it was restarted was not known"


def test_another_users_job_is_refused(bed: Bed) -> None:
    bed.answers = [JobState("RUNNING", 1, 1)]
    with pytest.raises(RequestRefused, match="is of uid 1"):
        bed.take()


# how the job began


META = Meta(7, "7", 2000, 2001, "criu", ["/out"], "digest")


@pytest.mark.parametrize(
    ("restarts", "meta", "anew", "forgets"),
    [
        (1, META, False, False),
        (0, META, False, False),
        (1, None, True, False),
        (1, Meta(7, "7", 2000, 2001, "dmtcp", [], "digest"), True, False),
        (1, Meta(7, "7", 2000, 9, "criu", [], "digest"), True, False),
        (1, replace(META, script="of another job"), True, False),
        (0, Meta(7, "7", 9, 2001, "criu", []), True, True),
    ],
)
def test_an_earlier_jobs_directory_is_no_run_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
    bed: Bed,
    restarts: int,
    meta: Meta | None,
    anew: bool,
    forgets: bool,
) -> None:
    """Another user's quota no longer counts the directory that was their job's."""
    begun: list[Meta] = []
    forgot: list[int] = []
    bed.store.meta, bed.store.path = lambda: meta, Path("/x")
    bed.store.begin = lambda meta, script: begun.append(meta)

    def quota(site: HelperSite, job: int, uid: int, path: Path) -> SimpleNamespace:
        return SimpleNamespace(forget=lambda: forgot.append(uid))

    monkeypatch.setattr(starting, "JobQuota", quota)
    monkeypatch.setattr(starting, "read_script", lambda caller, path: (b"", "digest"))
    monkeypatch.setattr(starting.outputs, "of_step", lambda: ["/out"])
    state = JobState("RUNNING", 2000, restarts)
    found = starting.meta_of(bed.site, CALLER, bed.store, state, "criu", "script")
    assert found == META
    assert begun == ([META] if anew else [])
    assert forgot == ([9] if forgets else [])


def test_what_fails_as_it_begins_is_abandoned_and_lets_the_directory_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    begun: list[tuple[str, Payload]] = []

    def fails(_: object) -> None:
        raise RequestRefused("criu restore: exit 1")

    close = lambda: done.append("close")  # noqa: E731
    store = SimpleNamespace(close=close, path=tmp_path / "t" / "7")
    session = SimpleNamespace(begin=fails, abandon=lambda _: done.append("abandon"))
    wait = SimpleNamespace(finish=lambda: done.append("rewarded"))
    for name, made in (("JobStore", store), ("Session", session), ("ImageWait", wait), ("Run", None), ("Relay", None)):  # fmt: skip
        monkeypatch.setattr(starting, name, lambda *_, made=made, **__: made)
    for name, said in (("take", RUNS), ("meta_of", META)):
        monkeypatch.setattr(starting, name, lambda *_, said=said: said)
    for name in ("Criu", "Dmtcp"):
        module = starting.METHODS[name.lower()]
        monkeypatch.setattr(module, name, lambda *given, name=name: begun.append((name, given[2])))
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0))
    for method in ("criu", "dmtcp"):
        with pytest.raises(RequestRefused, match="exit 1"):
            starting.begin(site, CALLER, 0o27, method, ["/spool/script", "a", "b c"])
    assert done == ["rewarded", "abandon", "close"] * 2
    (criu, made), (dmtcp, _) = begun
    assert (criu, dmtcp) == ("Criu", "Dmtcp")
    assert made.argv == (f"{tmp_path}/t/7/script", "a", "b c")
    assert (made.umask, made.uid, made.gid, made.groups) == (0o27, 2000, 2001, (2001,))
    assert made.directory == os.getcwd()


def test_a_run_ends_with_its_payloads_status_and_lets_the_directory_go() -> None:
    done: list[object] = []
    store: Any = SimpleNamespace(close=lambda: done.append("close"))
    session: Any = SimpleNamespace(run=lambda: 256, leave=done.append)
    assert starting.drive(store, session) == 256
    assert done == [256, "close"]
