"""The cloud's refusals, and what goes wrong on the way to it, as the five of ours.

nova answers 403 both for a quota and for a missing right, and 409 for a state that passes as well
as for a mistake: the message decides there (as nova 31 has it). The user data is in some messages
as a whole, so none is passed on as it is.
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
from slurm_elastic.providers.base.errors import NoCredentials, translating
from slurm_elastic.providers.base.statuses import kind_of
from slurm_elastic.providers.openstack.client import NotConnected, Refused

NO_HOST = "NoValidHost"
"""The code of a start that found no host with room."""

_QUOTA = re.compile(
    r"Quota exceeded(?: for (?P<what>\w+))?|is over a limit for|[Mm]aximum number of .*exceeded"
    r"|Quota limit"
)
_NO_ROOM = re.compile(
    r"No valid host|not enough hosts|Exhausted all hosts|Insufficient compute resources"
    r"|[Nn]o more IP addresses|No fixed IP addresses|No more free|Insufficient Free"
)
_OF_THE_ORDER = re.compile(r"Only volume-backed servers")
"""A right that is missing for this flavor and not for the account."""
_PASSES = re.compile(r"while it is in|task_state|[Ii]n progress|concurrent|Conflict updating")
_PASSWORDS = re.compile(r"(?i)(password|secret|token)(\W{1,4})\S+")
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{65,}|Value: .*? (?=is too long|does not match)", re.DOTALL)
_MOST = 300
_CERTIFICATE = re.compile(
    r"certificate[ _]verify[ _]failed|alert[ _]((no|bad|unsupported)[ _]certificate"
    r"|certificate[ _]\w+|unknown[ _]ca)",
    re.IGNORECASE,
)
"""The one side's words about the other's certificate, before anything is carried out. All other
errors of TLS may come in the middle of an answer: a peer that went away, a record that is none.
"""
_NOT_CARRIED_OUT = frozenset({NotConnected.__name__, "Conflict", "HTTP413", "HTTP429", "HTTP503"})
"""Transient, and said before anything is done: 503 is a proxy's that reaches no nova, or nova's
without keystone (RFC 9110, 15.6.4), where 502 and 504 mean that nova has not answered.
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
    """Raise one of ours for what the SDK raises inside; what is unknown stays as it is.

    Any other refusal that the cloud put into words (no such flavor, say) is a plain ProviderError:
    nothing was done. An answer that makes no sense is transient: something may have been done. The
    SDK's text may have a whole request in it.
    """
    return translating(lambda error: _known(cloud, error), hidden=(Exception,))


def _known(cloud: str, error: Exception) -> ProviderError | None:
    match error:
        case Refused():
            kind, code = classify(error.status, error.message, error.method, error.path)
            return kind(cloud, code, sentence(error.message))
        case NoCredentials():
            return AuthError(cloud, "NoCredentials", str(error))
        case ksa.HttpError():
            kind, code = classify(error.http_status, error.message, "POST", "/auth/tokens")
            return kind(cloud, code, sentence(error.message))
    # keystoneauth has no class for an entry without a password.
    bare = type(error) is Exception and "required attribute" in str(error)
    cut_off = isinstance(error, ksa.SSLError) and not _CERTIFICATE.search(str(error))
    if bare or (isinstance(error, _NO_RIGHT) and not cut_off):
        return AuthError(cloud, type(error).__name__, sentence(error))
    if cut_off or isinstance(error, _NO_ANSWER):
        word = NotConnected.__name__ if _is_unsent(error) else type(error).__name__
        return TransientError(cloud, word, sentence(error))
    if isinstance(error, _BAD_ANSWER):
        text = f"the answer makes no sense: {type(error).__name__}: {sentence(error)}"
        return TransientError(cloud, "BadAnswer", text)
    return None


def _is_unsent(error: BaseException | None) -> bool:
    """Whether the request that has failed never left. By the last word of requests' alone: one that
    failed before, and was being dealt with, is in the chain as well.
    """
    while error is not None and not isinstance(error, requests.exceptions.RequestException):
        error = error.__cause__ or error.__context__
    return isinstance(error, NotConnected)


def classify(status: int, message: str, method: str, path: str) -> tuple[type[ProviderError], str]:
    """Which of ours an HTTP refusal is, and the word it goes by in reasons and cool-downs."""
    quota = _QUOTA.search(message) if status in (400, 403, 409, 413, 429) else None
    if quota:
        return QuotaError, f"{quota['what'] or 'project'}-quota"
    if status in (400, 403, 409) and _NO_ROOM.search(message):
        return CapacityError, "NoRoom"
    if status == 403 and _OF_THE_ORDER.search(message):
        return ProviderError, "Forbidden"
    if status == 403 and (method, path) == ("POST", "/servers"):
        return DeniedError, "Forbidden"  # by a policy, of which another flavor may be free
    if status in (401, 403, 407):
        return AuthError, {401: "Unauthorized", 403: "Forbidden"}.get(status, f"HTTP{status}")
    if status == 404 and path.startswith("/servers/"):
        return InstanceNotFound, "NotFound"
    if status == 400 and method == "GET" and "marker" in message.lower():
        # The last server of a page was deleted before the next page was asked for.
        return TransientError, "Marker"
    if status == 409 and (method == "DELETE" or _PASSES.search(message)):
        locked = "is locked" in message
        return (ProviderError, "Locked") if locked else (TransientError, "Conflict")
    # Older clouds say so of a rate that is exceeded.
    return TransientError if status == 413 else kind_of(status), f"HTTP{status}"


def is_refusal(error: ProviderError) -> bool:
    """Whether an order that ended so was surely not carried out."""
    return not isinstance(error, TransientError) or error.code in _NOT_CARRIED_OUT


def from_fault(cloud: str, message: str) -> ProviderError:
    """The meaning of a failed start for the next one."""
    text = sentence(message)
    if _QUOTA.search(message):
        return QuotaError(cloud, "BuildQuota", text)
    return CapacityError(cloud, NO_HOST if _NO_ROOM.search(message) else "BuildFailed", text)


def sentence(error: object) -> str:
    """One line without what might be secret: nothing long, nothing that a password word leads."""
    text = " ".join(_LONG.sub("(left out) ", str(error)).split())
    return _PASSWORDS.sub(r"\1\2(left out)", text)[:_MOST] or "no message"
