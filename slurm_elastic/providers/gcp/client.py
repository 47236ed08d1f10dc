"""Calls to Compute Engine by plain requests. google-auth provides the tokens, and everything that a
call needs ends by its deadline (``bounded_http``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import google.auth
import google.auth.credentials
import requests
from google.auth import exceptions as google_auth
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from slurm_elastic.base import trust
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.base.pages import page
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.errors import NoCredentials
from slurm_elastic.providers.base.reopened import Reopened
from slurm_elastic.providers.gcp.errors import Refused, translated
from slurm_elastic.providers.gcp.settings import ENDPOINT, GcpCloud

SCOPES = ("https://www.googleapis.com/auth/compute",)
_VERSION = "/compute/v1/"
_UNAUTHORIZED = 401
PAGE = 500
"""Google's own limit for one page of a list."""
_MAX_PAGES = 1000

Query = Mapping[str, str]


class ComputeApi:
    """One project, with one account. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": "to refresh the token"}

    def __init__(self, settings: GcpCloud) -> None:
        self._timeout = settings.api_timeout
        self._root = (settings.endpoint or ENDPOINT).rstrip("/") + _VERSION
        self._http = BoundedSession()
        self._request = Request(session=self._http)
        self._lock = threading.Lock()
        with self._http.within(self._timeout):
            self._credentials = credentials_of(settings, self._request)

    def call(self, method: str, path: str, body: object = None, query: Query | None = None) -> Any:  # noqa: ANN401
        """Send one request to a path below the API's version, and return the JSON of its answer.

        Raises Refused, NoCredentials, or the exceptions of requests and google-auth.
        """
        with self._http.within(self._timeout):
            token = self._token("")
            answer = self._send(method, path, body, query, token)
            if answer.status_code == _UNAUTHORIZED:
                # The token has ended before its time. Nothing was done, so the call is repeated.
                answer = self._send(method, path, body, query, self._token(token))
        if answer.status_code >= 300:
            raise _refused(method, path, answer)
        return answer.json()

    def _send(
        self, method: str, path: str, body: object, query: Query | None, token: str
    ) -> requests.Response:
        return self._http.request(
            method,
            self._root + path,
            params=query,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            allow_redirects=False,
        )

    def _token(self, refused: str) -> str:
        """A token that is valid, and not the one that was ``refused``."""
        with self._lock:
            if not self._credentials.valid or self._credentials.token == refused:
                self._credentials.refresh(self._request)
            return str(self._credentials.token)


def credentials_of(settings: GcpCloud, request: Request) -> google.auth.credentials.Credentials:
    """The account's credentials: from a key file, or as google-auth finds them. NoCredentials if
    they cannot be used.
    """
    if settings.credentials is None:
        return google.auth.default(scopes=SCOPES, request=request)[0]
    try:
        words = json.loads(_private_text(settings.credentials))
        return service_account.Credentials.from_service_account_info(words, scopes=SCOPES)
    except (google_auth.GoogleAuthError, ValueError, TypeError, LookupError, AttributeError):
        # The exception may contain a part of the file, which is a secret.
        text = f"{settings.credentials} is no key file of a service account; see {page('gcp')}"
        raise NoCredentials(text) from None


def _private_text(path: str) -> str:
    """The file's text. NoCredentials if it cannot be read, or if other users than its owner may
    read it.
    """
    try:
        flaw = trust.flaw(path, trust.ours(), private=True)
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoCredentials(f"{path} cannot be read: {reason}") from None
    if flaw:
        raise NoCredentials(flaw)
    return text


def _refused(method: str, path: str, answer: requests.Response) -> Refused:
    """Google's ``{"error": {"code", "message", "errors": [{"reason"}]}}``; else the start of the
    text.
    """
    try:
        error = answer.json()["error"]
        reasons = [str(e["reason"]) for e in error.get("errors", ()) if e.get("reason")]
        message = str(error["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        reasons, message = [], answer.text[:1000]
    return Refused(method, path, answer.status_code, next(iter(reasons), ""), message)


class Project:
    """The calls of one project, raising ProviderErrors. Thread-safe."""

    def __init__(self, settings: GcpCloud) -> None:
        self.name = settings.name
        self._root = f"projects/{quote(settings.project)}/"
        self._api = Reopened(lambda: ComputeApi(settings), lambda: translated(settings.name))

    def call(self, method: str, path: str, body: object = None, query: Query | None = None) -> Any:  # noqa: ANN401
        """Send one request. ``path`` is below the project, unless it begins with ``projects/``.
        See ``ComputeApi.call``.
        """
        is_absolute = path.startswith("projects/")
        with self._api.used() as api:
            return api.call(method, path if is_absolute else self._root + path, body, query)

    def pages(self, path: str, query: Query) -> Iterator[Mapping[str, Any]]:
        """The answers with all pages of a list."""
        token: str | None = ""
        for _ in range(_MAX_PAGES):
            page_query = {**query, "maxResults": str(PAGE)} | (
                {"pageToken": token} if token else {}
            )
            answer = self.call("GET", path, query=page_query)
            with translated(self.name):
                token = answer.get("nextPageToken")
            yield answer
            if not token:
                return
        with translated(self.name):
            raise ValueError(f"the list {path} never ends")
