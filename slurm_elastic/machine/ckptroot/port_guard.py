"""Reserve a port of this host for one user, for as long as we live.

nftables' rules do this, in a table that the kernel removes when the process that owns it ends
(nft(8), flags owner). No rule outlives its session, however that ends. Root chooses the port: if
a user could choose it, the rules could block another user's service.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import time

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
    'chain input {{ type filter hook input priority 0; iifname "lo" accept; '
    "tcp dport {port} reject with tcp reset; }}; }}\n"
)


class Guard:
    """The rules for ``port``, until ``close``, or until the process ``owner`` ends."""

    def __init__(self, port: int, owner: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.owner = owner

    def close(self) -> None:
        """Open the port to everybody again."""
        _end(self.owner)


def guarded(uid: int) -> Guard | None:
    """Guard a free port for that user and root. None if nft is missing or may not set rules
    here.
    """
    port = free_port()
    if port is None:
        return None
    name = f"slurm_elastic_port_{port}"
    try:
        owner = subprocess.Popen(
            # Interactive, so that the process stays and owns the table.
            ["nft", "-i"], env=PATH, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=_ignore_signals, start_new_session=True, cwd="/",
        )  # fmt: skip
    except OSError:
        return None
    rules = _RULES.format(name=name, uid=uid, port=port)
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
    """Ignore signals to all of a job's processes (scancel --full)."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
