"""Two heads with one key, each with its hub, and a machine, in network namespaces with WireGuard."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually, patience

from slurm_elastic.config.sections.joining import Network
from slurm_elastic.machine.hub.rules import table_name
from slurm_elastic.state.heads import Epochs
from tests import netns
from tests.netns import sh

pytestmark = pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or "")

TUNNEL, MACHINE = "10.99.0.8", "192.0.2.9"
HUB = """
import sys, threading
from pathlib import Path
import msgspec
from slurm_elastic.config.sections.joining import Network, Opener
from slurm_elastic.machine.hub.service import Hub
from slurm_elastic.machine.hub.wire import Apply
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer
from slurm_elastic.state.heads import Epochs, OtherHead

host, interface, place, shared, key = sys.argv[1:]
network = Network(opened_by=Opener.HEAD, interface=interface, socket=f"{place}/hub.sock",
                  public_key=f"{place}/wireguard.pub")
hub = Hub(network, "/dev/null", OtherHead(Epochs(Path(shared)), host).acting)
hub.start()
for run in (hub.keep_calling, hub.keep_apart):
    threading.Thread(target=run, daemon=True).start()
peer = TunnelPeer(address="10.99.0.8", key=key, endpoint=f"192.0.2.9:{network.udp_port}")
print("ready", flush=True)
for _ in sys.stdin:
    print(hub.answer(msgspec.json.encode(Apply(peers=(peer,)))).decode(), flush=True)
"""


class Pair:
    """Hosts ``a`` and ``b`` with a hub each, and a machine that either may call. Not their services:
    a test begins epochs and applies peers in their place.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.shared = place, place / "shared"
        self.shared.mkdir()
        self.epochs = Epochs(self.shared)
        self.hubs: dict[str, subprocess.Popen[str]] = {}

    def space(self, host: str) -> str:
        return f"se{os.getpid()}{host}"

    def interface(self, host: str) -> str:
        # wireguard-go's sockets in /run are of all namespaces.
        return f"sh{os.getpid() % 1_000_000}{host}"

    def on(self, host: str, *command: str) -> str:
        return sh("ip", "netns", "exec", self.space(host), *command)

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        spaces = ("switch", "a", "b", "m")
        try:
            for host in spaces:
                sh("ip", "netns", "add", self.space(host))
                self.on(host, "ip", "link", "set", "lo", "up")
            self.on("switch", "ip", "link", "add", "br0", "type", "bridge")
            self.on("switch", "ip", "link", "set", "br0", "up")
            for host, address in (("a", "192.0.2.1"), ("b", "192.0.2.2"), ("m", MACHINE)):
                self._cable(host, address)
            self._machine()
            for host in ("a", "b"):
                self._hub(host)
            yield
        finally:
            for hub in self.hubs.values():
                hub.kill()
                hub.communicate()
            for host in ("a", "b", "m"):
                command = ["ip", "-n", self.space(host), "link", "del", self.interface(host)]
                subprocess.run(command, check=False, capture_output=True)
            for host in spaces:
                command = ["ip", "netns", "del", self.space(host)]
                subprocess.run(command, check=False, capture_output=True)

    def _cable(self, host: str, address: str) -> None:
        near = f"v{host}"
        self.on("switch", "ip", "link", "add", near, "type", "veth", "peer", "name", "e0",
                "netns", self.space(host))  # fmt: skip
        self.on("switch", "ip", "link", "set", near, "master", "br0", "up")
        self.on(host, "ip", "address", "add", f"{address}/24", "dev", "e0")
        self.on(host, "ip", "link", "set", "e0", "up")

    def _machine(self) -> None:
        for name in ("head", "machine"):
            (self.place / name).write_text(sh("wg", "genkey"))
        self.head_key, self.key = (
            sh("sh", "-c", f"wg pubkey <{self.place / name}").strip()
            for name in ("head", "machine")
        )
        link = self.interface("m")
        self.on("m", "wireguard-go", link)
        self.on("m", "wg", "set", link, "listen-port", "51820", "private-key",
                str(self.place / "machine"), "peer", self.head_key, "persistent-keepalive", "10",
                "allowed-ips", "10.99.0.0/16")  # fmt: skip
        self.on("m", "ip", "address", "add", f"{TUNNEL}/32", "dev", link)
        self.on("m", "ip", "link", "set", link, "up")
        self.on("m", "ip", "route", "add", "10.99.0.0/16", "dev", link, "src", TUNNEL)

    def _hub(self, host: str) -> None:
        own = self.place / host
        own.mkdir()
        (own / "wireguard.key").write_text((self.place / "head").read_text())
        command = ["ip", "netns", "exec", self.space(host), sys.executable, "-c", HUB]
        command += [host, self.interface(host), str(own), str(self.shared), self.key]
        self.hubs[host] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[3],
        )  # fmt: skip
        assert self._line(host) == "ready\n"

    def _line(self, host: str) -> str:
        output = self.hubs[host].stdout
        assert output is not None
        return output.readline()

    def apply(self, host: str) -> str:
        """The answer of the host's hub to its slurm-elasticd, which gives it the machine."""
        stdin = self.hubs[host].stdin
        assert stdin is not None
        print("apply", file=stdin, flush=True)
        return self._line(host)

    def peers(self, host: str) -> str:
        return self.on(host, "wg", "show", self.interface(host), "peers").strip()

    def live(self, host: str) -> bool:
        """Whether the host's firewall admits the machine."""
        name = table_name(Network(socket=f"{self.place}/{host}/hub.sock"))
        return TUNNEL in self.on(host, "nft", "list", "set", "inet", name, "live")

    def reaches(self, host: str) -> bool:
        command = ["ip", "netns", "exec", self.space(host), "ping", "-c", "1", "-W", "1", TUNNEL]
        done = subprocess.run(command, check=False, capture_output=True, timeout=patience(60))
        return done.returncode == 0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    with made.up():
        yield made


def test_after_a_takeover_and_back_only_the_acting_head_has_the_machine(pair: Pair) -> None:
    for acting, other in (("a", "b"), ("b", "a"), ("a", "b")):
        pair.epochs.take(acting)
        # The other head's slurm-elasticd is dead or frozen: only its hub can step back.
        eventually(lambda other=other: not pair.peers(other) and not pair.live(other))
        assert '"ok":true' in pair.apply(acting)
        eventually(lambda acting=acting: pair.reaches(acting))
        assert pair.live(acting)
        # It wakes, and does not know yet that it acts no longer.
        assert f"{acting} acts: only its hub admits machines" in pair.apply(other)
        assert not pair.peers(other)
