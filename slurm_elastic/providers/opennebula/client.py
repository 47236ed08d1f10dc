"""Uses pyone with our own transport, which keeps a time limit and the code of a refusal.

pyone's own ``timeout`` sets a default for all sockets of the process, but its own requests go
through ``requests`` without a time limit. It also keeps only class and text of a refusal. Both
releases in use (6.10, and 7.x with OneServer in another module) accept a transport in the same
place.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import ssl
import xmlrpc.client
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_elastic.base import trust
from slurm_elastic.base.processes.bounded import ANSWER, ReadBudget
from slurm_elastic.providers.base.errors import NoCredentials
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

try:
    from pyone.server_xrpc import OneServerXRPC as OneServer
except ModuleNotFoundError as error:
    if error.name != "pyone.server_xrpc":
        raise
    from pyone import OneServer  # 6.10

_CONNECT_FRACTION = 0.3
"""The fraction of the time-out that connecting may take."""
_CHUNK = 1 << 16


class OneRefused(Exception):  # noqa: N818 - the cloud's answer, not a failure of ours
    """oned's answer ``[false, message, code, ...]``. ``code`` is from oned's table of errors."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code:#06x} {message}")
        self.code = code
        self.message = message


class NotConnected(OSError):  # noqa: N818
    """No connection was made, so nothing was sent."""


class Transport(xmlrpc.client.Transport):
    """One connection for each request, because oned closes it anyway. An answer must be complete
    within ``timeout`` (s).

    It uses no proxy, no ``~/.netrc`` and follows no redirect, so the session string is sent to the
    endpoint alone.
    """

    user_agent = "slurm-elastic"

    def __init__(self, timeout: float, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._timeout = timeout
        self._tls = context

    def request(
        self,
        host: Any,  # noqa: ANN401 - as xmlrpc.client has it
        handler: str,
        request_body: Any,  # noqa: ANN401
        verbose: bool = False,  # noqa: ARG002
    ) -> tuple[Any, ...]:
        """Send one call. OneRefused if oned refuses it."""
        answer, _ = xmlrpc.client.loads(self._post(str(host), handler, request_body))
        head: Any = answer[0]
        if not head[0]:
            raise OneRefused(int(head[2]), str(head[1]))
        return answer

    def _post(self, host: str, handler: str, body: bytes) -> bytes:
        budget = ReadBudget(ANSWER, self._timeout)
        connection = self._opened(host)
        try:
            _connect(connection)
            sock: socket.socket = connection.sock
            sock.settimeout(budget.remaining_s())
            headers = {"Content-Type": "text/xml", "User-Agent": self.user_agent}
            connection.request("POST", handler, body, headers)
            with connection.getresponse() as response:
                # The time limit applies to the whole answer, so a server that sends a byte now and
                # then cannot hold us.
                chunks = []
                while chunk := response.read1(_CHUNK):
                    budget.take(len(chunk))
                    chunks.append(chunk)
                    seconds_left = budget.remaining_s()
                    if not response.isclosed():  # closed with the last byte, since Python 3.13
                        sock.settimeout(seconds_left)
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise xmlrpc.client.ProtocolError(
                f"{host}{handler}", response.status, response.reason, dict(response.getheaders())
            )
        return b"".join(chunks)

    def _opened(self, host: str) -> http.client.HTTPConnection:
        limit = self._timeout * _CONNECT_FRACTION
        if self._tls is None:
            return http.client.HTTPConnection(host, timeout=limit)
        return http.client.HTTPSConnection(host, timeout=limit, context=self._tls)


def open_server(settings: OpenNebulaCloud) -> Any:  # noqa: ANN401 - pyone has no types
    """A pyone server object; the credentials are read again. NoCredentials, or OSError
    (ca_file).
    """
    secure = settings.endpoint.startswith("https://")
    context = ssl.create_default_context(cafile=settings.ca_file) if secure else None
    server = OneServer(settings.endpoint, session=session(settings, os.environ))
    # pyone offers no way to pass a transport, so its private attribute is replaced.
    server._ServerProxy__transport = Transport(settings.api_timeout, context)
    return server


def token_end(user: Any, secret: str) -> float | None:  # noqa: ANN401 - pyone has no types
    """When the login token ``secret`` ends (Unix time). None for a password and for a token without
    an end.

    oned 6.10 returns tokens unchanged; 7.x returns their SHA-256 (recorded from a real oned).
    """
    forms = {secret, hashlib.sha256(secret.encode()).hexdigest()}
    tokens = getattr(user, "LOGIN_TOKEN", None) or ()
    for token in tokens if isinstance(tokens, list | tuple) else (tokens,):
        if str(getattr(token, "TOKEN", "")) in forms:
            ends_at = int(getattr(token, "EXPIRATION_TIME", -1))
            return float(ends_at) if ends_at > 0 else None
    return None


def session(settings: OpenNebulaCloud, env: Mapping[str, str]) -> str:
    """``user:password`` from the cloud's ``auth_file``, else ONE_AUTH's, else ~/.one/one_auth.
    NoCredentials if no file can be used.
    """
    named_path = settings.auth_file or env.get("ONE_AUTH")
    path = Path(named_path) if named_path else Path.home() / ".one" / "one_auth"
    try:
        flaw = trust.flaw(path, trust.ours(), private=True)
        if flaw:
            raise NoCredentials(flaw)
        with path.open(encoding="utf-8") as file:
            # Bounded, because somebody may name a device or a huge file.
            lines: Iterable[str] = file.read(4096).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoCredentials(f"{path} cannot be read: {reason}") from None
    line = next((line.strip() for line in lines if line.strip()), "")
    user, colon, secret = line.partition(":")
    if not (user and colon and secret):
        raise NoCredentials(f"{path} has no line of the form user:password")
    return line


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    # It is an OSError, too, but ``errors`` reports a wrong certificate by itself.
    except ssl.SSLError:
        raise
    except OSError as error:
        raise NotConnected(error.strerror or str(error)) from error
