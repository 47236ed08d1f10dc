"""Translates the cloud's refusals, and errors on the way to it, into our errors.

nova answers 403 for a quota as well as for a missing right, and 409 for a temporary state as well
as for a mistake. In these cases the message decides (as of nova 31). Some messages contain the
whole user data, so no message is passed on unchanged.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

import requests
from keystoneauth1 import exceptions as ksa
from openstack.exceptions import ConfigException

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.one_line import one_line
from slurm_elastic.providers.base.bounded_http import NotConnected, is_unsent
from slurm_elastic.providers.base.errors import NoCredentials, translating
from slurm_elastic.providers.base.statuses import kind_of
from slurm_elastic.providers.openstack.client import HttpRefused

NO_HOST = "NoValidHost"
"""The code of a start for which no host had room."""

_QUOTA = re.compile(
    r"Quota exceeded(?: for (?P<what>\w+))?|is over a limit for|[Mm]aximum number of .*exceeded"
    r"|Quota limit"
)
_NO_ROOM = re.compile(
    r"No valid host|not enough hosts|Exhausted all hosts|Insufficient compute resources"
    r"|[Nn]o more IP addresses|No fixed IP addresses|No more free|Insufficient Free"
)
_FOR_THIS_FLAVOR = re.compile(r"Only volume-backed servers")
"""The right is missing for this flavor, not for the whole account."""
_TEMPORARY = re.compile(r"while it is in|task_state|[Ii]n progress|concurrent|Conflict updating")
_PASSWORDS = re.compile(r"(?i)(password|secret|token)(\W{1,4})\S+")
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{65,}|Value: .*? (?=is too long|does not match)", re.DOTALL)
_MAX_CHARS = 300
_CERTIFICATE = re.compile(
    r"certificate[ _]verify[ _]failed|alert[ _]((no|bad|unsupported)[ _]certificate"
    r"|certificate[ _]\w+|unknown[ _]ca)",
    re.IGNORECASE,
)
"""One side rejects the other's certificate, before any request is carried out. All other TLS errors
may come in the middle of an answer: the peer went away, or a record is broken.
"""
_NOT_CARRIED_OUT = frozenset({NotConnected.__name__, "Conflict", "HTTP413", "HTTP429", "HTTP503"})
"""Temporary errors raised before anything is done. 503 comes from a proxy that reaches no nova, or
from nova without keystone (RFC 9110, section 15.6.4). 502 and 504 are missing here, because they
mean that nova has not answered.
"""
_BAD_ANSWER = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_NO_RIGHT = (
    ksa.AuthorizationFailure,
    ksa.AuthPluginException,
    ksa.CatalogException,
    ksa.EndpointNotFound,
    ksa.MissingAuthPlugin,
    ksa.SSLError,
    ConfigException,
)
_NO_ANSWER = (ksa.ConnectionError, ksa.DiscoveryFailure, requests.exceptions.RequestException)


def translated(cloud: str) -> AbstractContextManager[None]:
    """Raise our error for an exception of the SDK raised inside. Unknown exceptions stay unchanged.

    Any other refusal of the cloud (no such flavor, say) is a plain ProviderError, because nothing
    was done. A senseless answer is transient, because something may have been done. The SDK's
    exception is not chained, as its text may contain a whole request.
    """
    return translating(lambda error: _translate(cloud, error), hidden=(Exception,))


def _translate(cloud: str, error: Exception) -> ProviderError | None:
    match error:
        case HttpRefused():
            kind, code = classify(error.status, error.message, error.method, error.path)
            return kind(cloud, code, sentence(error.message))
        case NoCredentials():
            return AuthError(cloud, "NoCredentials", str(error))
        case ksa.HttpError():
            kind, code = classify(error.http_status, error.message, "POST", "/auth/tokens")
            return kind(cloud, code, sentence(error.message))
    # keystoneauth raises a bare Exception for an entry without a password.
    lacks_password = type(error) is Exception and "required attribute" in str(error)
    is_cut_off = isinstance(error, ksa.SSLError) and not _CERTIFICATE.search(str(error))
    if lacks_password or (isinstance(error, _NO_RIGHT) and not is_cut_off):
        return AuthError(cloud, type(error).__name__, sentence(error))
    if is_cut_off or isinstance(error, _NO_ANSWER):
        code = NotConnected.__name__ if is_unsent(error) else type(error).__name__
        return TransientError(cloud, code, sentence(error))
    if isinstance(error, _BAD_ANSWER):
        text = f"the answer makes no sense: {type(error).__name__}: {sentence(error)}"
        return TransientError(cloud, "BadAnswer", text)
    return None


def classify(status: int, message: str, method: str, path: str) -> tuple[type[ProviderError], str]:
    """Our class for an HTTP refusal, and its code in reasons and cool-downs."""
    quota = _QUOTA.search(message) if status in (400, 403, 409, 413, 429) else None
    if quota:
        return QuotaError, f"{quota['what'] or 'project'}-quota"
    if status in (400, 403, 409) and _NO_ROOM.search(message):
        return CapacityError, "NoRoom"
    if status == 403 and _FOR_THIS_FLAVOR.search(message):
        return ProviderError, "Forbidden"
    if status == 403 and (method, path) == ("POST", "/servers"):
        return DeniedError, "Forbidden"  # the policy may allow another flavor
    if status in (401, 403, 407):
        return AuthError, {401: "Unauthorized", 403: "Forbidden"}.get(status, f"HTTP{status}")
    if status == 404 and _is_about_server(path, message):
        return InstanceNotFound, "NotFound"
    if status == 400 and method == "GET" and "marker" in message.lower():
        # The last server of a page was deleted before the next page was requested.
        return TransientError, "Marker"
    if status == 409 and (method == "DELETE" or _TEMPORARY.search(message)):
        is_locked = "is locked" in message
        return (ProviderError, "Locked") if is_locked else (TransientError, "Conflict")
    # Older clouds answer 413 if the rate limit is exceeded.
    return TransientError if status == 413 else kind_of(status), f"HTTP{status}"


def _is_about_server(path: str, message: str) -> bool:
    """Whether nova itself says that it does not have the server of this path. A proxy before nova
    also answers 404, while it starts or lacks a route, and its page may contain the path.
    """
    server = path.removeprefix("/servers/").partition("/")[0]
    return path.startswith("/servers/") and server in message and "<" not in message


def is_refusal(error: ProviderError) -> bool:
    """Whether an order that raised this error was certainly not carried out."""
    return not isinstance(error, TransientError) or error.code in _NOT_CARRIED_OUT


def from_fault(cloud: str, message: str) -> ProviderError:
    """The error that a failed start means for the next start."""
    text = sentence(message)
    if _QUOTA.search(message):
        return QuotaError(cloud, "BuildQuota", text)
    return CapacityError(cloud, NO_HOST if _NO_ROOM.search(message) else "BuildFailed", text)


def sentence(error: object) -> str:
    """The error as one line, without possible secrets: no long words, and nothing after a word like
    "password".
    """
    text = " ".join(_LONG.sub("(left out) ", str(error)).split())
    return one_line(_PASSWORDS.sub(r"\1\2(left out)", text), _MAX_CHARS) or "no message"
