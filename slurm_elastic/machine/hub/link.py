"""The tunnel's interface on the head, managed by ip(8) and wg(8).

The interface is created if it is missing. Only peers that differ are changed, so the connections of
the others are not interrupted.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base import writing
from slurm_elastic.machine.hub.wire import HubError, PeerSeen
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer, head_address

if TYPE_CHECKING:  # as in ``service``
    from slurm_elastic.config.sections.joining import Network

KEEPALIVE_S = 10
"""Between two packets to a machine that the head calls. They keep the way through NAT and firewalls
on the head's side open, and a machine learns the head's new address from the next one.
"""
SILENT_S = 30.0
"""A machine that the head calls and from which nothing came for so long gets a new handshake. It
sends a packet every 10 s, too.
"""
EXPIRED_S = 180.0
"""The same for machines that open the tunnel. A session of WireGuard ends after this time, so
nothing is lost if the peer is configured from scratch.
"""
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
SYSCTL = Path("/proc/sys/net/ipv4/conf")


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
        self._endpoints: dict[str, str] = {}
        self._heard: dict[str, tuple[int, float]] = {}

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
        (SYSCTL / name / "forwarding").write_text("1")

    def _make(self) -> None:
        try:
            run("ip", "link", "add", "dev", self.name, "type", "wireguard")
        except HubError:
            # The kernel has no WireGuard module. wireguard-go daemonises itself.
            run("wireguard-go", self.name)

    @property
    def how(self) -> str:
        """Return which program carries the packets: ``kernel`` or ``wireguard-go``."""
        return KERNEL if self._kind() == "wireguard" else USERSPACE

    def _kind(self) -> str:
        """Return the interface's kind, such as ``wireguard`` or ``tun``; "" if there is none."""
        for interface in json.loads(run("ip", "-json", "-details", "link", "show") or "[]"):
            if interface.get("ifname") == self.name:
                return str(interface.get("linkinfo", {}).get("info_kind", "unknown"))
        return ""

    def set_peers(self, peers: Sequence[TunnelPeer]) -> dict[str, str]:
        """Give the interface exactly these peers. Peers without a key are left out: they use no
        tunnel. Return, by key, why wg(8) refuses some of them. HubError if a peer that must go
        stays.
        """
        by_key = {p.key: p for p in peers if p.key}
        present = {peer.key: peer.addresses for peer in self.peers()}
        additions = [
            _settings(peer)
            for key, peer in by_key.items()
            if present.get(key) != (f"{peer.address}/32",)
            or self._endpoints.get(key, "") != peer.endpoint
        ]
        # Remove first: an address belongs to one peer, and wg would take it from the old one.
        self._remove(present.keys() - by_key.keys())
        refused = self._add(additions)
        self._endpoints = {key: p.endpoint for key, p in by_key.items() if key not in refused}
        return refused

    def call_silent(self, peers: Sequence[TunnelPeer], now: float) -> list[str]:
        """Start a new handshake with silent machines. Return the addresses of these machines.
        ``now``: monotonic.

        If the head opens the tunnels: a rebooted machine has no session and does not know where the
        head is. WireGuard itself would call it only after the end of the old session, in two or
        three minutes. If machines open them: WireGuard refuses a call that is dated before the
        last call, so a machine whose clock was set back is silent until its clock has caught up.
        """
        seen_by_key = {peer.key: peer for peer in self.peers()}
        silent_s = SILENT_S if self._network.head_opens else EXPIRED_S
        watched = [
            peer
            for peer in peers
            if (peer_seen := seen_by_key.get(peer.key)) is not None
            and (peer.endpoint or (peer.live and peer_seen.received))
        ]
        heard: dict[str, tuple[int, float]] = {}
        for peer in watched:
            earlier, received = self._heard.get(peer.key), seen_by_key[peer.key].received
            is_news = earlier is None or earlier[0] != received
            heard[peer.key] = (received, now) if is_news else earlier or (0, now)
        silent = [peer for peer in watched if now - heard[peer.key][1] >= silent_s]
        self._heard = heard | {peer.key: (0, now) for peer in silent}
        # Remove the peer and add it again: it has no session then, and WireGuard calls it at once.
        # Nor does it know the date of the machine's last call.
        self._remove([peer.key for peer in silent])
        self._add([_settings(peer, seen_by_key[peer.key].endpoint) for peer in silent])
        return [peer.address for peer in silent]

    def _remove(self, keys: Iterable[str]) -> None:
        for arguments in _in_commands([("peer", key, "remove") for key in keys]):
            run("wg", "set", self.name, *arguments)

    def _add(self, additions: Sequence[Sequence[str]]) -> dict[str, str]:
        """Add or change peers by their arguments of wg(8). Return the errors of refused peers, by
        key.
        """
        try:
            for arguments in _in_commands(additions):
                run("wg", "set", self.name, *arguments)
        except HubError:
            # wg refuses all peers of a command for one bad peer, so find the bad peer.
            return self._add_one_by_one(additions)
        return {}

    def _add_one_by_one(self, additions: Sequence[Sequence[str]]) -> dict[str, str]:
        refused: dict[str, str] = {}
        for arguments in additions:
            try:
                run("wg", "set", self.name, *arguments)
            except HubError as error:
                refused[arguments[1]] = str(error)
        return refused

    def peers(self) -> tuple[PeerSeen, ...]:
        """Return the interface's present peers."""
        return tuple(seen_peers(run("wg", "show", self.name, "dump")))


def _in_commands(changes: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """The arguments of the changes, for as many peers as fit into one command."""
    for begin in range(0, len(changes), PEERS_PER_COMMAND):
        yield [word for change in changes[begin : begin + PEERS_PER_COMMAND] for word in change]


def _settings(peer: TunnelPeer, last_endpoint: str = "") -> tuple[str, ...]:
    """The arguments of wg(8) that add or change the peer. ``last_endpoint``: where the machine's
    last packet came from, if it opens the tunnel.
    """
    allowed = ("peer", peer.key, "allowed-ips", f"{peer.address}/32")
    if peer.endpoint:
        return (*allowed, "endpoint", peer.endpoint, "persistent-keepalive", str(KEEPALIVE_S))
    return (*allowed, "endpoint", last_endpoint) if last_endpoint else allowed


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
