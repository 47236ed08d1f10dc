"""Translates an engine's refusals, and failures on the way to it, into our errors.

The Engine API has no error codes, only a status and a text ("Docker Engine API", 1.41 and later).
The texts here are from moby's daemon, libnetwork and runc.
"""

from __future__ import annotations

import re
import ssl
from contextlib import AbstractContextManager

import docker.errors
import requests

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.ssh_errors import is_unknown_host_key
from slurm_elastic.providers.base.errors import NoCredentials, causes, translating
from slurm_elastic.providers.base.statuses import kind_of

NAME_TAKEN = "NameTaken"
NOT_RUNNING = "NotRunning"
NO_CERTIFICATE = "NoCertificate"

_ERROR_BY_TEXT: tuple[tuple[str, type[ProviderError], str], ...] = (
    ("disk quota exceeded", QuotaError, "DiskQuota"),
    ("no space left on device", CapacityError, "NoSpace"),
    ("cannot allocate memory", CapacityError, "NoMemory"),
    ("no available ipv4 addresses|could not find an available", CapacityError, "NoAddress"),
    ("authorization denied", AuthError, "Denied"),
    ("client sent an http request to an https server", AuthError, NO_CERTIFICATE),
    ("no such image", ProviderError, "NoImage"),
    ("network .* not found|no such network", ProviderError, "NoNetwork"),
    ("no such container", InstanceNotFound, "NoContainer"),
    ("name .* is already in use", ProviderError, NAME_TAKEN),
    ("is not running", ProviderError, NOT_RUNNING),
    ("oci runtime create failed|failed to create (shim|task)", ProviderError, "Runtime"),
)
"""The first pattern that matches decides, whatever the status."""
_ADVICE = {NO_CERTIFICATE: " Give this host ca_file, cert_file and key_file."}
_CERTIFICATE_ALERT = re.compile(
    r"alert[ _]((no|bad|unsupported)[ _]certificate|certificate[ _]\w+"
    r"|unknown[ _]ca|access[ _]denied)",
    re.IGNORECASE,
)
"""A TLS server's alerts about a client's certificate (RFC 8446, section 6.2; in OpenSSL's
spelling).
"""


def classify(status: int | None, message: str) -> tuple[type[ProviderError], str]:
    """Our class for a refusal, and its code in reasons and cool-downs."""
    for pattern, kind, code in _ERROR_BY_TEXT:
        if re.search(pattern, message, re.IGNORECASE):
            return kind, code
    if status is None:
        return TransientError, "NoStatus"
    return kind_of(status), f"HTTP{status}"


def translated(cloud: str, host: str) -> AbstractContextManager[None]:
    """Raise our error for an exception of a call to ``host`` inside. Unknown exceptions stay
    unchanged.
    """
    return translating(lambda error: _translate(cloud, host, error))


def _translate(cloud: str, host: str, error: Exception) -> ProviderError | None:
    """Our error for an exception. The SDK wraps the original error in its own, so all causes are
    examined.
    """
    chain = tuple(causes(error))
    # First the engine's own answer: the SDK raises it from an error of requests, which is an
    # OSError and would count as a failure of the connection.
    for cause in chain:
        if isinstance(cause, docker.errors.APIError):
            message = cause.explanation or str(cause)
            if isinstance(message, bytes):
                message = message.decode(errors="replace")
            kind, code = classify(cause.status_code, message)
            return kind(cloud, code, f"{host}: {_sentence(message)}{_ADVICE.get(code, '')}")
    for cause in chain:
        if translation := _from_outside(cause):
            kind, code, text = translation
            return kind(cloud, code, f"{host}: {text}")
    return None


def _from_outside(error: BaseException) -> tuple[type[ProviderError], str, str] | None:
    """The error for a failure other than the engine's answer: the connection, credentials, or a
    senseless answer.
    """
    if isinstance(error, NoCredentials):
        return AuthError, "NoCredentials", str(error)
    # Most of these are OSErrors, so the general case comes after them.
    if isinstance(error, PermissionError):
        return AuthError, "NotPermitted", "SlurmUser may not use its socket, the group docker may"
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate is refused: {error.verify_message} (see ca_file)"
        return AuthError, "Certificate", text
    if isinstance(error, ssl.SSLError) and (tls_error := _from_tls(error)):
        return tls_error
    if type(error).__module__.partition(".")[0] == "paramiko":
        return _from_ssh(error)
    if isinstance(error, TimeoutError | requests.exceptions.Timeout):
        return TransientError, "Timeout", "no answer in time"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return TransientError, "Unreachable", "no engine listens there"
    if isinstance(error, OSError | EOFError):
        # The errors of requests are OSErrors, too.
        return TransientError, type(error).__name__, _sentence(str(error))
    if isinstance(error, ValueError | LookupError | TypeError | AttributeError):
        text = f"the answer makes no sense: {type(error).__name__}: {_sentence(str(error))}"
        return TransientError, "BadAnswer", text
    return None


def _from_tls(error: ssl.SSLError) -> tuple[type[ProviderError], str, str] | None:
    """The error for a failure of TLS that does not pass by itself. Nothing was asked of the engine
    yet.
    """
    if alert := _CERTIFICATE_ALERT.search(str(error)):
        reason = alert[1].replace("_", " ").lower()
        reasons = "cert_file has expired, or is of no authority that the engine knows"
        return AuthError, "Certificate", f"it refuses our certificate ({reason}): {reasons}"
    if "WRONG_VERSION_NUMBER" in str(error):
        return (
            AuthError,
            "NoTls",
            "what listens there speaks no TLS; engines that do have port 2376",
        )
    return None


def _from_ssh(error: BaseException) -> tuple[type[ProviderError], str, str]:
    name = type(error).__name__
    is_refused = name in (
        "AuthenticationException",
        "BadHostKeyException",
        "PasswordRequiredException",
    )
    if is_refused or is_unknown_host_key(error):
        return AuthError, name, _sentence(str(error))
    return TransientError, name, _sentence(str(error))


def _sentence(text: str) -> str:
    return " ".join(text.split())[:300] or "no message"
