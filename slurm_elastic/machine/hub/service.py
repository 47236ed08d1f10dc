"""What the hub can be asked by root and SlurmUser: ``apply`` and ``show``, nothing else.

Whoever asks may let machines in and out, within the tunnel's subnet, but reaches no other
interface, no other table, and never the head's private key. ``PEERS``, beside the socket, keeps the
last table, so that a hub that restarts lets in the same machines as before.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from threading import Lock
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from slurm_elastic.base import writing
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config.joining import Network
from slurm_elastic.machine.hub.link import Link, make_key, run
from slurm_elastic.machine.hub.ports import slurm_ports
from slurm_elastic.machine.hub.rules import table
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError, Message
from slurm_elastic.policies.repair.peers import Peer, head_address

log = logging.getLogger(__name__)

PEERS = "peers.json"
KEY_BYTES = 32


class Hub:
    """Answers one message after the other; call ``start`` first."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_enrolling", "_plain")}

    def __init__(self, network: Network, slurm_conf: str) -> None:
        self._network, self._slurm_conf = network, slurm_conf
        self._link = Link(network) if network.tunnels else None
        self._kept = Path(network.socket).with_name(PEERS)
        self._lock = Lock()
        self._enrolling: frozenset[str] = frozenset()
        self._plain: tuple[str, ...] = ()

    def start(self) -> None:
        """Make the key if there is none, and let in the machines that an earlier hub let in.
        HubError.
        """
        if self._link is not None:
            make_key(self._network)
        try:
            peers = msgspec.json.decode(self._kept.read_bytes(), type=tuple[Peer, ...])
            check(self._network, peers)  # the configuration may have changed since
        except (FileNotFoundError, msgspec.DecodeError, ValueError) as error:
            log.info("nobody is let in yet: %s", error)
            peers = ()
        with self._lock:
            self._apply(peers)

    def answer(self, line: bytes) -> bytes:
        """The answer to a line. A mistake in the request is told and changes nothing."""
        try:
            with self._lock:
                answer = self._answer(msgspec.json.decode(line, type=Message))
        except (msgspec.DecodeError, ValueError, RecursionError, HubError, OSError) as error:
            log.warning("refused or failed: %s", error)
            answer = HubAnswer(ok=False, message=str(error))
        return msgspec.json.encode(answer)

    def _answer(self, message: Message) -> HubAnswer:
        if isinstance(message, Apply):
            check(self._network, message.peers)
            self._apply(message.peers)
            return HubAnswer(ok=True, how=self._link.how if self._link else "")
        if self._link is None:
            return HubAnswer(ok=True, plain=self._plain)
        seen = (replace(p, live=p.key not in self._enrolling) for p in self._link.peers())
        return HubAnswer(ok=True, peers=tuple(seen), how=self._link.how, plain=self._plain)

    def _apply(self, peers: Sequence[Peer]) -> None:
        """Let in these, and no others."""
        if self._link is not None:
            self._link.require_ours()
        # Before the peers: nobody becomes one before the rules cover him.
        run("nft", "-f", "-", text=table(self._network, peers, slurm_ports(self._slurm_conf)))
        if self._link is not None:
            self._link.ensure()
            self._link.set_peers(peers)
        self._enrolling = frozenset(p.key for p in peers if not p.live)
        self._plain = tuple(p.address for p in peers if not p.key)
        writing.replace(self._kept, msgspec.json.encode(list(peers)), 0o600)


def check(network: Network, peers: Sequence[Peer]) -> None:
    """ValueError if somebody asks for what he may not have."""
    subnet, head = IPv4Network(network.subnet), head_address(network.subnet)
    for one in peers:
        address = IPv4Address(one.address)
        if one.key and (not network.tunnels or address not in subnet or one.address == head):
            raise ValueError(f"{one.address} is no address of a machine in {subnet}")
        if not one.key and (not one.live or (network.tunnels and address in subnet)):
            raise ValueError(f"{one.address} is an address of the tunnel, and has no key")
        if one.key and not _is_key(one.key):
            raise ValueError(f"{one.key[:60]!r} is no public key")
    for what in ([p.address for p in peers], [p.key for p in peers if p.key]):
        if len(set(what)) != len(what):
            raise ValueError("an address or a key twice")


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == KEY_BYTES and len(text) == 44
    except (ValueError, binascii.Error):
        return False
