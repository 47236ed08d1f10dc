"""The messages between slurm-elasticd and the hub, and who asks. One JSON object a line::

{"op": "apply", "peers": [{"address": A, "key": K, "live": true}, ...]}   these, and no others
{"op": "show"}                                                           -> peers, how, plain
"""

from __future__ import annotations

import socket

import msgspec
from msgspec import Struct

from slurm_elastic.base.bounded import Budget, exchange
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.policies.repair.peers import Peer

MOST = 16 << 20
"""Most bytes of an answer; a peer takes a few hundred."""
TIMEOUT = 30.0


class HubError(SlurmElasticError):
    """The hub is not running, or failed; the next round tries again."""


class Apply(Struct, frozen=True, kw_only=True, tag_field="op", tag="apply"):
    """Let exactly these in."""

    peers: tuple[Peer, ...]


class Show(Struct, frozen=True, kw_only=True, tag_field="op", tag="show"):
    """The peers as the interface has them, and who is let in without a tunnel."""


Message = Apply | Show


class PeerSeen(Struct, frozen=True, kw_only=True):
    """A peer of the interface: where it last came from, when its last handshake was (Unix time, 0
    for never), and the bytes received and sent. A peer that is not ``live`` may hand in its key,
    and nothing else.
    """

    key: str
    addresses: tuple[str, ...]
    endpoint: str = ""
    handshake: int = 0
    received: int = 0
    sent: int = 0
    live: bool = True


class HubAnswer(Struct, frozen=True, kw_only=True):
    """The hub's answer. ``how``: ``kernel`` or ``wireguard-go``, "" without a tunnel. ``plain``:
    the addresses that are let in without one.
    """

    ok: bool
    message: str = ""
    peers: tuple[PeerSeen, ...] = ()
    how: str = ""
    plain: tuple[str, ...] = ()


def ask(path: str, message: Message, timeout: float = TIMEOUT) -> HubAnswer:
    """The hub's answer; HubError if there is none, or if the hub failed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            line = exchange(connection, msgspec.json.encode(message), Budget(MOST, timeout))
        answer = msgspec.json.decode(line, type=HubAnswer)
    except (OSError, msgspec.DecodeError) as error:
        raise HubError(f"slurm-elastic-hub at {path} does not answer: {error}") from None
    if not answer.ok:
        raise HubError(f"slurm-elastic-hub: {answer.message}")
    return answer
