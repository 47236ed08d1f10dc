"""Reading a busy slurmctld: a late answer is asked for again, a refusal is not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from slept import Slept

from slurm_elastic.base.errors import SandboxError, SlurmError
from slurm_elastic.sandbox import shell
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.shell import MAX_PAUSE_S, Shell

LATE = (
    SandboxError("scontrol: no answer in 60 s"),
    SandboxError(
        "scontrol: exit 1: slurm_load_jobs error: Socket timed out on send/recv operation"
    ),
    SlurmError(("squeue",), None, ""),
    SandboxError(
        "scontrol: exit 1: slurm_load_jobs error: Zero Bytes were transmitted or received"
    ),
)


@pytest.fixture
def site(tmp_path: Path) -> Shell:
    return Shell(Layout(dir=tmp_path))


def answering(*errors: Exception) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A ``run`` that fails with each of these first."""
    left = list(errors)

    def run(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        if left:
            raise left.pop(0)
        return subprocess.CompletedProcess(command, 0, "JobId=7 JobState=RUNNING\n", "")

    return run


@pytest.mark.parametrize("late", LATE, ids=str)
def test_a_late_answer_is_asked_for_again(
    site: Shell, late: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "run", answering(late))
    assert site.job(7)["JobState"] == "RUNNING"


def test_not_for_ever(site: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "BUSY_S", 0.0)
    monkeypatch.setattr(site, "run", answering(LATE[0]))
    with pytest.raises(SandboxError, match="no answer in 60 s"):
        site.job(7)


def test_a_refusal_is_told_at_once(site: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = SandboxError("scontrol: exit 1: slurm_load_jobs error: Invalid job id specified")
    monkeypatch.setattr(site, "run", answering(refusal))
    with pytest.raises(SandboxError, match="Invalid job id"):
        site.job(7)


def test_it_looks_more_rarely_the_longer_it_waits_and_says_what_it_waited_for(
    site: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Slept()
    pauses = clock.pauses
    monkeypatch.setattr(shell, "time", clock)
    assert site.wait_for(lambda: clock.now >= 60.0 and "done", 120.0, "the end") == "done"
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.2, MAX_PAUSE_S)
    assert clock.now < 60.0 + MAX_PAUSE_S
    pauses.clear()
    assert site.wait_for(lambda: len(pauses) == 5, 120.0, "five looks", 3.0)
    assert set(pauses) == {3.0}, "never sooner than it was asked to"
    with pytest.raises(SandboxError, match="not within 5 s: what never comes"):
        site.wait_for(lambda: False, 5.0, "what never comes")
