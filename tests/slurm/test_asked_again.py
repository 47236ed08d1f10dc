"""Calls of slurmctld that are repeated, and calls that are not: a scontrol that answers as told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client import cli
from slurm_elastic.slurm.client.cli import SlurmCli

pytestmark = pytest.mark.usefixtures("guarded")


def scontrol(directory: Path, *answers: str) -> SlurmCli:
    """A client of one that fails with each of these in turn, then works; its calls are lines of ``calls``."""
    lines = "\n".join(f"{n}) echo '{text}' >&2; exit 1 ;;" for n, text in enumerate(answers, 1))
    script = directory / "scontrol"
    script.write_text(
        f'#!/bin/sh\necho "$*" >>{directory}/calls\n'
        f"case $(wc -l <{directory}/calls) in\n{lines}\nesac\nexit 0\n"
    )
    script.chmod(0o755)
    return SlurmCli(SlurmSettings(conf="/dev/null", bin_dir=str(directory)))


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text().splitlines()


UPDATES: dict[str, tuple[Callable[[SlurmCli], None], str]] = {
    "start_now": (lambda c: c.start_now(7), "update jobid=7 starttime=now"),
    "set_requeue": (lambda c: c.set_requeue(7, requeue=False), "update jobid=7 requeue=0"),
    "any_nodes": (lambda c: c.any_nodes(7), "update jobid=7 reqnodelist="),
    "release": (lambda c: c.release(7), "release 7"),
    "hold": (lambda c: c.hold(7), "uhold 7"),
    "suspend": (lambda c: c.suspend(7), "suspend 7"),
    "resume": (lambda c: c.resume(7), "resume 7"),
    "change_pending": (
        lambda c: c.change_pending([7, 8], begin_in=0.0), "update jobid=7,8 starttime=now",
    ),
    "set_partitions": (
        lambda c: c.set_partitions(7, ("batch", "long")), "update jobid=7 partition=batch,long",
    ),
}  # fmt: skip
"""The calls that may be repeated, and the command of each."""


@pytest.mark.parametrize("name", UPDATES)
def test_a_left_over_system_error_is_asked_again(tmp_path: Path, name: str) -> None:
    client = scontrol(
        tmp_path,
        "Interrupted system call for job 7",
        "Resource temporarily unavailable for job 7\nNo error for job 8",
    )
    update, command = UPDATES[name]
    update(client)
    assert calls(tmp_path) == [command] * 3


@pytest.mark.parametrize("name", UPDATES)
def test_slurms_own_refusal_counts_at_once(tmp_path: Path, name: str) -> None:
    client = scontrol(tmp_path, "Access/permission denied for job 7")
    with pytest.raises(SlurmError, match="permission denied"):
        UPDATES[name][0](client)
    assert len(calls(tmp_path)) == 1


def test_a_refusal_among_system_errors_counts_at_once(tmp_path: Path) -> None:
    text = "Interrupted system call for job 7\nInvalid partition name specified for job 8"
    client = scontrol(tmp_path, text)
    with pytest.raises(SlurmError, match="Invalid partition name"):
        client.change_pending([7, 8], partitions=("batch",))
    assert len(calls(tmp_path)) == 1


def test_what_would_happen_twice_is_not_repeated(tmp_path: Path) -> None:
    client = scontrol(tmp_path, "Interrupted system call for job 7")
    with pytest.raises(SlurmError, match="Interrupted"):
        client.requeue(7)
    assert calls(tmp_path) == ["requeue 7"]


def test_a_job_that_has_started_is_no_more_moved_in_silence(tmp_path: Path) -> None:
    """Uninstall has to hear of it: its node may be one that goes."""
    client = scontrol(tmp_path, *["Job is no longer pending execution for job 7"] * 2)
    client.change_pending([7], partitions=("batch",))
    with pytest.raises(SlurmError, match="no longer pending"):
        client.set_partitions(7, ("batch",))


def test_asking_again_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only its pauses move."""
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr(cli, "time", clock)
    monkeypatch.setattr(cli, "RETRY_FOR_S", 0.3)
    client = scontrol(tmp_path, *["Resource temporarily unavailable for job 7"] * 50)
    with pytest.raises(SlurmError, match="temporarily unavailable"):
        client.start_now(7)
    assert 1 < len(calls(tmp_path)) < 10
