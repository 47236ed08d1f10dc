"""The docker SDK's client with a time limit for a whole call of a provider.

The SDK's own ``timeout`` limits one wait on one connection. Here each request, and the making of an
SSH connection, gets the time left until its thread's deadline.
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
from slurm_elastic.base.processes.bounded import ANSWER, ReadBudget, pieces
from slurm_elastic.providers.base.errors import NoCredentials, causes
from slurm_elastic.providers.base.hosts.hosts import deadline, seconds_left, until
from slurm_elastic.providers.docker.settings import DockerHost

REFUSAL_WAIT_S = 10.0
"""For so long we wait for an engine to report that it refuses our certificate."""


class DockerClient(docker.APIClient):
    """A client of one engine. It ignores the proxies and the ``~/.netrc`` of the environment."""

    @property
    def trust_env(self) -> bool:
        """Always False: requests must not read the environment."""
        return False

    @trust_env.setter
    def trust_env(self, value: bool) -> None:
        """Ignore the default that requests sets."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401
        """Send a request within the remaining time. The answer is complete on return, because the
        session's own time-out limits only one read.
        """
        budget = ReadBudget(ANSWER, seconds_left())
        is_complete = not kwargs.get("stream")
        response = super().send(request, **kwargs | {"timeout": seconds_left(), "stream": True})
        if is_complete:
            try:
                body = b"".join(pieces(response.raw, budget, decode_content=True))
            finally:
                response.close()
            response.raw = io.BytesIO(body)
        return response


def open_client(host: DockerHost) -> DockerClient:
    """Open a client, connected to its engine before this thread's deadline."""
    tls = _tls(host)
    if host.url.startswith("unix://"):
        _knock(host.url.removeprefix("unix://"))
    if not host.url.startswith("ssh://"):
        try:
            return _opened(host.url, tls)
        except Exception as error:  # noqa: BLE001 - raised below, unless there is a clearer error
            failure = error
        if tls is not None and _was_cut(failure):
            _hear_refusal(host)
        raise failure
    # The SDK has no time limit at all for making an SSH connection, so a thread makes it.
    result: Future[DockerClient] = Future()
    threading.Thread(target=_open_into, args=(result, host.url, deadline()), daemon=True).start()
    return result.result(timeout=seconds_left())


def _knock(path: str) -> None:
    """Raise the error that keeps us from a socket, unchanged. In this case the SDK would leave its
    own socket open.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(seconds_left())
        probe.connect(path)


def _open_into(result: Future[DockerClient], url: str, limit: float | None) -> None:
    try:
        with until(limit):
            client = _opened(url, None)
    except BaseException as error:  # noqa: BLE001 - handed to the waiting thread
        result.set_exception(error)
        return
    result.set_result(client)


def _opened(url: str, tls: TLSConfig | None) -> DockerClient:
    # The SDK's limit applies to one wait. It is the only limit on an SSH channel.
    seconds = max(1, math.ceil(seconds_left()))
    return DockerClient(base_url=url, version="auto", timeout=seconds, tls=tls or False)


def _tls(host: DockerHost) -> TLSConfig | None:
    """The certificates of a tcp host. Both sides must show one."""
    if host.ca_file is None or host.cert_file is None or host.key_file is None:
        return None
    for path in (host.ca_file, host.cert_file, host.key_file):
        try:
            flaw = trust.flaw(path, trust.ours(), private=path == host.key_file)
            with open(path, "rb"):
                pass
        except OSError as error:
            raise NoCredentials(f"{path} cannot be read: {error.strerror}") from None
        if flaw:
            raise NoCredentials(flaw)
    _try_files(host.ca_file, host.cert_file, host.key_file)
    return TLSConfig(client_cert=(host.cert_file, host.key_file), ca_cert=host.ca_file, verify=True)


def _was_cut(failure: Exception) -> bool:
    """Whether TLS failed or the connection was cut, in which case the engine's refusal of our
    certificate may have been lost.
    """
    return any(
        isinstance(cause, ConnectionError | EOFError | ssl.SSLError)
        and not isinstance(cause, ConnectionRefusedError)
        for cause in causes(failure)
    )


def _hear_refusal(host: DockerHost) -> None:
    """Raise the engine's refusal of our certificate, if there is one."""
    address = urlsplit(host.url)
    peer = (address.hostname or "", address.port or 0)
    try:
        context = ssl.create_default_context(cafile=host.ca_file)
        # With a password OpenSSL does not ask for one at the terminal if the key is encrypted.
        context.load_cert_chain(str(host.cert_file), host.key_file, password="")
        with (
            socket.create_connection(peer, timeout=min(seconds_left(), REFUSAL_WAIT_S)) as plain,
            context.wrap_socket(plain, server_hostname=peer[0]) as engine,
        ):
            # We send nothing. TLS 1.3 sends the refusal after the handshake (RFC 8446, section
            # 4.4.2.4). If a request were already on its way, the engine would answer with a reset,
            # which may hide the refusal.
            engine.recv(1)
    except ssl.SSLError:
        raise
    except OSError:
        return


def _try_files(ca_file: str, cert_file: str, key_file: str) -> None:
    """NoCredentials if a file has other content than its name promises. An error of the connection
    would name neither the file nor the reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError:
        raise NoCredentials(f"{ca_file} is no certificate in PEM form") from None
    try:
        # An empty password, because without one OpenSSL would ask for it at the terminal.
        # With a password OpenSSL does not ask for one at the terminal if the key is encrypted.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise NoCredentials(f"{key_file} is not the key of {cert_file}") from None
        expected = "a certificate and its key, in PEM form and without a password"
        raise NoCredentials(f"{cert_file} and {key_file} are not {expected}") from None
