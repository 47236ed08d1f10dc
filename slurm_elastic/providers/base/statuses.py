"""Translates an HTTP status into our error, for APIs that give only a status and a text. Pure."""

from __future__ import annotations

import re

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)

_TEMPORARY = (408, 425, 429)
_RIGHTS = (401, 403, 407)
_GONE = (404, 410)
_ERROR_BY_TEXT: dict[str, type[ProviderError]] = {
    r"\bquota|\blimit\b.*\bexceed|\bexceed\w*\b.*\blimit": QuotaError,
    r"\bcapacity\b|no valid host|out of stock|sold out": CapacityError,
}
THROTTLED = "HTTP429"
"""The code of a refusal that the server gave before it did anything (RFC 6585, section 4)."""


def kind_of(status: int) -> type[ProviderError]:
    """The error class of a status. A request with a 5xx or temporary status may have taken effect;
    any other 4xx is a refusal (RFC 9110, section 15).
    """
    if status in _RIGHTS:
        return AuthError
    return TransientError if status >= 500 or status in _TEMPORARY else ProviderError


def error_of_status(cloud: str, status: int, message: str) -> ProviderError:
    """The error of a status and a message. The message may also show a quota or a lack of
    capacity.
    """
    kind = kind_of(status)
    # A 5xx stays TransientError whatever its text says: the request may have taken effect.
    if kind is not TransientError:
        kinds_by_text = (
            k for pattern, k in _ERROR_BY_TEXT.items() if re.search(pattern, message.lower())
        )
        kind = next(kinds_by_text, InstanceNotFound if status in _GONE else kind)
    return kind(cloud, f"HTTP{status}", message)
