"""Keys with which a machine can only enrol, and only once: for clouds that show no consoles.

Each launch has a secret word. A machine's enrolment key is derived from the word and the name of
its node. The hub lets a machine with this key reach one port, for at most ten minutes after the
launch, or for the cloud's ``resume_timeout`` if that is longer. There the machine hands in its own
public key, and the enrolment key becomes invalid. A machine gets only its own key. If the
cloud gives all machines of a launch the same user data, they get the word, and
``programs/tunnel.py`` derives the key. The words are derived from one secret of the head.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.processes.bounded import Exceeded
from slurm_elastic.base.processes.server import Server, ServerBounds, ServerClient
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.machine.hub.link import run
from slurm_elastic.policies.repair.tunnel_addresses import ENROL_PORT, enrolment_key, is_public_key

log = logging.getLogger(__name__)

FILE = "enrolment.secret"
MAX_LINE_BYTES = 64
"""Limit of the line that a machine sends; a key has 44 bytes."""
LINE_TIMEOUT_S = 5.0
"""Time-out for receiving the whole line, and for sending the answer."""
CLIENTS, THREADS = 256, 16
MAX_PUBLIC_KEYS = 100_000
"""The cache of public keys is cleared when it has more entries than this."""
Take = Callable[[str, str], str]
"""Takes the address of a machine and its public key; returns "" or why it refuses the key."""


def word_of(state: Path, generation: str) -> str:
    """The secret word of a launch, derived from the head's secret, which the first call creates.
    OSError if the secret's file cannot be read or written.
    """
    # Derived, not random: a repeated launch must give its machines the same word.
    return keyed_digest(state, generation.encode())


def keyed_digest(state: Path, content: bytes) -> str:
    """A digest of the content that only this cluster's heads can compute, by the head's secret,
    which the first call creates. OSError if the secret's file cannot be read or written.
    """
    # Two heads share the file: the other one must derive the same words after a takeover.
    return hmac.new(_secret((state / FILE).resolve()), content, hashlib.sha256).hexdigest()


def _secret(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    # If another thread creates the file first, `create` keeps that thread's file. Read the file,
    # because our own bytes may not be in it.
    writing.create(path, secrets.token_bytes(32))
    return path.read_bytes()


class Desk:
    """The port at the head's address in the tunnel where machines hand in their keys. A machine is
    identified by its address: WireGuard accepts from each key only packets with that key's address.
    ``place``: address and port to listen on; port 0 means any free port.
    """

    def __init__(self, state: Path, address: str, take: Take, port: int = ENROL_PORT) -> None:
        self._state, self.place, self._take = state, (address, port), take
        self._server: Handing | None = None
        self._public: dict[tuple[str, str], str] = {}
        self._reports = ReportOnce[str]()

    def public_key(self, generation: str, node: str) -> str:
        """The public part of the machine's enrolment key. HubError if wg(8) fails or is missing."""
        name = (generation, node)
        if name not in self._public:
            if len(self._public) > MAX_PUBLIC_KEYS:
                self._public.clear()
            private = enrolment_key(word_of(self._state, generation), node)
            self._public[name] = run("wg", "pubkey", text=private).strip()
        return self._public[name]

    @property
    def port(self) -> int | None:
        """The port that it listens on; None if it does not listen."""
        return self._server.port if self._server else None

    def open(self) -> None:
        """Listen, unless it already does. An error is logged once, and the next call retries."""
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
        """Stop listening."""
        if self._server is not None:
            self._server.close()


class Handing(Server):
    """The server of a ``Desk``. A machine beyond the client limit is rejected and retries."""

    def __init__(self, place: tuple[str, int], take: Take) -> None:
        super().__init__(
            "enrol", place, ServerBounds(max_clients=CLIENTS, max_line_bytes=MAX_LINE_BYTES)
        )
        self._take, self._taking = take, self.start_threads("enrol", THREADS)

    async def attend(self, client: ServerClient) -> None:
        """Read a machine's key and send the answer: ``ok``, or why the key is refused."""
        answer = "no key"
        with contextlib.suppress(Exceeded):
            line = (await client.read_line(LINE_TIMEOUT_S)).decode("ascii", "replace").strip()
            if is_public_key(line):
                answer = await self._taking.call(self._take, client.peer.address, line) or "ok"
        await client.send(f"{answer}\n".encode(), LINE_TIMEOUT_S)
