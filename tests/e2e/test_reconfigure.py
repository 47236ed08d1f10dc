"""On real Slurm: a reconfigure, which ``conf install`` causes, and SIGHUP cost no job on a machine.

Since 23.11 slurmd replaces itself at both by a new process with the same arguments, so with ``-b``.
23.11.0 reports a boot then ("Node unexpectedly rebooted"), later releases keep the first one's time.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import Until, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
FULL = "--cpus-per-task=2"
PING_S = 10
"""slurmctld pings each node three times in a SlurmdTimeout."""
READ_AGAIN = re.compile("got reconfigure request|Triggering reconfigure")


def test_a_job_on_a_machine_outlasts_a_reconfigure(sandbox: Callable[..., Sandbox]) -> None:
    """The sandbox's own ReturnToService is 2, which hides that slurmd reports a boot."""
    site = sandbox(
        static_nodes=1, drop=("onprem",), suspend_time=600.0,
        slurm_conf=("ReturnToService=0", f"SlurmdTimeout={3 * PING_S}"),
    )  # fmt: skip
    until = Until(site)
    job = site.submit(until.script, FULL, "--partition=aws")
    (node,) = running_nodes(site, [job])[job]
    # All machines of a sandbox start with -b. Until the first ping such a boot is as late as
    # slurmctld's last contact, and a boot that looks a second later costs the job (join.sh).
    booted = site.nodes()[node].boot_time
    site.wait_for(lambda: time.time() > booted + 2 * PING_S, 3 * PING_S, "slurmctld has pinged")
    read_again(site, node, lambda: site.run(["scontrol", "reconfigure"]))
    read_again(site, node, lambda: os.kill(slurmd_of(site, node), signal.SIGHUP))
    assert not site.nodes()[node].states & {"DOWN", "DRAIN"}
    until.go()
    assert site.wait_job(job)["Restarts"] == "0"


def read_again(site: Sandbox, node: str, cause: Callable[[], object]) -> None:
    """The node's slurmd has read its configuration again, and slurmctld has heard of it."""
    log = site.layout.log / f"slurmd-{node}.log"
    before = len(READ_AGAIN.findall(log.read_text()))
    cause()
    site.wait_for(
        lambda: len(READ_AGAIN.findall(log.read_text())) > before, 60, "slurmd has read it again"
    )
    time.sleep(5)


def slurmd_of(site: Sandbox, node: str) -> int:
    """The process id of this sandbox's slurmd of ``node``."""
    needed = {"/usr/sbin/slurmd", node, "-b", str(site.layout.slurm_conf)}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if needed <= set(words):
            return int(entry.name)
    raise AssertionError(f"no slurmd of {node} runs")
