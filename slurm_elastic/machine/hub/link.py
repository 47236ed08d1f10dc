"""The tunnel's interface on the head, by ip(8) and wg(8). It is made if missing, and its peers are
changed to the wanted ones; a peer that stays is not touched.
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
from slurm_elastic.policies.repair.peers import Peer, head_address

KERNEL, USERSPACE = "kernel", "wireguard-go"
_OURS = ("wireguard", "tun")
"""The kinds that our interface may have: the kernel's, and wireguard-go's."""
AT_ONCE = 500
"""Peers in one command; a command line has room for some thousand."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}
WITHIN = 20.0
_SYSCTL = Path("/proc/sys/net/ipv4/conf")


def run(*command: str, text: str | None = None) -> str:
    """The output of a command of the system; HubError with its message if it fails."""
    try:
        done = subprocess.run(
            command, env=ENVIRONMENT, input=text, stdin=None if text else subprocess.DEVNULL,
            capture_output=True, text=True, timeout=WITHIN, check=False, cwd="/",
        )  # fmt: skip
    except FileNotFoundError:
        raise HubError(f"{command[0]} is missing on the head: install its package") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HubError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or [""]
        raise HubError(f"{' '.join(command[:4])}: exit {done.returncode}: {said[0][:300]}")
    return done.stdout


def make_key(network: Network) -> None:
    """Make the head's key if there is none: only root may read the private part, all may read the
    public one.
    """
    private, public = Path(network.private_key), Path(network.public_key)
    if not private.exists():
        writing.replace(private, run("wg", "genkey").encode(), 0o600)
    shown = run("wg", "pubkey", text=private.read_text(encoding="ascii"))
    if not public.exists() or public.read_text(encoding="ascii") != shown:
        writing.replace(public, shown.encode(), 0o644)


class Link:
    """The interface of ``network``, which has a tunnel."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.name = network.interface

    def require_ours(self) -> None:
        """HubError if another interface has the name: our rules would cut the head off."""
        kind = self._kind()
        if kind and kind not in _OURS:
            raise HubError(
                f"join.network.interface: {self.name} is there already, and no tunnel ({kind}); "
                "name one that is free, such as wg-se"
            )

    def ensure(self) -> None:
        """Have the interface up, with the head's key and address."""
        name, network = self.name, self._network
        if not self._kind():
            self._make()
        run("wg", "set", name, "listen-port", str(network.listen_port),
            "private-key", network.private_key)  # fmt: skip
        prefix = IPv4Network(network.subnet).prefixlen
        run("ip", "address", "replace", f"{head_address(network.subnet)}/{prefix}", "dev", name)
        run("ip", "link", "set", "dev", name, "mtu", str(network.mtu), "up")
        # Machines may talk to each other: forward packets that come by this interface, no others.
        (_SYSCTL / name / "forwarding").write_text("1")

    def _make(self) -> None:
        try:
            run("ip", "link", "add", "dev", self.name, "type", "wireguard")
        except HubError:
            run("wireguard-go", self.name)  # it goes to the background by itself

    @property
    def how(self) -> str:
        """Whether the kernel or wireguard-go carries the packets."""
        return KERNEL if self._kind() == "wireguard" else USERSPACE

    def _kind(self) -> str:
        """The interface's kind, ``wireguard`` or ``tun``; "" if there is none."""
        for one in json.loads(run("ip", "-json", "-details", "link", "show") or "[]"):
            if one.get("ifname") == self.name:
                return str(one.get("linkinfo", {}).get("info_kind", "unknown"))
        return ""

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """Let the interface have exactly these peers."""
        wanted = {p.key: (f"{p.address}/32",) for p in peers if p.key}
        there = {one.key: one.addresses for one in self.peers()}
        gone = [("peer", key, "remove") for key in there.keys() - wanted.keys()]
        new = [
            ("peer", key, "allowed-ips", ",".join(own))
            for key, own in wanted.items()
            if there.get(key) != own
        ]
        for changes in (gone, new):  # first remove, as only one peer can have an address
            for begin in range(0, len(changes), AT_ONCE):
                words = [word for one in changes[begin : begin + AT_ONCE] for word in one]
                run("wg", "set", self.name, *words)

    def peers(self) -> tuple[PeerSeen, ...]:
        """The peers that the interface has."""
        return tuple(seen_peers(run("wg", "show", self.name, "dump")))


def seen_peers(dump: str) -> list[PeerSeen]:
    """The peers of ``wg show INTERFACE dump``, whose first line is the interface with its key."""
    found = []
    for line in dump.splitlines()[1:]:
        key, _, endpoint, addresses, handshake, received, sent, *_ = line.split("\t")
        found.append(
            PeerSeen(
                key=key,
                addresses=() if addresses == "(none)" else tuple(addresses.split(",")),
                endpoint="" if endpoint == "(none)" else endpoint,
                handshake=int(handshake),
                received=int(received),
                sent=int(sent),
            )
        )
    return found


def by_address(peers: Sequence[PeerSeen]) -> Mapping[str, PeerSeen]:
    """The peers by their address in the tunnel."""
    return {text.partition("/")[0]: one for one in peers for text in one.addresses}
