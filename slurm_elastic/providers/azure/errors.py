"""Translates the resource manager's refusals, and errors on the way to it, into our errors.

The codes are from Microsoft's pages about allocation failures and quotas, and from Karpenter's and
CycleCloud's providers for Azure. 409 is a lack of capacity, a quota, a lock or a temporary state,
so the code and the message decide.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

import requests
from msgspec import Struct

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
from slurm_elastic.providers.azure.credentials import TokenRefused
from slurm_elastic.providers.base.bounded_http import NotConnected, is_unsent
from slurm_elastic.providers.base.errors import NoCredentials, translating
from slurm_elastic.providers.base.published import BAD_ANSWER
from slurm_elastic.providers.base.statuses import THROTTLED, kind_of

ALREADY_THERE = "PreconditionFailed"
"""The code of ``If-None-Match: *`` for a name that a machine has."""
_CAPACITY = frozenset(
    {
        "AllocationFailed", "InsufficientCapacity", "InsufficientSubnetSize",
        "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest",
        "SkuNotAvailable", "SpotPriceGreaterThanProvidedMaxPrice", "SubnetIsFull",
        "ZonalAllocationFailed",
    }
)  # fmt: skip
_QUOTA = frozenset({"QuotaExceeded", "ResourceQuotaExceeded"})
_QUOTA_TEXT = re.compile(r"(?i)\bquota\b|LowPriorityCores|Total Regional Cores")
"""In the message of OperationNotAllowed, which is the code of other refusals, too."""
_TEMPORARY = frozenset(
    {
        "AnotherOperationInProgress", "Conflict", "InternalServerError", "NicReservedForAnotherVm",
        "OperationPreempted", "RetryableError", "ServerTimeout", "ServiceUnavailable",
    }
)  # fmt: skip
_DENIED = frozenset(
    {"AuthorizationFailed", "LinkedAuthorizationFailed", "RequestDisallowedByPolicy"}
)
_NO_LOGIN = frozenset(
    {"InvalidSubscriptionId", "SubscriptionNotFound", "SubscriptionNotRegistered"}
)
_GONE = frozenset({"ResourceNotFound", "NotFound"})
_SECRETS = re.compile(r"(?i)(\b(?:sig|client_secret|password|secret|access_token)=)[^\s&\"']+")
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{65,}")
_MAX_CHARS = 400
_CERTIFICATE = re.compile(
    r"certificate[ _]verify[ _]failed|alert[ _]((no|bad|unsupported)[ _]certificate"
    r"|certificate[ _]\w+|unknown[ _]ca)",
    re.IGNORECASE,
)
"""One side rejects the other's certificate, before any request is carried out."""
_NOT_CARRIED_OUT = frozenset({NotConnected.__name__, THROTTLED})
# RecursionError: JSON of many brackets.
_BAD_ANSWER = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


class ArmRefused(Exception):  # noqa: N818 - the cloud's answer, not a failure of ours
    """An HTTP answer of 300 or more. ``code`` and ``message`` are the cloud's own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"HTTP {status}: {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Asked(Struct, frozen=True):
    """The request that was refused."""

    method: str
    path: str

    @property
    def is_about_machine(self) -> bool:
        """Whether the path names one machine."""
        return "/providers/Microsoft.Compute/virtualMachines/" in self.path


def translated(cloud: str, method: str, path: str) -> AbstractContextManager[None]:
    """Raise our error for an exception raised inside. Unknown exceptions stay unchanged.

    A senseless answer is transient, because something may have been done. No exception of requests
    is chained, as its text may contain a whole URL.
    """
    asked = Asked(method, path)
    return translating(lambda error: _translate(cloud, error, asked), hidden=(Exception,))


def _translate(cloud: str, error: Exception, asked: Asked) -> ProviderError | None:
    match error:
        case ArmRefused():
            return refusal(cloud, error, asked)
        case TokenRefused():
            kind: type[ProviderError] = TransientError
            if error.status < 500 and error.status != 429:
                kind = AuthError
            return kind(cloud, error.code, sentence(error.message))
        case NoCredentials():
            return AuthError(cloud, "NoCredentials", str(error))
        case requests.exceptions.SSLError() if _CERTIFICATE.search(str(error)):
            return AuthError(cloud, "Certificate", sentence(error))
        case requests.exceptions.JSONDecodeError():
            return _bad_answer(cloud, error)
        case requests.exceptions.RequestException():
            code = NotConnected.__name__ if is_unsent(error) else type(error).__name__
            return TransientError(cloud, code, sentence(error))
    return _bad_answer(cloud, error) if isinstance(error, _BAD_ANSWER) else None


def _bad_answer(cloud: str, error: Exception) -> ProviderError:
    text = f"the answer makes no sense: {type(error).__name__}: {sentence(error)}"
    return TransientError(cloud, BAD_ANSWER, text)


def refusal(cloud: str, error: ArmRefused, asked: Asked) -> ProviderError:
    """Our error for a refused request."""
    kind, code = classify(error.status, error.code, error.message, asked)
    return kind(cloud, code, sentence(error.message))


def classify(status: int, code: str, message: str, asked: Asked) -> tuple[type[ProviderError], str]:
    """Our class for a refusal, and its code in reasons and cool-downs."""
    if status == requests.codes.too_many_requests:
        return TransientError, THROTTLED
    known = kind_of_code(code, message)
    if known is not None:
        return known, code
    if status == requests.codes.precondition_failed:
        return ProviderError, ALREADY_THERE
    if code in _DENIED and asked.method == "PUT":
        return DeniedError, code
    if status in (401, 403) or code in _NO_LOGIN:
        return AuthError, code or f"HTTP{status}"
    # A proxy before Azure answers 404, too, and its page has no code.
    if status == requests.codes.not_found and code in _GONE:
        gone = asked.is_about_machine and asked.method != "PUT"
        return InstanceNotFound if gone else ProviderError, code
    if status < 400:
        return ProviderError, f"HTTP{status}"
    return kind_of(status), code or f"HTTP{status}"


def kind_of_code(code: str, message: str) -> type[ProviderError] | None:
    """Our class for a code that says the same with any status, also inside of an operation. None
    for any other code.
    """
    if code in _QUOTA or (code == "OperationNotAllowed" and _QUOTA_TEXT.search(message)):
        return QuotaError
    if code in _CAPACITY:
        return CapacityError
    return TransientError if code in _TEMPORARY else None


def late_failure(cloud: str, code: str, message: str) -> ProviderError:
    """The error of a machine that Azure accepted and could not start. No cause is transient: the
    machine will never start.
    """
    kind = kind_of_code(code, message)
    text = sentence(message or "the start failed")
    if kind is QuotaError:
        return QuotaError(cloud, code, text)
    return CapacityError(cloud, code or "ProvisioningFailed", text)


def had_no_effect(error: TransientError) -> bool:
    """Whether a call that raised this error was certainly not carried out."""
    return error.code in _NOT_CARRIED_OUT


def sentence(error: object) -> str:
    """The error as one line, without possible secrets: signatures of links, and long words."""
    text = _LONG.sub("(left out)", _SECRETS.sub(r"\1(left out)", str(error)))
    return one_line(text, _MAX_CHARS) or "no message"
