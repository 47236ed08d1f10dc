"""The steps of a job on its node, by real processes that look like slurmstepd and srun."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import steps
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT

pytestmark = ROOT
JOB = 4_000_000_000
"""No job of a Slurm that runs here."""
Start = Callable[..., int]


@pytest.fixture
def site() -> Iterator[HelperSite]:
    """Its programs may be run by any user."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        for program in ("slurmstepd-wlm", "srun", "python3", "slurmstepd-of-a-user"):
            shutil.copy("/bin/sleep", place / program)
        (place / "slurmstepd").symlink_to("slurmstepd-wlm")
        stepd = str(place / "slurmstepd")
        yield HelperSite(cluster="t", directory=place, key=b"", reader=(0, 0), slurmstepd=stepd)


@pytest.fixture
def start(site: HelperSite) -> Iterator[Start]:
    """Start a program of the site's directory with that title; its number."""
    begun: list[subprocess.Popen[bytes]] = []

    def one(program: str, title: str, uid: int = 0) -> int:
        path = site.directory / program
        begun.append(subprocess.Popen([title, "600"], executable=path, user=uid))
        assert os.readlink(f"/proc/{begun[-1].pid}/exe") == str(path)
        return begun[-1].pid

    yield one
    for process in begun:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("title", "step"),
    [
        ("[4000000000.0]", "0"),
        ("[StepId=4000000000.17]", "17"),
        ("[4000000000.interactive]", "interactive"),
        ("[4000000000+0.3]", "3"),
        ("[4000000000.3+1]", "3+1"),
    ],
)
def test_a_job_with_a_step_on_its_node_is_not_saved(
    site: HelperSite, start: Start, title: str, step: str
) -> None:
    start("slurmstepd-wlm", f"slurmstepd: {title}")
    with pytest.raises(RequestRefused) as refused:
        steps.check(site, JOB, (), "criu")
    said = f"it runs a step (srun), which criu does not save: {JOB}.{step}"
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("program", "title", "uid"),
    [
        ("slurmstepd-wlm", "slurmstepd: [4000000000.batch]", 0),
        ("slurmstepd-wlm", "slurmstepd: [StepId=4000000000.batch]", 0),
        ("slurmstepd-wlm", "slurmstepd: [4000000000.extern]", 0),
        ("slurmstepd-wlm", "slurmstepd: [400000000.0]", 0),
        ("slurmstepd-wlm", "slurmstepd: [4000000001.0]", 0),
        ("slurmstepd-wlm", "slurmstepd", 0),
        ("slurmstepd-wlm", "slurmstepd: [4000000000.0]", 65534),
        ("slurmstepd-of-a-user", "slurmstepd: [4000000000.0]", 0),
    ],
)
def test_what_is_no_step_of_this_job_does_not_keep_it(
    site: HelperSite, start: Start, program: str, title: str, uid: int
) -> None:
    """Its script, another job's steps, and what a user has given that name."""
    pid = start(program, title, uid)
    steps.check(site, JOB, (pid,), "criu")


def test_an_srun_that_has_no_step_yet_keeps_its_job(site: HelperSite, start: Start) -> None:
    pid, other = start("srun", "anything", 65534), start("python3", "srun", 65534)
    steps.check(site, JOB, (other,), "criu")
    with pytest.raises(
        RequestRefused, match=r"a step \(srun\), which dmtcp does not save: one that begins"
    ):
        steps.check(site, JOB, (other, pid), "dmtcp")


def test_a_process_that_has_ended_is_no_step(site: HelperSite, start: Start) -> None:
    pid = start("srun", "srun")
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    steps.check(site, JOB, (pid, 4_194_305), "criu")
    assert list(steps.running(site, JOB)) == []
