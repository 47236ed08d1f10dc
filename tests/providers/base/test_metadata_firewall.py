"""Joining shuts the metadata service to all but root: the very lines, in a network namespace with a
service at its address.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from needs import ROOT, missing

from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.joining import Join
from slurm_elastic.model import Location
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.joining import program_of

SERVICE = """\
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"role")
    def log_message(self, *args): pass
server = http.server.HTTPServer(("169.254.169.254", 80), Answer)
print("ready", flush=True)
server.serve_forever()
"""
CLIENT = """\
import socket, sys
with socket.create_connection(("169.254.169.254", 80), 20, ("10.9.9.9", 0)) as c:
    c.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n"); print(c.makefile().read().splitlines()[-1])
"""
BED = """\
set -e
ip link set lo up
ip addr add 169.254.169.254/32 dev lo
ip addr add 10.9.9.9/32 dev lo
python3 -c "$SERVICE" > "$DIR/ready" & service=$!
trap "kill $service" EXIT
until [ -s "$DIR/ready" ]; do sleep 0.05; done
sh "$DIR/firewall"
sh "$DIR/firewall"
echo root $(python3 -c "$CLIENT" 2>&1 | tail -1)
echo job $(setpriv --reuid=65534 --regid=65534 --clear-groups python3 -c "$CLIENT" 2>&1 | tail -1)
"""


def firewall(**join: object) -> str:
    """The lines of the join text that decide on the metadata service."""
    cloud = AwsCloud(
        name="aws", location=Location.PUBLIC, region="us-east-1", image="ami-1",
        types={"c5": InstanceType(cpus=2, memory=4096, price=0.1)},
    )  # fmt: skip
    pool = PoolSettings(name="pub", cloud="aws", nodes="pub1", cpus=2, memory=4096)
    config = Config(
        cluster=Cluster(name="site"), clouds=(cloud,), pools=(pool,), join=Join(head="h", **join)
    )
    text = program_of(config, cloud)
    begin = text.index("shut_metadata() {")
    return text[begin : text.index("hostnamectl", begin)]


def answers(tmp_path: Path, lines: str, without: str) -> dict[str, str]:
    """The answers to root and another user; ``without`` is a tool that the machine lacks."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for tool in Path(directory).iterdir():
            if tool.name != without and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    (tmp_path / "firewall").write_text(lines)
    env = {"PATH": str(tools), "SERVICE": SERVICE, "CLIENT": CLIENT, "DIR": str(tmp_path)}
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", BED], env=env, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def has_namespaces() -> bool:
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and done.returncode == 0


NAMESPACE = pytest.mark.skipif(not has_namespaces(), reason="no network namespaces here")


@ROOT
@NAMESPACE
@pytest.mark.parametrize(("tool", "other"), [("nft", "iptables"), ("iptables", "nft")])
def test_only_root_reads_the_metadata_service(tmp_path: Path, tool: str, other: str) -> None:
    if reason := missing(tool):
        pytest.skip(reason)
    found = answers(tmp_path, firewall(), without=other)
    assert found["root"] == "role"
    assert "ConnectionRefusedError" in found["job"]


@ROOT
@NAMESPACE
def test_a_site_may_leave_it_open(tmp_path: Path) -> None:
    found = answers(tmp_path, firewall(metadata_for_jobs=True), without="")
    assert found == {"root": "role", "job": "role"}
