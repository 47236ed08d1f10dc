"""Translates Google's refusals, errors of its operations, and errors on the way to it into ours.

Compute Engine answers 403 for a rate limit, a quota and a missing right alike, so the reason in the
answer decides, not the status. The tables are from the API's own descriptions and from programs
that use it (slurm-gcp, SkyPilot); no answer of the real service was recorded for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import requests
from google.auth import exceptions as google_auth

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
from slurm_elastic.providers.base.published import BAD_ANSWER
from slurm_elastic.providers.base.statuses import kind_of

EXISTS = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS"})
"""The codes of a create call whose name a machine has already."""

_CAPACITY = re.compile(
    r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|VM_MIN_COUNT_NOT_REACHED|UNSUPPORTED_OPERATION"
    r"|IP_SPACE_EXHAUSTED|^insufficientCapacity$"
)
_QUOTA = re.compile(
    r"^QUOTA_EXCEEDED$|^QUOTA_LIMIT|^quotaExceeded$|^limitExceeded$|LIMIT_EXCEEDED$"
)
_TEMPORARY = re.compile(
    r"^(userR|r)ateLimitExceeded$|RATE_EXCEEDED$|RATE_LIMIT_EXCEEDED$|^backendError$"
    r"|^INTERNAL_ERROR$|^internalError$|^RESOURCE_NOT_READY$|^resourceNotReady$"
    r"|^resourceInUseByAnotherResource$|^RESOURCE_IN_USE"
)
_RIGHTS = re.compile(
    r"^forbidden$|^accessNotConfigured$|^insufficientPermissions$|^authError$"
    r"|^PERMISSIONS_ERROR$|^IAM_PERMISSION_DENIED$|^required$"
)
_OF_THE_PROJECT = re.compile(r"compute\.(instances|zoneOperations)\.|has not been used|disabled")
"""A missing right of the whole account. Any other right of a create call is that of an image, a
subnetwork or a service account, which another pool may not need.
"""
_OF_A_POOL = re.compile(r"/bulkInsert$|/global/images(/|$)")
"""The paths of calls that are made for some pools only. A launch reads its image before its call.
"""
NOT_THERE = "NotThere"
"""The code of a call about a thing that Google surely does not have."""
_OF_STOCK = re.compile(r"resources|capacity|stock|availab", re.IGNORECASE)
"""Words of an UNSUPPORTED_OPERATION that means a lack of machines, not a wrong request."""
GENERAL = frozenset({"VM_MIN_COUNT_NOT_REACHED"})
"""Codes that only say that other errors have happened."""
_TOKENS = re.compile(r"ya29\.[\w.-]+|1//[\w-]+|eyJ[\w-]+\.[\w-]+\.[\w-]*|AIza[\w-]{20,}")
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{128,}")
_MAX_CHARS = 300
# RecursionError: JSON of many brackets.
_BAD_ANSWER = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


class Refused(Exception):  # noqa: N818 - the cloud's answer, not a failure of ours
    """An HTTP answer of 300 or more. ``reason`` is Google's word, empty if the answer is not
    Google's.
    """

    def __init__(self, method: str, path: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{method} {path}: HTTP {status}: {message}")
        self.method, self.path, self.status = method, path, status
        self.reason, self.message = reason, message


def translated(cloud: str) -> AbstractContextManager[None]:
    """Raise our error for an exception of requests or google-auth raised inside. Unknown exceptions
    stay unchanged. A senseless answer is transient, because something may have been done. The
    exception is not chained, as its text may contain a token.
    """
    return translating(lambda error: _translate(cloud, error), hidden=(Exception,))


def _translate(cloud: str, error: Exception) -> ProviderError | None:
    match error:
        case Refused():
            return of_answer(cloud, error)
        case NoCredentials():
            return AuthError(cloud, "NoCredentials", str(error))
        case google_auth.TransportError() | requests.exceptions.RequestException():
            code = NotConnected.__name__ if _is_unsent(error) else type(error).__name__
            return TransientError(cloud, code, sentence(error))
        case google_auth.GoogleAuthError():
            # google-auth marks errors of the token's server that pass by themselves.
            kind = TransientError if error.retryable else AuthError
            return kind(cloud, type(error).__name__, sentence(error))
        case _ if isinstance(error, _BAD_ANSWER):
            text = f"the answer makes no sense: {type(error).__name__}: {sentence(error)}"
            return TransientError(cloud, BAD_ANSWER, text)
    return None


def _is_unsent(error: Exception) -> bool:
    """Whether nothing was sent. A token is asked for before its request, so a token that did not
    arrive means the same.
    """
    return isinstance(error, google_auth.TransportError) or is_unsent(error)


def of_answer(cloud: str, error: Refused) -> ProviderError:
    """The error that an HTTP refusal means."""
    text, code = sentence(error.message), error.reason or f"HTTP{error.status}"
    kind = _kind(error.reason)
    if kind is None and error.status == 404 and _is_about(error.path, error.message):
        is_machine = "/instances/" in error.path
        kind, code = (InstanceNotFound if is_machine else ProviderError), NOT_THERE
    if kind is AuthError or (kind is None and error.status in (401, 403)):
        is_of_thing = _OF_A_POOL.search(error.path) is not None and error.status == 403
        is_of_thing = is_of_thing and not _OF_THE_PROJECT.search(error.message)
        kind = DeniedError if is_of_thing else AuthError
    if kind is None:
        # A redirection is an answer of something before Google, such as a login page.
        kind = TransientError if error.status < 400 else kind_of(error.status)
    return kind(cloud, code, text)


def _is_about(path: str, message: str) -> bool:
    """Whether Google itself says that it does not have the resource of this path. A proxy also
    answers 404, and Google does so for an unknown project or zone.
    """
    match = re.search(r"/(instances|machineTypes|images)/(?:family/)?([^/]+)", path)
    return match is not None and f"/{match[2]}'" in message


def of_operation(cloud: str, errors: list[Mapping[str, Any]]) -> ProviderError | None:
    """The error of an operation that has ended; None if it has no errors. Codes that only point at
    other errors come last.
    """
    ordered = sorted(errors, key=lambda error: str(error.get("code")) in GENERAL)
    if not ordered:
        return None
    code, text = str(ordered[0].get("code") or "Unknown"), str(ordered[0].get("message") or "")
    kind = _kind(code) or ProviderError
    if code == "UNSUPPORTED_OPERATION" and not _OF_STOCK.search(text):
        kind = ProviderError
    if code == "RESOURCE_NOT_FOUND" and "/instances/" in text:
        # The machine vanished while it was made: Google had no room for it.
        kind = CapacityError
    if kind is AuthError and not _OF_THE_PROJECT.search(text):
        kind = DeniedError
    return kind(cloud, code, sentence(text))


def _kind(code: str) -> type[ProviderError] | None:
    table: tuple[tuple[re.Pattern[str], type[ProviderError]], ...] = (
        (_TEMPORARY, TransientError),
        (_CAPACITY, CapacityError),
        (_QUOTA, QuotaError),
        (_RIGHTS, AuthError),
    )
    return next((kind for pattern, kind in table if pattern.search(code)), None)


def sentence(error: object) -> str:
    """The error as one line, without tokens and without long words, which may be user data."""
    text = _LONG.sub("(left out)", _TOKENS.sub("(left out)", str(error)))
    return one_line(text, _MAX_CHARS) or "no message"
