"""The head is gone, in whole or in part: machines end themselves, jobs do not."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.ckptman.sources import NodeComments
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.crash import FULL
from tests.e2e.world import back_to_zero, live_ec2, running_nodes, submit_many

pytestmark = pytest.mark.e2e

PATIENCE = 240.0
AGENT = Path(slurm_elastic.__file__).parent / "machine" / "programs" / "agent.py"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Idle machines stay for long, so that only the switch ends them: not before a slurmctld that
    starts on a slow machine is back.
    """
    return sandbox(static_nodes=1, drop=("onprem",), dead_man=60.0, suspend_time=3600.0)


def idle_machines(site: Sandbox, count: int) -> list[str]:
    jobs = submit_many(site, count, "sleep 2", FULL, "--partition=aws")
    for job in jobs:
        site.wait_job(job)
    return live_ec2(site)


def test_all_of_the_head_is_gone_and_comes_back(site: Sandbox) -> None:
    go = site.layout.dir / "work" / "go"
    (job,) = submit_many(site, 1, f"until [ -e {go} ]; do sleep 1; done", FULL, "--partition=aws")
    (working,) = running_nodes(site, [job])[job]
    assert set(idle_machines(site, 1)) > {working}

    site.daemon_kill()
    # Not SIGKILL: what slurmctld has not saved yet it would run again, whatever machines do.
    site.slurmctld_stop()
    site.wait_for(lambda: live_ec2(site) == [working], PATIENCE, "only the working machine is left")

    go.touch()
    site.slurmctld_start()
    assert site.wait_job(job, timeout=PATIENCE)["Restarts"] == "0"
    assert live_ec2(site) == [working], "slurmctld has its node up: it is needed"

    site.slurmctld_stop()
    site.wait_for(lambda: live_ec2(site) == [], PATIENCE, "nothing is left in the cloud")

    site.slurmctld_start()
    site.daemon_start()
    back_to_zero(site)


@pytest.mark.release
def test_slurm_elasticd_alone_is_gone(site: Sandbox) -> None:
    """slurmctld powers the node down as ever, and nobody else ends its machine."""
    nodes = idle_machines(site, 1)
    assert len(nodes) == 1
    site.daemon_kill()
    command = ["scontrol", "update", f"nodename={nodes[0]}", "state=power_down"]
    site.run(command)
    site.wait_for(lambda: live_ec2(site) == [], PATIENCE, "nothing is left in the cloud")
    site.daemon_start()
    back_to_zero(site)


@pytest.mark.release
def test_a_restart_of_slurmctld_ends_nothing(site: Sandbox) -> None:
    nodes = idle_machines(site, 1)
    before = sorted(m.id for m in site.ec2.state().machines if m.node in nodes)
    for _ in range(3):
        site.slurmctld_stop()
        site.slurmctld_start()
    jobs = submit_many(site, 1, "sleep 30", FULL, "--partition=aws")
    assert site.wait_job(jobs[0])["Restarts"] == "0"
    assert sorted(m.id for m in site.ec2.state().machines if m.node in nodes) == before
    site.run(["scontrol", "update", f"nodename={nodes[0]}", "state=power_down"])
    back_to_zero(site)


class Metadata(BaseHTTPRequestHandler):
    """EC2's metadata service of a machine that is about to be taken."""

    answers: dict[str, str] = {  # noqa: RUF012
        "/latest/meta-data/instance-id": "i-7",
        "/latest/meta-data/spot/instance-action": '{"action": "terminate", '
        '"time": "2026-11-20T08:22:00Z"}',
    }

    def do_PUT(self) -> None:
        self._say(200, "token")

    def do_GET(self) -> None:
        found = self.answers.get(self.path)
        self._say(404 if found is None else 200, found or "")

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


def test_a_machine_tells_slurm_that_it_is_taken_and_ckptman_hears_it(
    site: Sandbox, tmp_path: Path
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as metadata:
        threading.Thread(target=metadata.serve_forever, daemon=True).start()
        settings = tmp_path / "agent"
        settings.write_text(
            "node=st1\nheartbeat_timeout=3600\nstop_command=false\n"
            f"metadata=ec2 http://127.0.0.1:{metadata.server_port}/latest/\n"
        )
        agent = subprocess.Popen(
            [sys.executable, "-I", str(AGENT), str(settings)], env=site.layout.daemon_env()
        )
        try:
            site.wait_for(lambda: site.nodes()["st1"].comment, PATIENCE, "the node has a comment")
        finally:
            agent.kill()
            agent.wait()
            metadata.shutdown()
    (told,) = NodeComments(site.slurm, lambda: {"i-7"}).read(0.0)
    assert told.notice is not None
    assert (told.notice.instance, told.notice.deadline) == ("i-7", 1795162920.0)
