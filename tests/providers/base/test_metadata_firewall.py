"""Joining closes the metadata service to all but root: the lines of the program, in a network
namespace with a service at its addresses.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from needs import ROOT, missing

from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.basics import metadata_service
from slurm_elastic.config.basics.metadata_service import MetadataService
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.joining import Join
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.joining import program_of

ADDRESSES = ("169.254.169.254", "fd00:ec2::254", "fe80::a9fe:a9fe%lo")
"""EC2's and OpenStack's, by either protocol."""
OF_EACH = {
    "EC2": (metadata_service.EC2, ADDRESSES),
    "GCE": (metadata_service.GCE, ("169.254.169.254", "fd20:ce::254")),
    "AZURE": (metadata_service.AZURE, ("169.254.169.254", "168.63.129.16")),
}
PORTS = (80, 53, 32526)
"""The service's, DNS's, and the second one of Azure's WireServer."""
SERVICE = """\
import http.server, socket, sys, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"role")
    def log_message(self, *args): pass
class Six(http.server.HTTPServer):
    address_family = socket.AF_INET6
for at in sys.argv[1:]:
    kind = Six if ":" in at else http.server.HTTPServer
    for port in (80, 53, 32526):
        server = kind(socket.getaddrinfo(at, port)[0][4], Answer)
        threading.Thread(target=server.serve_forever).start()
    dns = socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_DGRAM)
    dns.bind(socket.getaddrinfo(at, 53)[0][4])
    def answer(dns=dns):
        while True: dns.sendto(b"name", dns.recvfrom(99)[1])
    threading.Thread(target=answer).start()
print("ready", flush=True)
"""
CLIENT = """\
import socket, sys
at, port = sys.argv[1:]
ours = None if ":" in at else ("10.9.9.9", 0)
if port == "udp":
    with socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_DGRAM) as c:
        c.settimeout(20)
        c.sendto(b"?", socket.getaddrinfo(at, 53)[0][4]); print(c.recv(99).decode())
    sys.exit()
with socket.create_connection((at, int(port)), 20, ours) as c:
    c.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n"); print(c.makefile().read().splitlines()[-1])
"""
BED = """\
set -e
ip link set lo up
ip addr add 10.9.9.9/32 dev lo
for at in $ADDRESSES; do
  case $at in
    fe80*) ip addr add ${at%\\%lo}/64 dev lo nodad ;;
    *:*) ip addr add $at/128 dev lo nodad ;;
    *) ip addr add $at/32 dev lo ;;
  esac
done
python3 -c "$SERVICE" $ADDRESSES > "$DIR/ready" & service=$!
trap "kill $service" EXIT
until [ -s "$DIR/ready" ]; do sleep 0.05; done
sh "$DIR/firewall"
sh "$DIR/firewall"
for at in $ADDRESSES; do
  for port in 80 53 32526 udp; do
    echo root $at $port $(python3 -c "$CLIENT" $at $port 2>&1 | tail -1)
    echo job $at $port $(setpriv --reuid=65534 --regid=65534 --clear-groups \\
      python3 -c "$CLIENT" $at $port 2>&1 | tail -1)
  done
done
"""


class OtherCloud(AwsCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="other"):
    """A cloud with another metadata service."""

    service: str = ""

    @property
    def metadata(self) -> MetadataService:
        return OF_EACH[self.service][0]


def firewall(service: str = "EC2", **join: object) -> str:
    """The lines of the join text that decide on the metadata service."""
    cloud = OtherCloud(
        name="aws", location=Location.PUBLIC, region="us-east-1", image="ami-1", service=service,
        types={"c5": InstanceType(cpus=2, memory=4096, price=0.1)},
    )  # fmt: skip
    pool = PoolSettings(name="pub", cloud="aws", nodes="pub1", cpus=2, memory=4096)
    config = Config(
        cluster=Cluster(name="site"), clouds=(cloud,), pools=(pool,), join=Join(head="h", **join)
    )
    text = program_of(config, cloud)
    begin = text.index("shut_metadata() {")
    return text[begin : text.index("read -r name", begin)]


def answers(
    tmp_path: Path, lines: str, without: str, addresses: tuple[str, ...] = ADDRESSES
) -> dict[tuple[str, str, str], str]:
    """The answers by user (root, another one), address and port; ``without`` is a tool that the
    machine lacks.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for tool in Path(directory).iterdir():
            if tool.name != without and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    (tmp_path / "firewall").write_text(lines)
    env = {"PATH": str(tools), "SERVICE": SERVICE, "CLIENT": CLIENT, "DIR": str(tmp_path),
           "ADDRESSES": " ".join(addresses)}  # fmt: skip
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", BED], env=env, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = (line.split(" ", 3) for line in done.stdout.splitlines())
    return {(who, at, port): answer for who, at, port, answer in told}


def has_namespaces() -> bool:
    done = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and done.returncode == 0


NAMESPACE = pytest.mark.skipif(not has_namespaces(), reason="no network namespaces here")


@ROOT
@NAMESPACE
@pytest.mark.parametrize("service", OF_EACH)
@pytest.mark.parametrize(("tool", "other"), [("nft", "iptables"), ("iptables", "nft")])
def test_only_root_reads_the_metadata_service(
    tmp_path: Path, tool: str, other: str, service: str
) -> None:
    if reason := missing(tool):
        pytest.skip(reason)
    addresses = OF_EACH[service][1]
    found = answers(tmp_path, firewall(service), without=other, addresses=addresses)
    for at in addresses:
        for port in PORTS:
            assert found["root", at, str(port)] == "role"
            is_open = port in OF_EACH[service][0].open_ports
            assert ("ConnectionRefusedError" in found["job", at, str(port)]) is not is_open


@ROOT
@NAMESPACE
@pytest.mark.parametrize("service", ["GCE", "AZURE"])
def test_jobs_look_up_names_where_the_metadata_service_answers_dns(
    tmp_path: Path, service: str
) -> None:
    addresses = OF_EACH[service][1]
    found = answers(tmp_path, firewall(service), without="", addresses=addresses)
    assert {found["job", at, "udp"] for at in addresses} == {"name"}
    assert {found["job", at, "53"] for at in addresses} == {"role"}


@ROOT
@NAMESPACE
def test_a_site_may_leave_it_open(tmp_path: Path) -> None:
    found = answers(tmp_path, firewall(metadata_for_jobs=True), without="")
    assert {found["job", at, str(port)] for at in ADDRESSES for port in PORTS} == {"role"}


def test_nor_do_containers_with_a_network_of_their_own(tmp_path: Path) -> None:
    """Their packets are forwarded; what the tools are told, by stand-ins for them."""
    for tool in ("iptables", "ip6tables"):
        (tmp_path / tool).write_text(
            f'#!/bin/sh\n[ "$3" = -I ] && echo {tool} "$@" >>{tmp_path}/told\n'
        )
        (tmp_path / tool).chmod(0o755)
    (tmp_path / "tee").symlink_to("/usr/bin/tee")
    env = {"PATH": str(tmp_path)}
    subprocess.run(["/bin/sh", "-c", firewall()], env=env, check=True, timeout=60)
    told = (tmp_path / "told").read_text()
    for tool, at in zip(("iptables", "ip6tables", "ip6tables"), ADDRESSES, strict=True):
        assert f"{tool} -w 10 -I FORWARD -p tcp -d {at.partition('%')[0]} -j REJECT" in told
    forward = firewall().partition("chain forward")[2].partition("END")[0]
    assert "jump metadata" in forward
