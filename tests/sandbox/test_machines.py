"""Powering a machine off under a running job: real slurmd, slurmstepd and user processes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from needs import unless

from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local import records as local_records
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
pytestmark = [
    pytest.mark.release,
    pytest.mark.e2e,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd and munged need root"),
    unless("slurmctld"),
]
DAEMONIZED = "5551"
SLEEP = "5552"


@pytest.fixture(scope="module")
def cluster():
    made = Sandbox(SandboxSpec(dir=Path(tempfile.mkdtemp(prefix="se-", dir="/tmp")), drop=("aws",)))
    made.up()
    yield made
    made.down()


def sleeping(seconds: str) -> list[int]:
    """The processes ``/bin/sleep SECONDS`` (srun itself has more in its command line)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            argv = (entry / "cmdline").read_bytes()
            if argv.count(b"\0") == 2 and argv.endswith(f"/bin/sleep\0{seconds}\0".encode()):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def test_power_off_takes_slurmstepd_and_what_left_the_jobs_session(cluster):
    """A batch step, an srun step, and a daemon that a double fork has freed of all parents."""
    script = (
        "#!/bin/sh\ncd /\n"
        f"(setsid sh -c 'env -i /bin/sleep {DAEMONIZED} &' &)\n"
        f"srun -n1 /bin/sleep {SLEEP}\n"
    )
    job = cluster.submit(script, "-p", "onprem", "-N1", "-o", "/dev/null", "--no-requeue")
    cluster.wait_job(job, "RUNNING")
    cluster.wait_for(lambda: sleeping(SLEEP) and sleeping(DAEMONIZED), 60, "the job's processes")
    (record,) = [
        r for r in local_records.read_records(cluster.layout.local_machines) if r.ended is None
    ]
    directory = local_records.workdir(cluster.layout.local_machines, record)
    members = {p.pid for p in local_processes.belonging(directory)}
    assert {*sleeping(SLEEP), *sleeping(DAEMONIZED), record.process.pid} <= members
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in members]
    assert names.count("slurmstepd") >= 2
    static = cluster.machines.get("st1").process
    assert static.pid not in members
    local_processes.power_off(directory, slurmd=record.process)
    assert local_processes.belonging(directory) == []
    assert sleeping(SLEEP) == sleeping(DAEMONIZED) == []
    assert local_processes.alive(static)
    # Nobody told slurmctld that the job had ended: it learns that the node is gone.
    ended = cluster.wait_job(job, "NODE_FAIL", timeout=120)
    assert ended["JobState"] == "NODE_FAIL"
