"""Users of a real cluster with PrivateData: what they see of it, and what they cannot touch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_elastic.machine.local import local_processes
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import SLURMCTLD
from tests.e2e.world import ELASTIC, running_nodes

pytestmark = pytest.mark.e2e
PLAIN = (sys.executable, "-P", "-m", "slurm_elastic.cli.main")
OPENS = "import os, sys; [os.open(p, os.O_RDONLY) for p in sys.argv[1:]]"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(slurm_conf=("PrivateData=jobs",), static_nodes=0)


def as_user(
    site: Sandbox, *words: str, program: Sequence[str] = ELASTIC
) -> subprocess.CompletedProcess[str]:
    return site.run([*program, *words], user="nobody", check=False)


def test_a_user_sees_own_jobs_alone_and_the_machines_and_opens_no_file(site: Sandbox) -> None:
    own = site.submit("sleep 600", "--partition=onprem")
    other = site.submit("sleep 600", "--partition=onprem", user="root")
    nodes = running_nodes(site, [own, other])
    done = as_user(site, "explain", str(own))
    assert done.returncode == 0, done.stderr
    assert nodes[own][0] in done.stdout
    refused = as_user(site, "explain", str(other))
    assert refused.returncode == 1
    assert f"job {other} is not one of your jobs" in refused.stderr
    view = json.loads(as_user(site, "status", "--json").stdout)
    assert (view["daemon"]["alive"], view["slurm_error"], view["private"]) == (True, None, ["jobs"])
    assert {job["id"] for one in view["instances"] for job in one["jobs"]} == {own}
    assert as_user(site, "ckpt", "list").returncode == 0
    for path in Path(site.layout.dir / "state").iterdir():
        opened = site.run([sys.executable, "-c", OPENS, str(path)], user="nobody", check=False)
        assert "PermissionError" in opened.stderr, path


@pytest.mark.release
def test_a_slurmctld_that_hangs_is_said_and_makes_no_machine_an_orphan(site: Sandbox) -> None:
    running_nodes(site, [site.submit("sleep 600", "--partition=onprem")])
    slurmctld = site.processes.get(SLURMCTLD)
    assert slurmctld is not None
    local_processes.send(slurmctld, signal.SIGSTOP)
    try:
        view = json.loads(as_user(site, "status", "--json", program=PLAIN).stdout)
    finally:
        local_processes.send(slurmctld, signal.SIGCONT)
    assert "no answer in 2s" in view["slurm_error"]
    assert view["instances"]
    assert {one["next"] for one in view["instances"]} == {"unknown: Slurm does not answer"}
    assert "does not list it" not in json.dumps(view)


@pytest.mark.release
def test_users_are_answered_again_by_a_daemon_that_was_killed_and_started(site: Sandbox) -> None:
    site.daemon_kill()
    done = as_user(site, "status")
    assert done.returncode == 1
    assert "no news now: slurm-elasticd" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    site.daemon_start()
    assert as_user(site, "status").returncode == 0
