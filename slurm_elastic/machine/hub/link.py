"""The tunnel's interface on the head, managed by ip(8) and wg(8).

The interface is created if it is missing. Only peers that differ are changed, so the connections of
the others are not interrupted.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.config.joining import Network
from slurm_elastic.machine.hub.wire import HubError, PeerSeen
from slurm_elastic.policies.repair.peers import TunnelPeer, head_address

KERNEL, USERSPACE = "kernel", "wireguard-go"
_OUR_KINDS = ("wireguard", "tun")
"""Link kinds that our interface may have: the kernel's WireGuard, and wireguard-go's."""
PEERS_PER_COMMAND = 500
"""A command line has room for some thousand peers."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}
COMMAND_TIMEOUT_S = 20.0
_SYSCTL = Path("/proc/sys/net/ipv4/conf")


def run(*command: str, text: str | None = None) -> str:
    """Run a command and return its output. HubError with its last line if it fails, is missing, or
    takes longer than 20 s.
    """
    try:
        result = subprocess.run(
            command, env=ENVIRONMENT, input=text, stdin=None if text else subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, cwd="/",
        )  # fmt: skip
    except FileNotFoundError:
        raise HubError(f"{command[0]} is missing on the head: install its package") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HubError(f"{command[0]}: {error}") from None
    if result.returncode:
        last_line = (result.stderr or result.stdout).strip().splitlines()[-1:] or [""]
        raise HubError(f"{' '.join(command[:4])}: exit {result.returncode}: {last_line[0][:300]}")
    return result.stdout


def make_key(network: Network) -> None:
    """Create the head's key pair if it is missing. Only root may read the private key; everybody
    may read the public key.
    """
    private, public = Path(network.private_key), Path(network.public_key)
    if not private.exists():
        writing.replace(private, run("wg", "genkey").encode(), 0o600)
    public_key = run("wg", "pubkey", text=private.read_text(encoding="ascii"))
    if not public.exists() or public.read_text(encoding="ascii") != public_key:
        writing.replace(public, public_key.encode(), 0o644)


class Link:
    """The interface of a ``network`` with a tunnel."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.name = network.interface

    def require_ours(self) -> None:
        """HubError if another interface has the name, because our rules would cut the head off from
        its network.
        """
        kind = self._kind()
        if kind and kind not in _OUR_KINDS:
            raise HubError(
                f"join.network.interface: {self.name} is there already, and no tunnel ({kind}); "
                "name one that is free, such as wg-se"
            )

    def ensure(self) -> None:
        """Bring the interface up, with the head's key, port and address."""
        name, network = self.name, self._network
        if not self._kind():
            self._make()
        run("wg", "set", name, "listen-port", str(network.listen_port),
            "private-key", network.private_key)  # fmt: skip
        prefix = IPv4Network(network.subnet).prefixlen
        run("ip", "address", "replace", f"{head_address(network.subnet)}/{prefix}", "dev", name)
        run("ip", "link", "set", "dev", name, "mtu", str(network.mtu), "up")
        # Machines talk to each other through the head. Forward only packets from this interface.
        (_SYSCTL / name / "forwarding").write_text("1")

    def _make(self) -> None:
        try:
            run("ip", "link", "add", "dev", self.name, "type", "wireguard")
        except HubError:
            # The kernel has no WireGuard module. wireguard-go daemonises itself.
            run("wireguard-go", self.name)

    @property
    def how(self) -> str:
        """``kernel`` or ``wireguard-go``: which of them carries the packets."""
        return KERNEL if self._kind() == "wireguard" else USERSPACE

    def _kind(self) -> str:
        """Return the interface's kind, such as ``wireguard`` or ``tun``; "" if there is none."""
        for interface in json.loads(run("ip", "-json", "-details", "link", "show") or "[]"):
            if interface.get("ifname") == self.name:
                return str(interface.get("linkinfo", {}).get("info_kind", "unknown"))
        return ""

    def set_peers(self, peers: Sequence[TunnelPeer]) -> None:
        """Give the interface exactly these peers. Peers without a key are left out: they use no
        tunnel.
        """
        addresses_by_key = {p.key: (f"{p.address}/32",) for p in peers if p.key}
        present = {peer.key: peer.addresses for peer in self.peers()}
        removals = [("peer", key, "remove") for key in present.keys() - addresses_by_key.keys()]
        additions = [
            ("peer", key, "allowed-ips", ",".join(addresses))
            for key, addresses in addresses_by_key.items()
            if present.get(key) != addresses
        ]
        # Remove first: an address belongs to one peer, and wg would take it from the old one.
        for changes in (removals, additions):
            for begin in range(0, len(changes), PEERS_PER_COMMAND):
                arguments = [
                    word for change in changes[begin : begin + PEERS_PER_COMMAND] for word in change
                ]
                run("wg", "set", self.name, *arguments)

    def peers(self) -> tuple[PeerSeen, ...]:
        """Return the interface's present peers."""
        return tuple(seen_peers(run("wg", "show", self.name, "dump")))


def seen_peers(dump: str) -> list[PeerSeen]:
    """Parse ``wg show INTERFACE dump``. Its first line is the interface itself."""
    peers = []
    for line in dump.splitlines()[1:]:
        key, _, endpoint, addresses, handshake, received, sent, *_ = line.split("\t")
        peers.append(
            PeerSeen(
                key=key,
                addresses=() if addresses == "(none)" else tuple(addresses.split(",")),
                endpoint="" if endpoint == "(none)" else endpoint,
                handshake=int(handshake),
                received=int(received),
                sent=int(sent),
            )
        )
    return peers


def by_address(peers: Sequence[PeerSeen]) -> Mapping[str, PeerSeen]:
    """Return the peers by their addresses in the tunnel."""
    return {text.partition("/")[0]: peer for peer in peers for text in peer.addresses}
