"""Job directories that are over: with whose word, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import sweep as sweeps
from slurm_elastic.machine.ckptroot.job_state import JobState
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import HeadRequest, JobStore, Meta

from .helpers import ROOT

pytestmark = ROOT


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HelperSite:
    """With the directories of jobs 7 and 8; what slurmctld says of all jobs is COMPLETED."""
    made = HelperSite(
        cluster="t", directory=tmp_path, key=b"", reader=(0, 0), scontrol=f"{tmp_path}/s"
    )
    for job in (8, 7):
        (made.jobs / str(job)).mkdir(parents=True)
    (tmp_path / "s").write_text("#!/bin/sh\necho Slurmctld at x is UP\necho 'NEXT_JOB_ID = 9'\n")
    (tmp_path / "s").chmod(0o755)
    monkeypatch.setattr(sweeps, "trust", lambda path, directory: None)
    monkeypatch.setattr(
        sweeps.job_state, "ask", lambda site, job: JobState("COMPLETED", uid=2000, restarts=0)
    )
    monkeypatch.setattr(sweeps.JobStore, "open", lambda store: None)
    return made


def test_each_job_is_said_in_the_order_of_names(site: HelperSite) -> None:
    assert sweeps.sweep(site) == [f"job {job}: removed, Slurm says COMPLETED" for job in (7, 8)]
    assert sweeps.sweep(site) == []


def test_the_rest_of_what_was_being_deleted_goes(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = site.jobs / ".removed-5-a1b2c3"
    (rest / "images" / "1").mkdir(parents=True)
    assert sweeps.sweep(site)[0] == "job 5: the rest of it removed"
    assert not rest.exists()

    def gone(path: Path) -> None:
        raise FileNotFoundError(path)

    rest.mkdir()
    monkeypatch.setattr(sweeps.files, "remove", gone)
    assert not any("job 5" in line for line in sweeps.sweep(site)), "its session has done it"


@pytest.mark.parametrize(
    "script", ["echo Slurmctld is DOWN", "echo Slurmctld is UP; exit 1", "echo UP"]
)
def test_nothing_goes_while_slurmctld_is_away(site: HelperSite, script: str) -> None:
    Path(site.scontrol).write_text(f"#!/bin/sh\n{script}\n")
    assert sweeps.sweep(site) == []
    Path(site.scontrol).unlink()
    assert sweeps.sweep(site) == []
    assert (site.jobs / "7").exists()


def test_a_slurmctld_is_asked_by_the_configuration_of_the_site(
    site: HelperSite, tmp_path: Path
) -> None:
    Path(site.scontrol).write_text(f'#!/bin/sh\necho "$1 $SLURM_CONF" >{tmp_path}/asked\n')
    object.__setattr__(site, "slurm_conf", "/etc/slurm.conf")
    sweeps.sweep(site)
    assert (tmp_path / "asked").read_text() == "ping /etc/slurm.conf\n"


def test_without_any_job_nobody_is_asked(tmp_path: Path) -> None:
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0), scontrol="/none")
    assert sweeps.sweep(site) == []


@pytest.mark.parametrize("failure", [OSError("busy"), RequestRefused("busy")])
def test_quotas_that_cannot_be_put_right_are_said_last(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fails(site: HelperSite) -> None:
        raise failure

    monkeypatch.setattr(sweeps, "tidy", fails)
    assert sweeps.sweep(site)[-1] == "quotas stay as they are: busy"


@pytest.mark.parametrize(
    ("state", "meta", "request_", "goes"),
    [
        ("COMPLETED", 2000, None, True),
        ("COMPLETED", 1, None, False),
        ("GONE", 1, None, True),
        ("COMPLETED", None, None, True),
        ("COMPLETED", 1, HeadRequest("1", "remove"), True),
        ("COMPLETED", 1, HeadRequest("1", "release"), False),
    ],
)
def test_a_number_that_was_given_out_again_is_another_jobs(
    site: HelperSite,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    meta: int | None,
    request_: HeadRequest | None,
    goes: bool,
) -> None:
    found = None if meta is None else Meta(7, "7", meta, 1, "criu", [])
    monkeypatch.setattr(JobStore, "meta", lambda store: found)
    monkeypatch.setattr(JobStore, "request", lambda store: request_)
    monkeypatch.setattr(sweeps.job_state, "ask", lambda site, job: JobState(state, 2000, 0))
    assert any("job 7" in line for line in sweeps.sweep(site)) is goes
    assert (site.jobs / "7").exists() is not goes


@pytest.mark.parametrize(("next_number", "goes"), [("9", True), ("7", False), ("", False)])
def test_a_slurmctld_that_never_gave_a_number_has_lost_its_state(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch, next_number: str, goes: bool
) -> None:
    """Its jobs come back with that state. Until then they are as unknown as jobs of long ago."""
    answers = f"Slurmctld at x is UP\nNEXT_JOB_ID             = {next_number}"
    Path(site.scontrol).write_text(f"#!/bin/sh\necho '{answers}'\n")
    monkeypatch.setattr(sweeps.job_state, "ask", lambda site, job: JobState("GONE", -1, 0))
    lines = sweeps.sweep(site)
    assert (site.jobs / "7").exists() is not goes
    assert any("may have lost its state" in line for line in lines) is not goes
    monkeypatch.setattr(JobStore, "request", lambda store: HeadRequest("1", "remove"))
    sweeps.sweep(site)
    assert not (site.jobs / "7").exists(), "the head has waited for longer"


def test_whose_job_it_was_need_not_be_known_now(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(store: JobStore) -> Any:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(JobStore, "meta", stale)
    assert sweeps.sweep(site)[0] == "job 7: removed, Slurm says COMPLETED"


def test_a_directory_is_let_go_also_where_it_cannot_be_removed(
    site: HelperSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def busy(store: JobStore) -> None:
        raise OSError(16, "busy")

    monkeypatch.setattr(JobStore, "remove", busy)
    monkeypatch.setattr(JobStore, "close", lambda store: done.append("close"))
    assert sweeps.sweep(site)[0] == "job 7: stays: [Errno 16] busy"
    assert done == ["close", "close"]
