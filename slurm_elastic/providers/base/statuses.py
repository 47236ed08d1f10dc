"""An HTTP status as one of our errors, for APIs that say no more than that and some words. Pure."""

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

_PASSES = (408, 425, 429)
_RIGHTS = (401, 403, 407)
_GONE = (404, 410)
_BY_WORDS: dict[str, type[ProviderError]] = {
    r"\bquota|\blimit\b.*\bexceed|\bexceed\w*\b.*\blimit": QuotaError,
    r"\bcapacity\b|no valid host|out of stock|sold out": CapacityError,
}
THROTTLED = "HTTP429"
"""The code of a refusal that was given before anything was done (RFC 6585, 4)."""


def kind_of(status: int) -> type[ProviderError]:
    """5xx and what passes may have taken effect; any other 4xx is a refusal (RFC 9110, 15)."""
    if status in _RIGHTS:
        return AuthError
    return TransientError if status >= 500 or status in _PASSES else ProviderError


def of_status(cloud: str, status: int, message: str) -> ProviderError:
    """By the words, too, and of a thing that is gone."""
    kind = kind_of(status)
    if kind is not TransientError:
        by_words = (k for words, k in _BY_WORDS.items() if re.search(words, message.lower()))
        kind = next(by_words, InstanceNotFound if status in _GONE else kind)
    return kind(cloud, f"HTTP{status}", message)
