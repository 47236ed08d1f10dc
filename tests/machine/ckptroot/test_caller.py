"""A job as slurmctld tells of it, by a stand-in for scontrol."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import caller as callers
from slurm_elastic.machine.ckptroot.caller import Caller, JobState
from slurm_elastic.machine.ckptroot.site import Refused, Site

LINE = "JobId=7 UserId=ann(1001) JobState=RUNNING Restarts=2 BatchFlag=1"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(
        cluster="t", directory=tmp_path, key=b"", reader=(0, 0), scontrol=str(tmp_path / "scontrol")
    )


def answer(site: Site, script: str) -> None:
    Path(site.scontrol).write_text(f"#!/bin/sh\n{script}\n")
    Path(site.scontrol).chmod(0o755)


def test_slurmctld_is_asked_for_one_job_in_one_line(site: Site, tmp_path: Path) -> None:
    answer(
        site, f'echo "$*" "$PATH" "$LC_ALL" "$HOME" "$SLURM_CONF" >{tmp_path}/asked; echo "{LINE}"'
    )
    assert callers.ask(site, 7) == JobState(state="RUNNING", uid=1001, restarts=2)
    asked = (tmp_path / "asked").read_text()
    assert asked == "-o show job 7 /usr/sbin:/usr/bin:/sbin:/bin C.UTF-8  \n"
    object.__setattr__(site, "slurm_conf", "/etc/slurm.conf")
    callers.ask(site, 7)
    assert (tmp_path / "asked").read_text().endswith(" /etc/slurm.conf\n")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'Invalid job id specified' >&2; exit 1", JobState(state="GONE", uid=-1, restarts=0)),
        ("echo 'Invalid job id specified'; exit 1", JobState(state="GONE", uid=-1, restarts=0)),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None),
        ("echo 'Invalid job id specified' >&2", None),
        ("echo JobId=8 JobState=RUNNING BatchFlag=1", None),
        ("echo JobId=7 BatchFlag=1", JobState(state="", uid=-1, restarts=0)),
        ("echo JobId=7 Restarts= ArrayJobId= BatchFlag=1", JobState(state="", uid=-1, restarts=0)),
    ],
)
def test_its_word_is_taken_as_it_is(site: Site, script: str, found: JobState | None) -> None:
    answer(site, script)
    assert callers.ask(site, 7) == found


def test_without_a_scontrol_it_does_not_answer(site: Site) -> None:
    assert callers.ask(site, 7) is None


class Asked:
    """A scontrol that hangs, by a clock of its own; ``waits`` are those for its answer."""

    def __init__(self) -> None:
        self.now, self.waits, self.killed = 1000.0, list[float](), False

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.waits.append(timeout)
        self.now += timeout
        raise subprocess.TimeoutExpired("scontrol", timeout)

    def kill(self) -> None:
        self.killed = True


def test_one_that_hangs_is_ended_and_looked_after_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: Any = Asked()
    looks: list[float] = []
    monkeypatch.setattr(callers.time, "monotonic", lambda: asked.now)
    with pytest.raises(subprocess.TimeoutExpired):
        callers._answer(asked, 2.2, lambda: looks.append(asked.now))
    assert asked.waits == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.2])
    assert looks == [1000.5, 1001.0, 1001.5, 1002.0]
    assert asked.killed


def test_what_ends_the_question_ends_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = Asked()
    monkeypatch.setattr(callers.time, "monotonic", lambda: asked.now)

    def look() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        callers._answer(asked, 2.2, look)
    assert (asked.killed, asked.waits) == (True, [0.5])


def test_a_time_that_is_over_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = Asked()
    monkeypatch.setattr(callers.time, "monotonic", lambda: asked.now)
    with pytest.raises(subprocess.TimeoutExpired):
        callers._answer(asked, -1.0, lambda: None)
    assert asked.waits == [0.0]


# what the environment says of the job


@pytest.mark.parametrize(("text", "count"), [(b"2", 2), (b"0", 0), (b"", None), (b"-1", None)])
def test_restarts_are_those_of_the_environment(text: bytes, count: int | None) -> None:
    caller = Caller(7, 1, 1, "ann", (), {b"SLURM_RESTART_COUNT": text, b"SLURMD_NODENAME": b"n1"})
    assert (caller.restarts, caller.node) == (count, "n1")
    assert Caller(7, 1, 1, "ann", (), {}).node == ""


def test_a_job_is_named_as_its_users_do() -> None:
    assert JobState("RUNNING", 1, 0).label(12) == "12"
    assert JobState("RUNNING", 1, 0, array_job=9, array_task=0).label(12) == "9_0"


# who called sudo


@pytest.mark.parametrize(
    ("uid", "gid", "why"),
    [
        ("0", "65534", "jobs of root, or with its group, are not checkpointed"),
        ("65534", "0", "jobs of root, or with its group, are not checkpointed"),
        ("65534", "", "SUDO_GID is not set: start this by sudo"),
        ("4000000000", "1", "this host has no user with uid 4000000000"),
    ],
)
def test_nobody_is_served_as_root(
    monkeypatch: pytest.MonkeyPatch, uid: str, gid: str, why: str
) -> None:
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", gid)
    with pytest.raises(Refused, match=f"^{why}$"):
        callers.sudo_user()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc with our parent sudo as process 30."""
    monkeypatch.setattr(os, "getppid", lambda: 30)
    (tmp_path / "sudo").touch()
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / "exe").symlink_to(f"{tmp_path}/sudo (deleted)")
    (tmp_path / "30" / "environ").write_bytes(b"A=1\0=x\0B\0C=\0")
    return tmp_path


