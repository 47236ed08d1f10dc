"""The inside of ``test_mounts_nfs.py``: machines behind a router mount the head's homes through the
tunnel, by the shipped text of joining.

This host is a machine of the test's own with a kernel that has the NFS client.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.nfs_heads import AWAY, Server
from patience import patience

from slurm_elastic.config import configfile
from slurm_elastic.controller.launching.boots import PREPARE_PREFIX
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.sandbox import daemons
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.watch.doctor.mounts import examine
from tests import netns
from tests.e2e.lab_site import Site, no_sshd, site_on
from tests.netns import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(5000)]

PATIENCE = 900.0
USER = "alice"
JOBS = int(os.environ.get("SLURM_ELASTIC_NFS_JOBS", "6"))
LINES = 60
"""Seconds that each job writes, a line each: the server goes in the middle."""
AT = "/far"
TUNNEL = "10.99.0.1"
JOB = f"""\
#!/bin/bash
for n in $(seq {LINES}); do
  echo "line $n"
  seq $((n * 1000)) $((n * 1000 + 999)) >>data-$SLURM_JOB_ID
  sleep 1
done
"""
DATA = "".join(
    f"{number}\n" for n in range(1, LINES + 1) for number in range(n * 1000, (n + 1) * 1000)
)


@pytest.fixture(scope="module")
def homes() -> Iterator[Path]:
    if subprocess.run(["id", USER], capture_output=True, check=False).returncode:
        subprocess.run(["useradd", "-u", "2000", "-M", "-s", "/bin/bash", USER], check=True)
    place = Path(tempfile.mkdtemp(prefix="se-homes-", dir="/tmp"))
    place.chmod(0o755)
    (place / USER).mkdir()
    shutil.chown(place / USER, USER, USER)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    # The devices of the tunnel; other modules are loaded when somebody asks for them.
    subprocess.run(["modprobe", "-a", "tun", "wireguard"], check=False)
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=2)
    with made.up():
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab, sandbox: Callable[..., Sandbox], homes: Path) -> Iterator[Site]:
    daemons.START_TIMEOUT_S = PATIENCE
    pool = {"name": "pub", "nodes": "pub[1-2]", "markets": ["on-demand"]}
    mounts = [{"path": AT, "from": f"head:{homes}"}]
    with site_on(
        lab, sandbox, {"head_ports": [6817, 2049]}, resume_timeout=PATIENCE, groups=(USER,),
        elastic={"pools": [pool], "join": {"mounts": mounts}},
    ) as there:  # fmt: skip
        yield there


def test_no_slurmd_starts_without_its_homes_and_no_byte_is_lost_while_the_server_is_away(
    site: Site, homes: Path, tmp_path: Path
) -> None:
    options = ("--partition=aws", "-N1", "-n1", f"--chdir={AT}/{USER}", "--output=out-%j")
    jobs = [site.sandbox.submit(JOB, *options, user=USER) for _ in range(JOBS)]
    why = f"cannot mount {TUNNEL}:{homes} at {AT}: "

    def reported() -> list[str]:
        nodes = site.sandbox.slurm.nodes(["pub1", "pub2"])
        return [n.comment for n in nodes.values() if n.comment.startswith(PREPARE_PREFIX)]

    # No server runs yet. scontrol reports it, although no slurmd has brought a configuration.
    site.sandbox.wait_for(lambda: len(reported()) == 2, PATIENCE, "both report it", period=2.0)
    assert all(why in comment for comment in reported()), reported()
    assert site.addresses() == {}, "no node is up"
    consoles = [site.machines.place / name / "console" for name in site.machines.hosts]
    assert [why in console.read_text() for console in consoles] == [True, True]

    config = configfile.load(site.sandbox.layout.config)
    (finding,) = examine(config)
    assert (finding.level, "refused" in finding.observed) == (FindingLevel.WRONG, True), finding
    server = Server(tmp_path)
    try:
        site.sandbox.wait_for(lambda: set(written(homes, jobs)) > {0}, PATIENCE, "jobs write")
        site.sandbox.wait_for(lambda: max(written(homes, jobs)) > 10, PATIENCE, "in the middle")
        assert [one.level for one in examine(config)] == [FindingLevel.OK]
        server.send(signal.SIGKILL)
        at_loss = written(homes, jobs)
        assert any(0 < lines < LINES for lines in at_loss), at_loss
        time.sleep(AWAY)
        assert written(homes, jobs) == at_loss
        server.again()
        for job in jobs:
            shown = site.sandbox.wait_job(job, timeout=patience(PATIENCE))
            assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), shown
        for job in jobs:
            assert output(homes, job) == [f"line {n}" for n in range(1, LINES + 1)]
            assert (homes / USER / f"data-{job}").read_text() == DATA
    finally:
        server.send(signal.SIGKILL)


def output(homes: Path, job: int) -> list[str]:
    path = homes / USER / f"out-{job}"
    return path.read_text().splitlines() if path.exists() else []


def written(homes: Path, jobs: list[int]) -> list[int]:
    """The lines of each job that the server's disk has."""
    return [len(output(homes, job)) for job in jobs]
