"""The hub's two requests, for root and SlurmUser: ``apply`` and ``show``.

A client can admit and remove machines of the tunnel's subnet. It can change no other interface and
no other nftables table, and cannot read the head's private key. A file beside the socket
(``peers_file``) keeps the last list of peers, so that a restarted hub admits the same machines.

Two heads have the same key, and a machine has one peer for it: each packet of the head that does
not act takes the tunnel away from the head that acts. So only the hub of the acting head has peers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.machine.hub.link import Link, make_key, run
from slurm_elastic.machine.hub.ports import SlurmPorts, slurm_ports
from slurm_elastic.machine.hub.rules import table, table_name
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError, Message
from slurm_elastic.policies.repair.tunnel_addresses import (
    TunnelPeer,
    endpoint_of,
    head_address,
    is_public_key,
)

if TYPE_CHECKING:  # root's program gets these settings, and loads no configuration
    from slurm_elastic.config.sections.joining import Network

log = logging.getLogger(__name__)

_PEERS = "peers.json"
CALL_S = 5.0
"""Between two looks for silent machines, if the head opens the tunnels."""
LOOK_S = 1.0
"""Between two looks at who acts. A takeover begins with an epoch of the other head."""
MAX_SHOWN = 60
"""Characters of a peer's wrong text that a message shows."""


class PortsUnknownError(HubError):
    """slurm.conf could not be read since the hub has started."""