def test_the_environment_is_that_of_sudo_an_upgraded_one_too(proc: Path) -> None:
    assert callers.own_environment(f"{proc}/sudo", proc) == {b"A": b"1", b"C": b""}
    with pytest.raises(Refused, match=r"^not started by sudo$"):
        callers.own_environment(f"{proc}/bash", proc)
    (proc / "30" / "environ").unlink()
    with pytest.raises(Refused, match=f"the environment of {proc}/sudo, process 30: No such file"):
        callers.own_environment(f"{proc}/sudo", proc)


def test_a_parent_changed_while_it_was_asked_about_is_believed_nothing(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(cluster="t", directory=proc, key=b"", reader=(0, 0))
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setenv("SUDO_GID", "65534")
    monkeypatch.setattr(callers, "_job_of", lambda step, proc: 7)
    chains = iter([(30, 20), (30, 20), (30, 20), (31, 20), (30, 20)])
    monkeypatch.setattr(callers, "_chain", lambda site, proc, asks: next(chains))
    assert callers.identify(site, proc=proc).job == 7
    with pytest.raises(Refused, match="what started us ended meanwhile"):
        callers.identify(site, proc=proc)
    parents = iter([30, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(Refused, match="what started us ended meanwhile"):
        callers.identify(site, proc=proc)


def test_whose_script_asks_has_called_sudo_as_a_child(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sudo may be two processes, one of which waits for the other."""
    site = Site(
        cluster="t", directory=proc, key=b"", reader=(0, 0), sudo="/sudo", slurmstepd="/stepd"
    )
    programs = {30: "/sudo", 29: "/sudo", 25: "/bin/bash", 20: "/stepd", 1: "/sudo"}
    parents = {30: 29, 29: 25, 25: 20, 20: 1}
    monkeypatch.setattr(callers, "program_of", lambda pid, proc: programs.get(pid, ""))
    monkeypatch.setattr(callers, "_parent", lambda pid, proc: parents[pid])
    monkeypatch.setattr(callers, "_is_root", lambda pid, proc: True)
    assert callers._chain(site, proc, asks=True) == (25, 20)
    with pytest.raises(Refused, match="batch script itself"):
        callers._chain(site, proc, asks=False)
    parents[29] = 20
    assert callers._chain(site, proc, asks=False) == (29, 20)
    parents[29] = 1
    with pytest.raises(Refused, match="batch script itself"):
        callers._chain(site, proc, asks=False)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(Refused, match="not started by sudo"):
        callers._chain(site, proc, asks=False)


def test_what_is_not_to_be_read_has_no_parent_and_no_user(proc: Path) -> None:
    assert (callers._parent(99, proc), callers._is_root(99, proc)) == (0, False)
    assert callers.program_of(99, proc) == ""
