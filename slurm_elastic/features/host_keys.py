"""The host keys of machines: as their consoles print them, and the file that keeps them.

``StateDir/known_hosts`` has one entry a key for each living machine whose key is known, in
OpenSSH's form (sshd(8)) with the machine's id as comment: an admin may use it, too.
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
# cloud-init's words, module keys-to-console.
_BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
_END = "-----END SSH HOST KEY KEYS-----"
CONSOLE_READ = 1 << 18
"""Characters of a console, the last ones, that are looked at: clouds keep fewer."""
MOST_KEYS = 16
"""The host keys of one machine: sshd has a handful of kinds."""
_ENTRY = re.compile(rf"(\S+) ({_KINDS}) (\S+) (\S+)")


class HostKey(Struct, frozen=True, order=True):
    """A public host key: its kind (``ssh-ed25519``) and its base64 text."""

    kind: str
    text: str


def host_key(line: str) -> HostKey:
    """The key of a line such as ``ssh-ed25519 AAAA... comment``; ValueError for anything else."""
    found = _KEY.match(line)
    if found is None:
        raise ValueError(f"{line[:40]!r} is no public key")
    return HostKey(*found.groups())


def printed_keys(console: str) -> tuple[HostKey, ...]:
    """The keys that cloud-init has printed on a machine's console, of its last boot."""
    text = console[-CONSOLE_READ:]
    end = text.rfind(_END)
    begin = text.rfind(_BEGIN, 0, max(end, 0))
    if begin < 0:
        return ()
    return tuple(HostKey(*found) for found in _KEY.findall(text[begin:end])[:MOST_KEYS])


class KnownHosts:
    """The file; not thread-safe. An address belongs to the machine that was put there last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, tuple[str, tuple[HostKey, ...]]] = {}
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            if found := _ENTRY.fullmatch(line):
                host, kind, text, machine = found.groups()
                before = self._keys.get(machine, (host, ()))[1]
                self._keys[machine] = host, (*before, HostKey(kind, text))

    def keys(self, machine: str, address: str, port: int) -> tuple[HostKey, ...]:
        """The keys that the machine must show one of; none where they are not known yet."""
        host, keys = self._keys.get(machine, ("", ()))
        return keys if host == _host(address, port) else ()

    def put(self, machine: str, address: str, port: int, keys: Iterable[HostKey]) -> None:
        """The machine has these; what another one had at that address is forgotten."""
        host = _host(address, port)
        self._keys = {m: entry for m, entry in self._keys.items() if entry[0] != host}
        self._keys[machine] = host, tuple(keys)
        self._write()

    def keep(self, machines: Iterable[str]) -> None:
        """Forget all but these."""
        alive = set(machines)
        left = {m: entry for m, entry in self._keys.items() if m in alive}
        if left != self._keys:
            self._keys = left
            self._write()

    @property
    def machines(self) -> Mapping[str, str]:
        """The host of each machine whose keys are known, as the file has it."""
        return {machine: host for machine, (host, _) in self._keys.items()}

    def _write(self) -> None:
        lines = [
            f"{host} {key.kind} {key.text} {machine}\n"
            for machine, (host, keys) in sorted(self._keys.items())
            for key in keys
        ]
        writing.replace(self._path, "".join(lines).encode(), 0o644)


def _host(address: str, port: int) -> str:
    """As OpenSSH writes it: brackets where the port is another one."""
    return address if port == 22 else f"[{address}]:{port}"
