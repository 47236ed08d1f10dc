"""The shipped text of user data, run as it is, on a machine of namespaces: nothing but slurmd, munge
and Python is there. It becomes its node, configless, runs a job, and ends itself without a head.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from patience import patience

from slurm_elastic.config import configfile
from slurm_elastic.config.sections.joining import Join
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import SLURMCTLD
from tests.e2e.world import live_ec2

pytestmark = pytest.mark.e2e

PATIENCE = 240.0
NAMESPACES = ("unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc")
MACHINE = """set -e
for place in /run /etc/slurm /etc/munge /var/log/munge /var/lib/munge; do
  mkdir -p $place
  mount -t tmpfs tmpfs $place
done
install -o munge -g munge -m 0400 {key} /etc/munge/munge.key
chown munge:munge /var/log/munge /var/lib/munge
cp /etc/hosts /run/hosts
mount --bind /run/hosts /etc/hosts
mkdir /run/slurm-elastic
echo {node} >/run/slurm-elastic/node
echo node={node} >/run/slurm-elastic/launch
set +e
sh {program}
touch {place}/joined
sleep 1000000 &
wait
"""


def why_not() -> str | None:
    """Why there can be no such machine here; None if there can."""
    done = subprocess.run(
        [*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else None


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """EC2 starts machines there, but only the test boots them."""
    if reason := why_not():
        pytest.skip(reason)
    return sandbox(
        static_nodes=1, drop=("onprem",), never_boot="pub[1-6]", suspend_time=3600.0,
        resume_timeout=300.0,
    )  # fmt: skip


@contextmanager
def machine(site: Sandbox, node: str, place: Path) -> Iterator[None]:
    config = configfile.load(site.layout.config)
    port = site.layout.read().ports.slurmctld
    join = Join(
        head=f"127.0.0.1:{port}", heartbeat_timeout=60.0, stop_command=f"touch {place}/stopped"
    )
    text = program_of(replace(config, join=join), config.cloud("aws"))
    (place / "join").write_text(text)
    script = MACHINE.format(
        key=site.layout.dir / "etc" / "munge.key", node=node, program=place / "join", place=place
    )
    with (place / "machine.log").open("wb") as log:
        process = subprocess.Popen(
            [*NAMESPACES, "--kill-child", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(patience(60))


def test_a_machine_joins_works_and_ends_itself(site: Sandbox, tmp_path: Path) -> None:
    job = site.submit("hostname; sleep 3", "--partition=aws", "--output=/dev/null")
    (node,) = site.wait_for(lambda: live_ec2(site), PATIENCE, "EC2 has a machine")
    with machine(site, node, tmp_path):
        site.wait_job(job, timeout=PATIENCE)
        seen = site.nodes()[node]
        assert "POWERED_DOWN" not in seen.states
        assert not (tmp_path / "stopped").exists()
        site.daemon_kill()
        site.processes.kill(SLURMCTLD)
        stopped = tmp_path / "stopped"
        site.wait_for(stopped.exists, PATIENCE, "the machine ends itself")
    site.slurmctld_start()
    site.daemon_start()
