"""The host keys of machines: reads them from console output, and keeps them in a file.

``StateDir/known_hosts`` has one line for each known key of each living machine, in OpenSSH's
format (sshd(8)) with the machine's id as comment. An admin can use the file, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import writing

log = logging.getLogger(__name__)


_KINDS = r"ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)"
_KEY = re.compile(rf"\b({_KINDS}) ([A-Za-z0-9+/]{{40,1400}}={{0,2}})")
# The markers that cloud-init's module keys-to-console prints.
_BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
_END = "-----END SSH HOST KEY KEYS-----"
CONSOLE_READ = 1 << 18
"""The number of characters at the end of a console that are searched. Clouds keep fewer."""
MAX_KEYS = 16
"""At most this many host keys per machine are read. sshd has one for each of a few kinds."""
_ENTRY = re.compile(rf"(\S+) ({_KINDS}) (\S+) (\S+)")


class HostKey(Struct, frozen=True, order=True):
    """A public host key: its kind (``ssh-ed25519``) and its base64 text."""

    kind: str
    text: str


def host_key(line: str) -> HostKey:
    """The key of a line such as ``ssh-ed25519 AAAA... comment``; ValueError for anything else."""
    match = _KEY.match(line)
    if match is None:
        raise ValueError(f"{line[:40]!r} is no public key")
    return HostKey(*match.groups())


def printed_keys(console: str) -> tuple[HostKey, ...]:
    """The host keys that cloud-init printed on a machine's console at its last boot."""
    text = console[-CONSOLE_READ:]
    end = text.rfind(_END)
    begin = text.rfind(_BEGIN, 0, max(end, 0))
    if begin < 0:
        return ()
    return tuple(HostKey(*match) for match in _KEY.findall(text[begin:end])[:MAX_KEYS])


class KnownHosts:
    """The ``known_hosts`` file. Not thread-safe. If several machines had an address, it belongs to
    the machine that was added last.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, tuple[str, tuple[HostKey, ...]]] = {}
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            if match := _ENTRY.fullmatch(line):
                host, kind, text, machine = match.groups()
                earlier_keys = self._keys.get(machine, (host, ()))[1]
                self._keys[machine] = host, (*earlier_keys, HostKey(kind, text))

    def keys(self, machine: str, address: str, port: int) -> tuple[HostKey, ...]:
        """The keys of which the machine must show one; empty if its keys are not known yet."""
        host, keys = self._keys.get(machine, ("", ()))
        return keys if host == _host(address, port) else ()

    def put(self, machine: str, address: str, port: int, keys: Iterable[HostKey]) -> None:
        """Set the machine's keys. Remove any other machine with the same address and port."""
        host = _host(address, port)
        self._keys = {m: entry for m, entry in self._keys.items() if entry[0] != host}
        self._keys[machine] = host, tuple(keys)
        self._write()

    def keep(self, machines: Iterable[str]) -> None:
        """Remove all machines except these."""
        alive = set(machines)
        kept_keys = {m: entry for m, entry in self._keys.items() if m in alive}
        if kept_keys != self._keys:
            self._keys = kept_keys
            self._write()

    @property
    def machines(self) -> Mapping[str, str]:
        """By machine id: the host as written in the file."""
        return {machine: host for machine, (host, _) in self._keys.items()}

    def _write(self) -> None:
        lines = [
            f"{host} {key.kind} {key.text} {machine}\n"
            for machine, (host, keys) in sorted(self._keys.items())
            for key in keys
        ]
        writing.replace(self._path, "".join(lines).encode(), 0o644)


def _host(address: str, port: int) -> str:
    """The host in OpenSSH's format: in brackets with the port, unless the port is 22."""
    return address if port == 22 else f"[{address}]:{port}"
