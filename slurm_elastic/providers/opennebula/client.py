"""pyone with a transport of ours: a time limit that holds, and refusals with their code.

pyone's own ``timeout`` sets a default for all sockets of the process and none for its own, which
go through ``requests`` without one; and it keeps only the class and the text of a refusal. Both
releases in use (6.10 and 7.x, whose OneServer moved) take another transport in the same place.
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
from slurm_elastic.base.bounded import ANSWER, Budget
from slurm_elastic.providers.base.errors import NoCredentials
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

try:
    from pyone.server_xrpc import OneServerXRPC as OneServer
except ModuleNotFoundError as error:
    if error.name != "pyone.server_xrpc":
        raise
    from pyone import OneServer  # 6.10

_CONNECT = 0.3
"""The part of the time-out that connecting may take."""
_CHUNK = 1 << 16


class Refused(Exception):  # noqa: N818 - it is the cloud's answer, not a failure of ours
    """oned's answer ``[false, message, code, ...]``; ``code`` is a bit of its error table."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code:#06x} {message}")
        self.code = code
        self.message = message


class NotConnected(OSError):  # noqa: N818
    """No connection came about, so nothing was sent."""


class Transport(xmlrpc.client.Transport):
    """One connection a request, as oned closes it anyway; an answer is whole within ``timeout``.

    No proxy, no ``~/.netrc``, no redirect: the session string goes to the endpoint alone.
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
        """Post one call; Refused where oned says no."""
        answer, _ = xmlrpc.client.loads(self._post(str(host), handler, request_body))
        head: Any = answer[0]
        if not head[0]:
            raise Refused(int(head[2]), str(head[1]))
        return answer

    def _post(self, host: str, handler: str, body: bytes) -> bytes:
        budget = Budget(ANSWER, self._timeout)
        connection = self._opened(host)
        try:
            _connect(connection)
            sock: socket.socket = connection.sock
            sock.settimeout(budget.left())
            headers = {"Content-Type": "text/xml", "User-Agent": self.user_agent}
            connection.request("POST", handler, body, headers)
            with connection.getresponse() as response:
                # Bounded as a whole: a byte now and then must not hold us either.
                chunks = []
                while chunk := response.read1(_CHUNK):
                    budget.take(len(chunk))
                    chunks.append(chunk)
                    left = budget.left()
                    if not response.isclosed():  # with the last byte, from Python 3.13 on
                        sock.settimeout(left)
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise xmlrpc.client.ProtocolError(
                f"{host}{handler}", response.status, response.reason, dict(response.getheaders())
            )
        return b"".join(chunks)

    def _opened(self, host: str) -> http.client.HTTPConnection:
        limit = self._timeout * _CONNECT
        if self._tls is None:
            return http.client.HTTPConnection(host, timeout=limit)
        return http.client.HTTPSConnection(host, timeout=limit, context=self._tls)


def open_server(settings: OpenNebulaCloud) -> Any:  # noqa: ANN401 - pyone has no types
    """A pyone server object; the credentials are read anew. NoCredentials, OSError (ca_file)."""
    secure = settings.endpoint.startswith("https://")
    context = ssl.create_default_context(cafile=settings.ca_file) if secure else None
    server = OneServer(settings.endpoint, session=session(settings, os.environ))
    server._ServerProxy__transport = Transport(settings.timeout, context)
    return server


def token_end(user: Any, secret: str) -> float | None:  # noqa: ANN401 - pyone has no types
    """When the login token that ``secret`` is ends; None for a password, and a token without end.

    oned tells tokens as they are (6.10), or their SHA-256 (as recorded from 7.x).
    """
    known = {secret, hashlib.sha256(secret.encode()).hexdigest()}
    tokens = getattr(user, "LOGIN_TOKEN", None) or ()
    for token in tokens if isinstance(tokens, list | tuple) else (tokens,):
        if str(getattr(token, "TOKEN", "")) in known:
            ends = int(getattr(token, "EXPIRATION_TIME", -1))
            return float(ends) if ends > 0 else None
    return None


def session(settings: OpenNebulaCloud, env: Mapping[str, str]) -> str:
    """``user:password`` from the cloud's ``auth`` file, else ONE_AUTH's, else ~/.one/one_auth."""
    named = settings.auth or env.get("ONE_AUTH")
    path = Path(named) if named else Path.home() / ".one" / "one_auth"
    try:
        wrong = trust.flaw(path, trust.ours(), private=True)
        if wrong:
            raise NoCredentials(wrong)
        with path.open(encoding="utf-8") as file:
            lines: Iterable[str] = file.read(4096).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoCredentials(f"{path} cannot be read: {why}") from None
    line = next((line.strip() for line in lines if line.strip()), "")
    user, colon, secret = line.partition(":")
    if not (user and colon and secret):
        raise NoCredentials(f"{path} has no line of the form user:password")
    return line


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except ssl.SSLError:
        raise
    except OSError as error:
        raise NotConnected(error.strerror or str(error)) from error
