"""On real Slurm: nodes that slurmctld itself takes out of service cost a machine each, not the pool.

Their machines are replaced, their jobs move on, what is to be done is said; a pool all of whose
machines are refused stops buying. A person's drain stays.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import ELASTIC, Until, live_ec2, machines, running_nodes

pytestmark = pytest.mark.e2e
FULL = "--cpus-per-task=2"
AS_AT_SITES = ("ReturnToService=1", "SlurmdParameters=shutdown_on_reboot")
"""The sandbox lets nodes return whatever they report, which no site does."""
FAST = {"reconcile_interval": 2.0, "orphan_timeout": 2.0}


def elastic(site: Sandbox, *words: str) -> str:
    command = [*ELASTIC, "--config", str(site.layout.config), *words]
    done = site.run(command, check=False, timeout=60)
    assert "Traceback" not in done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def slurmd_of(site: Sandbox, node: str) -> int:
    """The process id of this sandbox's slurmd of ``node``: by its whole command line, which a
    child of slurmd has too until it starts its own program.
    """
    wanted = ["/usr/sbin/slurmd", "-N", node, "-b", "-D", "-f", str(site.layout.slurm_conf)]
    found = {}  # the process id of each one's parent
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")[:-1]
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if words == wanted:
                found[int(entry.name)] = int(parent)
    (pid,) = found.keys() - {pid for pid, parent in found.items() if parent in found}
    return pid


def start_anew(site: Sandbox, node: str) -> subprocess.Popen[bytes]:
    """Its slurmd ends and comes back as after a reboot: ``-b`` reports its own start as the boot."""
    pid = slurmd_of(site, node)
    process = Path(f"/proc/{pid}")
    words = (process / "cmdline").read_bytes().split(b"\0")[:-1]
    environment = dict(
        pair.split(b"=", 1) for pair in (process / "environ").read_bytes().split(b"\0") if pair
    )
    directory = os.readlink(process / "cwd")
    # slurmctld compares whole seconds: this boot has to be later than what it heard last.
    heard = site.nodes()[node].boot_time
    site.wait_for(lambda: time.time() > heard + 4, 20, "a later second")
    os.kill(pid, signal.SIGKILL)
    site.wait_for(lambda: has_ended(process), 20, "slurmd has ended")
    return subprocess.Popen(words, env=environment, cwd=directory)


def has_ended(process: Path) -> bool:
    """Also one whose parent has not asked for its exit code yet."""
    try:
        return (process / "cmdline").read_bytes() == b""
    except OSError:
        return True


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        slurm_conf=AS_AT_SITES,
        suspend_time=600.0,
        elastic={"timings": FAST},
    )


def test_a_machine_that_was_started_anew_is_replaced_and_its_job_runs_again(
    site: Sandbox,
) -> None:
    until = Until(site)
    job = site.submit(until.script, FULL, "--partition=aws")
    (node,) = running_nodes(site, [job])[job]
    (before,) = machines(site)
    slurmd = start_anew(site, node)
    try:
        site.wait_for(
            lambda: "node-failed" in elastic(site, "explain", node), 90, "the failure is told", 3.0
        )
        told = elastic(site, "explain", node)
        assert "Node unexpectedly rebooted: the machine rebooted" in told
        site.wait_for(
            lambda: before.instance.id not in {m.instance.id for m in machines(site)},
            60, "its machine has ended",
        )  # fmt: skip
    finally:
        slurmd.kill()
        slurmd.wait()
    until.go()
    fields = site.wait_job(job, timeout=300)
    assert fields["Restarts"] == "1"
    site.wait_for(lambda: usable(site, node), 60, "its node is usable again")


def usable(site: Sandbox, node: str) -> bool:
    seen = site.nodes()[node]
    return not is_drained(seen) and "DOWN" not in seen.states


@pytest.mark.release
def test_a_persons_drain_stays_whatever_it_says(site: Sandbox) -> None:
    until = Until(site)
    job = site.submit(until.script, FULL, "--partition=aws")
    (node,) = running_nodes(site, [job])[job]
    reason, before = "Low RealMemory, says Ann", failures(site, node)
    site.run(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"])
    until.go()
    site.wait_job(job)
    other = site.submit("sleep 1", FULL, "--partition=aws")
    site.wait_job(other)
    assert is_drained(site.nodes()[node])
    assert site.nodes()[node].reason == reason
    assert node in live_ec2(site), "nor has its machine ended"
    assert failures(site, node) == before
    site.run(["scontrol", "update", f"nodename={node}", "state=resume"])


def failures(site: Sandbox, node: str) -> int:
    return elastic(site, "explain", node).count("node-failed")
