"""Keys that are good for enrolling only, once: for clouds that do not show consoles.

A launch has a word; of that and its node's name follows each machine's private key, by which the
hub lets it reach one port, for ten minutes after the launch at most. There it hands in its own
public key, and the other one is dead. A machine is told its key and no other's, or, where its cloud
tells all machines of a launch the same, the word (``programs/tunnel.py`` makes the key of it then).
The words follow from one secret of the head.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.bounded import Exceeded
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.server import Bounds, Client, Server
from slurm_elastic.machine.hub.link import run
from slurm_elastic.policies.repair.peers import ENROL_PORT, enrolment_key

log = logging.getLogger(__name__)

FILE = "enrolment.secret"
LONGEST = 64
"""Bytes of a line that a machine may send: its key has 44."""
LINE = 5.0
"""Seconds in which it comes, whole."""
CLIENTS, THREADS = 256, 16
PUBLIC_PARTS = 100_000
"""Public parts of keys that are kept, about."""
_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")
Take = Callable[[str, str], str]
"""From an address, a key; "" or why it is not taken."""


def word_of(state: Path, generation: str) -> str:
    """The word of a launch; the secret behind it is made at the first
    call. OSError where it cannot be kept.
    """
    # Derived and not drawn, so that a launch that is repeated tells its machines the same.
    return hmac.new(_secret(state / FILE), generation.encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    writing.create(path, secrets.token_bytes(32))  # where another thread was first, its one counts
    return path.read_bytes()


class Desk:
    """Where machines hand in their keys: at the head's address in the tunnel. Who asks is known by
    the address, as WireGuard lets nobody use another's. ``place`` is what it listens on: with port
    0, on any that is free.
    """

    def __init__(self, state: Path, address: str, take: Take, port: int = ENROL_PORT) -> None:
        self._state, self.place, self._take = state, (address, port), take
        self._server: Handing | None = None
        self._public: dict[tuple[str, str], str] = {}
        self._reports = ReportOnce[str]()

    def public_key(self, generation: str, node: str) -> str:
        """The public part of the key by which that machine enrols. HubError without wg(8)."""
        name = (generation, node)
        if name not in self._public:
            if len(self._public) > PUBLIC_PARTS:
                self._public.clear()
            private = enrolment_key(word_of(self._state, generation), node)
            self._public[name] = run("wg", "pubkey", text=private).strip()
        return self._public[name]

    @property
    def port(self) -> int | None:
        """Where it listens; None where it does not."""
        return self._server.port if self._server else None

    def open(self) -> None:
        """Listen, unless it does; what is in the way is told, and tried again."""
        if self._server is not None:
            return
        server = Handing(self.place, self._take)
        try:
            server.start()
        except OSError as error:
            if self._reports.is_news("port", str(error)):
                log.warning("machines cannot enrol yet: %s: %s", self.place, error)
        else:
            self._server = server

    def close(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()


class Handing(Server):
    """Machines with their keys, which are taken in turn; who is one too many comes again."""

    def __init__(self, place: tuple[str, int], take: Take) -> None:
        super().__init__("enrol", place, Bounds(clients=CLIENTS, line=LONGEST))
        self._take, self._taking = take, self.hands("enrol", THREADS)

    async def attend(self, client: Client) -> None:
        """Its key, and what is said to that."""
        said = "no key"
        with contextlib.suppress(Exceeded):
            line = (await client.line(LINE)).decode("ascii", "replace").strip()
            if _KEY.fullmatch(line):
                said = await self._taking.do(self._take, client.peer.address, line) or "ok"
        await client.send(f"{said}\n".encode(), LINE)
