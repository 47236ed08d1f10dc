"""Reserve a port of this host for one user, for as long as we live.

nftables' rules do this, in a table that the kernel removes when the process that owns it ends
(nft(8), flags owner). No rule outlives its session, however that ends. Root chooses the port: if
a user could choose it, the rules could block another user's service.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

_LOWEST_PORT, _HIGHEST_PORT = 20_000, 32_000
"""Below the kernel's ephemeral ports (net.ipv4.ip_local_port_range), above those of services."""
_MAX_TRIES = 50
_NFT_TIMEOUT_S = 5.0
"""Seconds that nft may take to set its rules."""
PATH = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
_RULES = (
    "table inet {name} {{ flags owner; "
    "chain output {{ type filter hook output priority 0; "
    "meta skuid 0 accept; meta skuid {uid} accept; tcp dport {port} reject with tcp reset; }}; "
    'chain input {{ type filter hook input priority 0; iifname "lo" accept; {peers}'
    "tcp dport {port} reject with tcp reset; }}; }}\n"
)
_PEERS = "ip saddr {{ {addresses} }} tcp dport {port} accept; "
_OF_PEER = (
    "table inet {name} {{ flags owner; "
    "chain output {{ type filter hook output priority 0; meta skuid 0 accept; "
    "meta skuid {uid} accept; ip daddr {address} tcp dport {port} reject with tcp reset; }}; }}\n"
)


class Guard:
    """The rules for ``port``, until ``close``, or until the process ``owner`` ends."""

    def __init__(self, port: int, owner: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.owner = owner

    def close(self) -> None:
        """Open the port to everybody again."""
        _end(self.owner)


def guarded(uid: int, peers: Sequence[str] = ()) -> Guard | None:
    """Guard a free port for that user and root, here and on the hosts ``peers``, which have a guard
    of their own. None if nft is missing or may not set rules here.
    """
    port = free_port()
    if port is None:
        return None
    name = f"slurm_elastic_port_{port}"
    addresses = _PEERS.format(addresses=", ".join(peers), port=port) if peers else ""
    return _ruled(name, port, _RULES.format(name=name, uid=uid, port=port, peers=addresses))


def guarded_peer(uid: int, address: str, port: int) -> Guard | None:
    """Guard another host's port on this host: only that user and root may connect to it from here.

    Returns None in the same cases as ``guarded``.
    """
    # Two nodes may be slurmds of one host: each has a table of its own.
    name = f"slurm_elastic_peer_{port}_{os.getpid()}"
    rules = _OF_PEER.format(name=name, uid=uid, address=address, port=port)
    return _ruled(name, port, rules)


def is_guarded_port(port: int) -> bool:
    """Return whether ``guarded`` may have chosen the port."""
    return _LOWEST_PORT <= port <= _HIGHEST_PORT


def _ruled(name: str, port: int, rules: str) -> Guard | None:
    try:
        owner = subprocess.Popen(
            # Interactive, so that the process stays and owns the table.
            ["nft", "-i"], env=PATH, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=_ignore_signals, start_new_session=True, cwd="/",
        )  # fmt: skip
    except OSError:
        return None
    if _send_rules(owner, rules) and _is_active(name, owner):
        return Guard(port, owner)
    _end(owner)
    return None


def _send_rules(owner: subprocess.Popen[bytes], rules: str) -> bool:
    if owner.stdin is None:
        return False
    with contextlib.suppress(OSError):
        owner.stdin.write(rules.encode())
        owner.stdin.flush()
        return True
    return False


def is_free(port: int) -> bool:
    """Return whether no program listens on the port now."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        # Ended connections of the port (TIME_WAIT, tcp(7)) must not make it look busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        return True
    return False


def free_port() -> int | None:
    """Return a port on which no program listens now, or None."""
    for _ in range(_MAX_TRIES):
        port = random.randint(_LOWEST_PORT, _HIGHEST_PORT)  # noqa: S311 - it is no secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    return None


def _is_active(name: str, owner: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + _NFT_TIMEOUT_S
    while owner.poll() is None and time.monotonic() < until:
        command = ["nft", "list", "table", "inet", name]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            result = subprocess.run(
                command, env=PATH, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                timeout=_NFT_TIMEOUT_S,
            )  # fmt: skip
            if result.returncode == 0:
                return True
        time.sleep(0.02)
    return False


def _end(owner: subprocess.Popen[bytes]) -> None:
    owner.kill()
    # Closing its pipe flushes data that it has not read.
    with contextlib.suppress(BrokenPipeError), owner:
        pass


def _ignore_signals() -> None:
    """Ignore the signals that Slurm sends to all of a job's processes (scancel --full)."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
