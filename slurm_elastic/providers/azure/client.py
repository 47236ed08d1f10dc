"""Calls of the resource manager by plain requests, each within the cloud's time-out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from msgspec import Struct

from slurm_elastic.base.errors import TransientError
from slurm_elastic.providers.azure.credentials import Tokens
from slurm_elastic.providers.azure.errors import ArmRefused, translated
from slurm_elastic.providers.azure.pacing import ArmRates, rates_of
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.published import BAD_ANSWER

COMPUTE = "2026-04-01"
"""The version of the interface for machines (Microsoft.Compute). Azure refuses properties that the
version lacks, such as the tags of cards before 2025-04-01. The tests check our bodies by the models
of exactly this version.
"""
SIZES = "2021-07-01"
"""Sizes, disks and galleries have versions of their own. Azure refuses other versions for them."""
GALLERIES = "2024-03-03"
DISKS = "2024-03-02"
NETWORK = "2024-05-01"
_MAX_PAGES = 10_000
_UNAUTHORIZED = 401
_THROTTLED = 429
_MAX_DIGITS = 6
_PORTS = {"http": 80, "https": 443}


class ArmAnswer(Struct, frozen=True, kw_only=True):
    """An answer of the resource manager. ``operation``: the URL that shows the outcome of an
    operation that continues after the answer; "" without such an operation.
    """

    status: int
    content: Any = None
    operation: str = ""


class ArmApi:
    """One subscription. Thread-safe."""

    def __init__(
        self, settings: AzureCloud, rates: ArmRates | None = None, tokens: Tokens | None = None
    ) -> None:
        self._settings = settings
        self._root = settings.endpoint.rstrip("/")
        self._http = BoundedSession()
        self._tokens = tokens or Tokens(settings, self._http)
        self._rates = rates or rates_of(settings)

    def call(
        self, method: str, path: str, version: str, body: object = None, *,
        headers: Mapping[str, str] | None = None, query: Mapping[str, str] | None = None,
    ) -> ArmAnswer:  # fmt: skip
        """Send one request about the resource at ``path``. Raises ProviderErrors."""
        url = f"{self._root}{path}"
        query = {"api-version": version, **(query or {})}
        with translated(self._settings.name, method, path):
            return self._answered(method, url, query, body, headers or {})

    def follow(self, url: str) -> ArmAnswer:
        """GET the URL of an operation or of a list's next page, as the cloud gave it."""
        # Any other host would get our token.
        if not is_below(url, self._root):
            text = "the answer leads to another host"
            raise TransientError(self._settings.name, BAD_ANSWER, text)
        with translated(self._settings.name, "GET", urlsplit(url).path):
            return self._answered("GET", url, {}, None, {})

    def listed(
        self, path: str, version: str, query: Mapping[str, str] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """The resources of all pages of a list. Raises ProviderErrors: a page that cannot be read
        makes the whole list an error.
        """
        answer = self.call("GET", path, version, query=query)
        for _ in range(_MAX_PAGES):
            with translated(self._settings.name, "GET", path):
                yield from list(answer.content["value"])
                next_url = answer.content.get("nextLink")
            if not next_url:
                return
            answer = self.follow(str(next_url))
        raise TransientError(self._settings.name, BAD_ANSWER, "the list does not end")

    def _answered(
        self, method: str, url: str, query: Mapping[str, str], body: object,
        headers: Mapping[str, str],
    ) -> ArmAnswer:  # fmt: skip
        if self._rates is not None:
            self._rates.take(self._settings.name, method, self._settings.api_timeout)
        with self._http.within(self._settings.api_timeout):
            token = self._tokens.get()
            answer = self._sent(method, url, query, body, headers, token)
            if answer.status_code == _UNAUTHORIZED:
                # The token may have expired or been withdrawn. A request that was refused for its
                # token had no effect, so it may be repeated.
                self._tokens.forget(token)
                if (renewed := self._tokens.get()) != token:
                    answer = self._sent(method, url, query, body, headers, renewed)
        self._note_rate(method, answer)
        if answer.status_code >= requests.codes.bad_request or answer.is_redirect:
            raise ArmRefused(answer.status_code, *_reason(answer))
        return ArmAnswer(
            status=answer.status_code,
            content=answer.json() if answer.content else None,
            operation=answer.headers.get("Azure-AsyncOperation", ""),
        )

    def _sent(
        self, method: str, url: str, query: Mapping[str, str], body: object,
        headers: Mapping[str, str], token: str,
    ) -> requests.Response:  # fmt: skip
        def authorized(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {token}"
            return request

        # Requests would replace a plain header by a login from ~/.netrc, but not ``auth``.
        return self._http.request(
            method, url, params=query, json=body, headers=dict(headers), auth=authorized,
            allow_redirects=False,
        )  # fmt: skip

    def _note_rate(self, method: str, answer: requests.Response) -> None:
        if self._rates is None:
            return
        if answer.status_code != _THROTTLED:
            self._rates.accepted(method)
            return
        pause = answer.headers.get("Retry-After", "")
        is_number = pause.isdecimal() and len(pause) <= _MAX_DIGITS
        self._rates.rejected(method, float(pause) if is_number else 0.0)


def is_below(url: str, root: str) -> bool:
    """Whether a URL is at the host of ``root``."""
    place = _place(url)
    return place is not None and place == _place(root)


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a URL. None for a URL that names none, or a login.

    Azure writes links to further pages and operations with ``:443``, which our endpoint lacks.
    """
    try:
        parts = urlsplit(url)
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
    except (ValueError, KeyError):
        return None
    if not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port


def _reason(answer: requests.Response) -> tuple[str, str]:
    """Code and message of ``{"error": {"code": ..., "message": ...}}``; else the start of the
    text.
    """
    try:
        content = answer.json()
    except ValueError:
        return "", answer.text
    error = content.get("error") if isinstance(content, dict) else None
    if not isinstance(error, dict):
        return "", answer.text
    return str(error.get("code") or ""), str(error.get("message") or "")
