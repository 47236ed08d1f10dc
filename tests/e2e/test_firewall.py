"""``firewall: nftables`` without a tunnel: real packets of real machines, which have a route to the
head; who does not live there, or is no machine at all, reaches none of the ports.
"""

from __future__ import annotations

import contextlib
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.machine.hub.rules import table_name
from slurm_elastic.machine.programs.names import MARK
from slurm_elastic.sandbox.cluster import Sandbox
from tests import netns
from tests.e2e.lab_site import PATIENCE, Site, no_sshd, site_on
from tests.netns import INSIDE, Lab

pytestmark = pytest.mark.e2e

STRANGER, LOGIN = "172.30.9.9", "10.7.0.5"
"""Addresses of a host that is nobody's, and of one in the network ``trusted``."""
ECHO, SHUT, OPEN = 7777, 7778, 7779
"""Ports of the head: of the firewall, of the firewall and the site's own, and of neither."""
NETWORK = {
    "kind": "none", "firewall": "nftables", "head_ports": [6817, ECHO, SHUT], "trusted_networks": ["10.7.0.0/24"],
}  # fmt: skip
SITES_OWN = f"""table inet site {{
  chain input {{
    type filter hook input priority -10; policy accept;
    tcp dport {SHUT} drop
  }}
}}
"""
ROUND = 3600.0
"""Seconds between two rounds of repair: none comes to a test's help but that of a start."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := netns.why_not() or no_sshd():
        pytest.skip(reason)
    made = Lab(machines=2, others=("stranger", "login"))
    with made.up():
        made.settle("stranger", STRANGER)
        made.settle("login", LOGIN)
        subprocess.run(["nft", "-f", "-"], input=SITES_OWN, text=True, check=True)
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab, sandbox: Callable[..., Sandbox]) -> Iterator[Site]:
    timings = {"reconcile_interval": ROUND, "daemon_timeout": ROUND}
    with site_on(lab, sandbox, NETWORK, routed=["aws"], elastic={"timings": timings}) as there:
        yield there


@pytest.fixture(scope="module")
def joined(site: Site) -> dict[str, str]:
    """Two machines with a job behind them: by node, their hosts."""
    job = site.sandbox.submit("srun -N2 true", "--partition=aws", "-N2", "--output=/dev/null")
    site.sandbox.wait_job(job, timeout=PATIENCE)
    return site.machines.by_node()


def test_names_of_other_nodes_resolve_on_machines(site: Site, joined: dict[str, str]) -> None:
    """Without a tunnel machines have the addresses from slurmctld."""
    nodes = site.sandbox.nodes()
    lines = {f"{nodes[name].address} {name} {MARK}" for name in joined}
    own = Path("/etc/hosts").read_text()

    def is_there() -> bool:
        texts = site.machines.hosts_files()
        return all(text.startswith(own) and lines <= set(text.splitlines()) for text in texts)

    site.sandbox.wait_for(is_there, PATIENCE, "each machine has both names")
    for pid in site.machines.pids():
        found = netns.sh("nsenter", "-t", str(pid), "-m", "getent", "ahostsv4", "pub1")
        assert found.split()[0] == nodes["pub1"].address


class _Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


@pytest.fixture(scope="module")
def servers(lab: Lab) -> Iterator[None]:
    """Servers on the head, beside slurmctld."""
    with contextlib.ExitStack() as running:
        for port in (ECHO, SHUT, OPEN):
            server = running.enter_context(_Server((INSIDE, port), _Echo))
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            running.callback(thread.join)
            running.callback(server.shutdown)
        yield


class Link:
    """A connection from a host of the lab to the head, which stays."""

    def __init__(self, lab: Lab, host: str) -> None:
        script = (
            "import socket, sys\n"
            f"s = socket.create_connection(('{INSIDE}', {ECHO}), timeout=5)\n"
            "for line in sys.stdin:\n"
            "    try:\n"
            "        s.sendall(line.encode())\n"
            "        print(s.recv(99).decode().strip() or 'closed', flush=True)\n"
            "    except OSError:\n"
            "        print('silence', flush=True)\n"
        )
        self.process = subprocess.Popen(
            [*lab.prefix(host), sys.executable, "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=patience(60))


@pytest.fixture
def link(lab: Lab) -> Iterator[Callable[[str], Link]]:
    with contextlib.ExitStack() as made:

        def opened(host: str) -> Link:
            one = Link(lab, host)
            made.callback(one.close)
            return one

        yield opened


def let_in(site: Site, *hosts: str) -> list[str]:
    """The hosts among these that reach slurmctld."""
    return [host for host in hosts if site.reaches(host)]


@pytest.mark.usefixtures("servers")
def test_live_machines_and_the_sites_own_reach_the_ports_and_nobody_else(
    site: Site, joined: dict[str, str]
) -> None:
    # Each at its address in the network of its cloud and at its public one.
    assert len(site.plain()) == 2 * len(joined)
    everybody = (*joined.values(), "login", "stranger")
    assert let_in(site, *everybody) == [*joined.values(), "login"]
    assert site.reaches("stranger", OPEN), "other ports are not ours to shut"
    assert not site.reaches("login", SHUT), "what another table drops stays dropped"
    assert site.sandbox.run(["scontrol", "ping"]).returncode == 0, "the head itself"
    assert "tcp dport 7778 drop" in netns.sh("nft", "list", "table", "inet", "site")


@pytest.mark.release
def test_after_a_crash_of_either_service_the_same_are_let_in(
    site: Site, joined: dict[str, str]
) -> None:
    before, theirs = site.plain(), netns.sh("nft", "list", "table", "inet", "site")
    everybody = (*joined.values(), "login", "stranger")
    site.sandbox.daemon_kill()
    site.hub_stop()
    assert let_in(site, *everybody) == [*joined.values(), "login"], "the rules outlive both"
    site.hub_start()
    site.sandbox.wait_for(site.answers, PATIENCE, "the hub is back")
    assert let_in(site, *everybody) == [*joined.values(), "login"], "whom it let in before"
    site.sandbox.daemon_start()
    site.hub_stop()
    # As after a boot of the head: the daemon tells the hub anew.
    netns.sh("nft", "delete", "table", "inet", table_name(site.network))
    (site.place / "secrets" / "peers.json").unlink()
    site.hub_start()
    site.sandbox.wait_for(site.answers, PATIENCE, "the hub is back")
    assert let_in(site, "login", "stranger") == ["login"], "nobody is let in by default"
    site.daemon_again()
    site.sandbox.wait_for(lambda: site.plain() == before, PATIENCE, "they are back")
    assert let_in(site, *everybody) == [*joined.values(), "login"]
    assert netns.sh("nft", "list", "table", "inet", "site") == theirs


@pytest.mark.usefixtures("servers")
def test_a_machine_that_was_ended_is_shut_out_with_the_next_look(
    site: Site, joined: dict[str, str], link: Callable[[str], Link]
) -> None:
    """Not only with the next round of repair, which comes in an hour; and its connections with it."""
    lives, ends = link(joined["pub1"]), link(joined["pub2"])
    assert (lives.says("one"), ends.says("one")) == ("one", "one")
    (at,) = (one.address for one in site.machines.powered() if one.node == "pub2")
    assert at in site.plain()
    site.sandbox.run(["scontrol", "update", "nodename=pub2", "state=power_down"])
    site.sandbox.wait_for(lambda: at not in site.plain(), PATIENCE, "it is shut out")
    assert let_in(site, *joined.values(), "login", "stranger") == [joined["pub1"], "login"]
    assert ends.says("two") == "silence", "its host runs still, and what it sends is dropped"
    assert lives.says("two") == "two"