class Hub:
    """Answers one request after the other. Call ``start`` first.

    ``other_head``: returns the other head that acts, "" if it does not act; it raises OSError or
    SlurmElasticError if it cannot find out.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded(
            "_enrolling", "_plain", "_admitted", "_ports", "_is_empty", "_acting", "_reports"
        )
    }

    def __init__(
        self, network: Network, slurm_conf: str, other_head: Callable[[], str] = lambda: ""
    ) -> None:
        self._network, self._slurm_conf = network, slurm_conf
        self._link = Link(network) if network.tunnels else None
        self._peers_file = peers_file(network)
        self._lock = Lock()
        self._enrolling: frozenset[str] = frozenset()
        self._plain: tuple[str, ...] = ()
        self._admitted: tuple[TunnelPeer, ...] = ()
        self._ports: SlurmPorts | None = None
        self._is_empty = False
        self._other_head, self._acting = other_head, ""
        self._reports = ReportOnce[str]()

    def start(self) -> None:
        """Create the key if it is missing, and admit the machines of the last list. It may raise
        HubError.
        """
        if self._link is not None:
            make_key(self._network)
        log.info("rules table=%s peers=%s", table_name(self._network), self._peers_file)
        try:
            peers = msgspec.json.decode(self._peers_file.read_bytes(), type=tuple[TunnelPeer, ...])
        except (FileNotFoundError, msgspec.DecodeError, ValueError) as error:
            log.info("no machine is admitted yet, the last list of peers cannot be used: %s", error)
            peers = ()
        with self._lock:
            peers = () if self._look_who_acts() else peers
            try:
                self._apply(peers)
            except PortsUnknownError as error:
                # slurm-elasticd sends its list again and again, and reports this error.
                log.warning("rules and peers stay as they are: %s", error)

    def keep_apart(self) -> None:
        """Remove all peers whenever the other head begins to act; for a thread of its own. It does
        not return.
        """
        while True:
            sleep(LOOK_S)
            try:
                self.step_back()
            except (HubError, OSError) as error:
                log.warning("the peers stay although the other head acts: %s", error)

    def step_back(self) -> None:
        """Remove all peers if the other head acts. The hub checks itself, because
        slurm-elasticd of this host may be dead.
        """
        with self._lock:
            # Look under the lock: slurm-elasticd may begin an epoch and apply its peers after it.
            if self._look_who_acts() and not self._is_empty:
                log.info("no machine is admitted here, host=%s acts", self._acting)
                self._apply(())

    def _look_who_acts(self) -> str:
        """The other head that acts, "" if it does not act. While the hub cannot find out, the last
        answer counts, because the hub of the acting head must not shut its machines out.
        """
        try:
            self._acting = self._other_head()
        except (OSError, SlurmElasticError) as error:
            if self._reports.is_news("who acts", str(error)):
                log.warning("it is not known which head acts: %s", error)
        else:
            self._reports.clear("who acts")
        return self._acting

    def keep_calling(self) -> None:
        """Call silent machines again and again; for a thread of its own. It does not return."""
        while True:
            sleep(CALL_S)
            try:
                self.call_silent(monotonic())
            except (HubError, OSError) as error:
                log.warning("silent machines not called: %s", error)

    def call_silent(self, now: float) -> None:
        """Start a new handshake with silent machines."""
        with self._lock:
            if self._link is None:
                return
            for address in self._link.call_silent(self._admitted, now):
                log.info("silent, calling it again address=%s", address)

    def answer(self, line: bytes) -> bytes:
        """Answer a request line. An invalid request gets an error and changes nothing."""
        try:
            with self._lock:
                answer = self._answer(msgspec.json.decode(line, type=Message))
        except (msgspec.DecodeError, ValueError, RecursionError, HubError, OSError) as error:
            log.warning("refused or failed: %s", error)
            answer = HubAnswer(ok=False, message=str(error))
        return msgspec.json.encode(answer)

    def _answer(self, message: Message) -> HubAnswer:
        if isinstance(message, Apply):
            # slurm-elasticd may have been frozen, and not know yet that the other head acts.
            if other := self._look_who_acts():
                raise HubError(f"{other} acts: only its hub admits machines")
            left_out = self._apply(message.peers)
            how = self._link.how if self._link else ""
            return HubAnswer(ok=True, how=how, left_out=left_out)
        answer = HubAnswer(ok=True, plain=self._plain, other_head=self._acting)
        if self._link is None:
            return answer
        peers = (replace(p, live=p.key not in self._enrolling) for p in self._link.peers())
        return replace(answer, peers=tuple(peers), how=self._link.how)

    def _apply(self, asked_for: Sequence[TunnelPeer]) -> dict[str, str]:
        """Admit these peers and no others. Return, by address, why some of them are left out."""
        self._is_empty = False  # until all steps have succeeded
        peers, left_out = admissible_peers(self._network, asked_for)
        # After its start the daemon knows no endpoint until it has read the clouds.
        endpoints = {p.key: p.endpoint for p in self._admitted}
        peers = tuple(
            p if p.endpoint else replace(p, endpoint=endpoints.get(p.key, "")) for p in peers
        )
        ports = self._read_ports()
        if self._link is not None:
            self._link.require_ours()
        # Rules first, peers second: a peer must not exist before the rules cover it.
        run("nft", "-f", "-", text=table(self._network, peers, ports))
        if self._link is not None:
            self._link.ensure()
            refused = self._link.set_peers(peers)
            left_out |= {p.address: refused[p.key] for p in peers if p.key in refused}
            peers = tuple(p for p in peers if p.key not in refused)
        self._enrolling = frozenset(p.key for p in peers if not p.live)
        self._plain = tuple(p.address for p in peers if not p.key)
        self._admitted = peers
        # Last, when the kernel has the peers: after a restart the hub must not admit what was
        # refused.
        writing.replace(self._peers_file, msgspec.json.encode(list(peers)), 0o600)
        self._is_empty = not peers
        for address, reason in left_out.items():
            log.warning("left out address=%s reason=%s", address, reason)
        return left_out

    def _read_ports(self) -> SlurmPorts:
        """Slurm's ports; the last known ones while slurm.conf cannot be read. Slurm's defaults
        would cut the machines of many sites off, and open other ports.
        """
        try:
            self._ports = slurm_ports(self._slurm_conf)
        except ConfigError as error:
            if self._ports is None:
                raise PortsUnknownError(f"Slurm's ports are not known: {error}") from error
            if self._reports.is_news("ports", str(error)):
                log.warning("Slurm's ports stay as they were: %s", error)
        else:
            self._reports.clear("ports")
        return self._ports


def peers_file(network: Network) -> Path:
    """The file with the hub's last list of peers, beside its socket. Two sockets may have one
    directory, so a file whose socket has not the default name begins with the socket's name.
    """
    socket = Path(network.socket)
    return socket.with_name(_PEERS if socket.name == "hub.sock" else f"{socket.name}.{_PEERS}")


def admissible_peers(
    network: Network, peers: Sequence[TunnelPeer]
) -> tuple[tuple[TunnelPeer, ...], dict[str, str]]:
    """Return the peers that may be admitted, and by address why the others are left out. Keys and
    addresses come from machines and clouds, so a bad one must cost its own machine only.
    """
    # Keys that may only enrol come first. The head has made them, so a machine that offers such
    # a key as its own lies. `sorted` keeps the order of the others.
    admitted: list[TunnelPeer] = []
    left_out: dict[str, str] = {}
    addresses, keys = set[str](), set[str]()
    for peer in sorted(peers, key=lambda peer: peer.live):
        flaw = _flaw(network, peer)
        if not flaw and (peer.address in addresses or peer.key in keys):
            flaw = "another machine has this address or key"
        if flaw:
            left_out.setdefault(peer.address[:MAX_SHOWN], flaw)
            continue
        admitted.append(peer)
        addresses.add(peer.address)
        keys |= {peer.key} if peer.key else set()
    return tuple(admitted), left_out


def _flaw(network: Network, peer: TunnelPeer) -> str:
    """Why this peer alone may not be admitted; "" if it may."""
    subnet, head = IPv4Network(network.subnet), head_address(network.subnet)
    try:
        address = IPv4Address(peer.address)
    except ValueError as error:
        return str(error)
    if peer.key and (not network.tunnels or address not in subnet or peer.address == head):
        return f"it is no address of a machine in {subnet}"
    if not peer.key and (not peer.live or (network.tunnels and address in subnet)):
        return "it is an address of the tunnel, and has no key"
    if peer.key and not is_public_key(peer.key):
        return f"{peer.key[:MAX_SHOWN]!r} is no public key"
    if peer.endpoint and not _may_call(network, peer):
        return f"{peer.endpoint[:MAX_SHOWN]!r} is no UDP port of a machine outside"
    return ""


def _may_call(network: Network, peer: TunnelPeer) -> bool:
    """Whether the head may call the peer's endpoint: only if it opens the tunnels, only at the one
    port, and not through the tunnel itself.
    """
    address = peer.endpoint.rpartition(":")[0].strip("[]")
    allowed = endpoint_of(address, network.udp_port, network.inside)
    return network.head_opens and bool(peer.key) and peer.endpoint == allowed
