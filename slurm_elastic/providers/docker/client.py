"""The docker SDK's client with a time limit that holds for a whole call of a provider.

The SDK's own ``timeout`` is for one wait on one connection. Here each request gets what is left
until the deadline of the thread that makes it; so does the making of an SSH connection.
"""

from __future__ import annotations

import io
import math
import socket
import ssl
import threading
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

import docker
import requests
from docker.tls import TLSConfig

from slurm_elastic.base import trust
from slurm_elastic.base.bounded import ANSWER, Budget, pieces
from slurm_elastic.providers.base.errors import NoCredentials, causes
from slurm_elastic.providers.base.hosts import deadline, seconds_left, until
from slurm_elastic.providers.docker.settings import DockerHost

HEARING = 10.0
"""Seconds in which an engine may say that it refuses our certificate; else it does not."""


class Client(docker.APIClient):
    """One engine. Neither proxies nor ``~/.netrc`` of the environment have a say."""

    @property
    def trust_env(self) -> bool:
        """Whether requests looks into the environment: never."""
        return False

    @trust_env.setter
    def trust_env(self, value: bool) -> None:
        """Requests sets its own default, which is not ours."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401
        """As the session's, in what time is left, and whole on return: the session's own time-out
        is for one read.
        """
        budget = Budget(ANSWER, seconds_left())
        whole = not kwargs.get("stream")
        response = super().send(request, **kwargs | {"timeout": seconds_left(), "stream": True})
        if whole:
            try:
                body = b"".join(pieces(response.raw, budget, decode_content=True))
            finally:
                response.close()
            response.raw = io.BytesIO(body)
        return response


def open_client(host: DockerHost) -> Client:
    """A client that has spoken with the engine, before this thread's deadline."""
    tls = _tls(host)
    if host.url.startswith("unix://"):
        _knock(host.url.removeprefix("unix://"))
    if not host.url.startswith("ssh://"):
        try:
            return _opened(host.url, tls)
        except Exception as error:  # noqa: BLE001 - it is raised below, unless there is a better one
            failure = error
        if tls is not None and _was_cut(failure):
            _hear_refusal(host)
        raise failure
    # For the making of an SSH connection the SDK has no limit at all.
    done: Future[Client] = Future()
    threading.Thread(target=_open_into, args=(done, host.url, deadline()), daemon=True).start()
    return done.result(timeout=seconds_left())


def _knock(path: str) -> None:
    """Raise what keeps us from a socket, as it is; the SDK leaves its own socket open then."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(seconds_left())
        probe.connect(path)


def _open_into(done: Future[Client], url: str, limit: float | None) -> None:
    try:
        with until(limit):
            client = _opened(url, None)
    except BaseException as error:  # noqa: BLE001 - it is handed to the thread that waits
        done.set_exception(error)
        return
    done.set_result(client)


def _opened(url: str, tls: TLSConfig | None) -> Client:
    # The SDK's limit is for one wait; it is what holds on an SSH channel.
    seconds = max(1, math.ceil(seconds_left()))
    return Client(base_url=url, version="auto", timeout=seconds, tls=tls or False)


def _tls(host: DockerHost) -> TLSConfig | None:
    """The certificates of a tcp host; both sides have to show one."""
    if host.ca_file is None or host.cert_file is None or host.key_file is None:
        return None
    for path in (host.ca_file, host.cert_file, host.key_file):
        try:
            wrong = trust.flaw(path, trust.ours(), private=path == host.key_file)
            with open(path, "rb"):
                pass
        except OSError as error:
            raise NoCredentials(f"{path} cannot be read: {error.strerror}") from None
        if wrong:
            raise NoCredentials(wrong)
    _try_files(host.ca_file, host.cert_file, host.key_file)
    return TLSConfig(client_cert=(host.cert_file, host.key_file), ca_cert=host.ca_file, verify=True)


def _was_cut(failure: Exception) -> bool:
    """Whether TLS failed or the connection was cut: a refusal of our certificate may be lost so."""
    return any(
        isinstance(one, ConnectionError | EOFError | ssl.SSLError)
        and not isinstance(one, ConnectionRefusedError)
        for one in causes(failure)
    )


def _hear_refusal(host: DockerHost) -> None:
    """Raise what the engine says of our certificate, if it refuses that."""
    address = urlsplit(host.url)
    peer = (address.hostname or "", address.port or 0)
    try:
        context = ssl.create_default_context(cafile=host.ca_file)
        context.load_cert_chain(str(host.cert_file), host.key_file, password="")
        with (
            socket.create_connection(peer, timeout=min(seconds_left(), HEARING)) as plain,
            context.wrap_socket(plain, server_hostname=peer[0]) as engine,
        ):
            # Nothing is asked: with TLS 1.3 it says so after the handshake (RFC 8446, 4.4.2.4), and
            # a request on its way by then is answered by a reset, which may be all that is seen.
            engine.recv(1)
    except ssl.SSLError:
        raise
    except OSError:
        return


def _try_files(ca_file: str, cert_file: str, key_file: str) -> None:
    """Whether they are what their names say: a connection would name neither file nor reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError:
        raise NoCredentials(f"{ca_file} is no certificate in PEM form") from None
    try:
        # The password is for nobody: without one, a key that wants it would ask at the terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise NoCredentials(f"{key_file} is not the key of {cert_file}") from None
        expected = "a certificate and its key, in PEM form and without a password"
        raise NoCredentials(f"{cert_file} and {key_file} are not {expected}") from None
