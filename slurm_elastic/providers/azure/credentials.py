"""Tokens for the resource manager, by plain requests: for a service principal with a secret or a
federated token, or for the managed identity of the head's own VM.

azure-identity does the same by 14 packages with 21 MB. It repeats requests by a pace of its own, so
its time-outs cannot end with ours, and it looks for logins in the environment and the home
directory, which services do not have. So it is no dependency.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import requests
import yaml

from slurm_elastic.base import trust
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.errors import NoCredentials

IDENTITY_URL = "http://169.254.169.254/metadata/identity/oauth2/token"
_IDENTITY_VERSION = "2018-02-01"
_RENEW_BEFORE_S = 300.0
"""A token is renewed so long before it expires: a request may wait for its answer."""
_LIFE_S = 3600.0
"""The life of a token whose answer does not name it."""
_KEYS = frozenset({"tenant", "client_id", "client_secret", "federated_token_file"})
_MAX_FILE_CHARS = 65536
_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class TokenRefused(Exception):  # noqa: N818 - the cloud's answer, not a failure of ours
    """The service that issues tokens refused. ``status``: of HTTP; ``code``: its own word."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"HTTP {status}: {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Tokens:
    """The present token of one cloud. Thread-safe. Call it inside ``BoundedSession.within``."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_token", "_renew_at")}

    def __init__(
        self,
        settings: AzureCloud,
        http: BoundedSession,
        clock: Callable[[], float] = time.monotonic,
        identity_url: str = IDENTITY_URL,
    ) -> None:
        self._settings = settings
        self._http = http
        self._clock = clock
        self._identity_url = identity_url
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def get(self) -> str:
        """A valid token. NoCredentials, TokenRefused, or the exceptions of requests."""
        with self._lock:
            if self._token and self._clock() < self._renew_at:
                return self._token
        # Without the lock: two threads that both renew the token do no harm.
        began_at = self._clock()
        token, life_s = self._renewed()
        with self._lock:
            self._token = token
            self._renew_at = began_at + life_s - min(_RENEW_BEFORE_S, life_s / 2)
        return token

    def forget(self, token: str) -> None:
        """Renew the token at the next call, because the cloud refused it."""
        with self._lock:
            if self._token == token:
                self._token = ""

    def _renewed(self) -> tuple[str, float]:
        login = read_login(self._settings.credentials) if self._settings.credentials else {}
        answer = self._by_principal(login) if "tenant" in login else self._by_identity(login)
        content = _content(answer)
        token = content.get("access_token")
        if answer.status_code != requests.codes.ok or not isinstance(token, str) or not token:
            # The description of an error has a trace id, and no part of a secret.
            code = str(content.get("error") or "NoToken")
            text = str(content.get("error_description") or "the answer has no token")
            raise TokenRefused(answer.status_code, code, text)
        # The metadata service writes the number as a text.
        life = str(content.get("expires_in") or "")
        return token, float(life) if life.isdecimal() else _LIFE_S

    def _by_principal(self, login: Mapping[str, str]) -> requests.Response:
        form = {
            "grant_type": "client_credentials",
            "client_id": login["client_id"],
            "scope": f"{self._settings.endpoint.rstrip('/')}/.default",
        }
        if "client_secret" in login:
            form["client_secret"] = login["client_secret"]
        else:
            assertion = _private_text(login["federated_token_file"]).strip()
            form |= {"client_assertion_type": _ASSERTION, "client_assertion": assertion}
        url = f"{self._settings.login_endpoint.rstrip('/')}/{login['tenant']}/oauth2/v2.0/token"
        return self._http.post(url, data=form, allow_redirects=False)

    def _by_identity(self, login: Mapping[str, str]) -> requests.Response:
        query = {
            "api-version": _IDENTITY_VERSION,
            "resource": f"{self._settings.endpoint.rstrip('/')}/",
        }
        if "client_id" in login:
            query["client_id"] = login["client_id"]
        return self._http.get(
            self._identity_url, params=query, headers={"Metadata": "true"},
            # The metadata service answers the VM itself, and refuses requests through a proxy.
            proxies={"http": "", "https": ""}, allow_redirects=False,
        )  # fmt: skip


def read_login(path: str) -> Mapping[str, str]:
    """The content of a file of credentials. NoCredentials if it cannot be used."""
    try:
        content = yaml.safe_load(_private_text(path))
    except yaml.YAMLError:
        # The parser's text would show a line of the file, which may be the secret.
        raise NoCredentials(f"{path} is not YAML") from None
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise NoCredentials(f"{path} has no lines of the form key: text")
    unknown = sorted(str(key) for key in content.keys() - _KEYS)
    if unknown:
        expected = ", ".join(sorted(_KEYS))
        raise NoCredentials(f"{path} has the key {unknown[0]}; expected some of {expected}")
    if "client_id" not in content:
        raise NoCredentials(f"{path} has no client_id")
    proofs = {"client_secret", "federated_token_file"} & content.keys()
    # A managed identity has no tenant, and needs no proof.
    if ("tenant" in content) != bool(proofs) or len(proofs) > 1:
        raise NoCredentials(
            f"{path} has {', '.join(sorted(content))}; expected client_id alone, or tenant, "
            "client_id and one of client_secret and federated_token_file"
        )
    return content


def _private_text(path: str) -> str:
    try:
        flaw = trust.flaw(path, trust.ours(), private=True)
        with open(path, encoding="utf-8") as file:
            # Bounded: the path may be the path of a device or of a huge file.
            text = file.read(_MAX_FILE_CHARS)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoCredentials(f"{path} cannot be read: {reason}") from None
    if flaw:
        raise NoCredentials(flaw)
    return text


def _content(answer: requests.Response) -> Mapping[str, Any]:
    try:
        content = answer.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
