"""The messages between slurm-elasticd and the hub: one JSON object per line::

{"op": "apply", "peers": [{"address": A, "key": K, "live": true}, ...]}   these, and no others
{"op": "show"}                                                           -> peers, how, plain
"""

from __future__ import annotations

import socket

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.bounded import ReadBudget, exchange
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer

MAX_ANSWER_BYTES = 16 << 20
"""A peer takes a few hundred bytes."""
TIMEOUT_S = 30.0


class HubError(SlurmElasticError):
    """The hub is not running or failed. The daemon's next round retries."""


class HubDeniedError(HubError):
    """Only root and SlurmUser may ask the hub."""


_DENIED = "NotPermitted"
"""The code with which the hub's socket answers other users."""


class Apply(Struct, frozen=True, kw_only=True, tag_field="op", tag="apply"):
    """Admit exactly these peers."""

    peers: tuple[TunnelPeer, ...]


class Show(Struct, frozen=True, kw_only=True, tag_field="op", tag="show"):
    """Ask for the interface's peers, and for the addresses admitted without a tunnel."""


Message = Apply | Show


class PeerSeen(Struct, frozen=True, kw_only=True):
    """A peer as the interface shows it.

    ``endpoint``: the address of its last packet. ``handshake``: Unix time of the last handshake (0:
    never). ``received`` and ``sent``: bytes. A peer without ``live`` may only enrol its key.
    """

    key: str
    addresses: tuple[str, ...]
    endpoint: str = ""
    handshake: int = 0
    received: int = 0
    sent: int = 0
    live: bool = True


class HubAnswer(Struct, frozen=True, kw_only=True):
    """The hub's answer.

    ``code``: why it refuses, for programs. ``how``: ``kernel`` or ``wireguard-go``, "" without a
    tunnel. ``plain``: addresses admitted without a tunnel. ``left_out``: by address, why a peer
    was not admitted; all others were. ``other_head``: the other head that acts, for which this hub
    has no peers; "" if none does.
    """

    ok: bool
    message: str = ""
    code: str = ""
    peers: tuple[PeerSeen, ...] = ()
    how: str = ""
    plain: tuple[str, ...] = ()
    left_out: dict[str, str] = {}
    other_head: str = ""


def ask(path: str, message: Message, timeout: float = TIMEOUT_S) -> HubAnswer:
    """Return the hub's answer. HubError if the hub does not answer or reports an error,
    HubDeniedError if we may not ask it.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            line = exchange(
                connection, msgspec.json.encode(message), ReadBudget(MAX_ANSWER_BYTES, timeout)
            )
        answer = msgspec.json.decode(line, type=HubAnswer)
    except (OSError, msgspec.DecodeError) as error:
        kind = HubDeniedError if isinstance(error, PermissionError) else HubError
        raise kind(f"slurm-elastic-hub at {path} does not answer: {error}") from None
    if not answer.ok:
        kind = HubDeniedError if answer.code == _DENIED else HubError
        raise kind(f"slurm-elastic-hub: {answer.message}")
    return answer
