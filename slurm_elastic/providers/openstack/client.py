"""openstacksdk's credentials and catalog, with a transport of ours: a time limit that holds.

requests' own bounds the wait for each piece of an answer, and one call of ours may take several
requests (a token, the API's versions): here all of them end at one time. Nothing is repeated.
"""

from __future__ import annotations

import functools
import io
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import requests
import urllib3
import yaml
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from openstack.config import OpenStackConfig
from openstack.config.loader import CONFIG_FILES, SECURE_FILES
from requests.adapters import HTTPAdapter

from slurm_elastic.base import trust
from slurm_elastic.base.bounded import ANSWER, Budget, pieces
from slurm_elastic.providers.base.errors import NoCredentials
from slurm_elastic.providers.openstack.settings import OpenStackCloud

MICROVERSION = "2.69"
"""The first by which servers of a cell that is down are listed and not left out (Stein, 2019)."""
_VERSIONS = {
    "compute": ("2.1", "2.latest"),
    "image": ("2", "2.latest"),
    "network": ("2", "2.latest"),
}
_SECRETS = frozenset(
    {
        "access_token",
        "application_credential_secret",
        "client_secret",
        "consumer_secret",
        "passcode",
        "password",
        "refresh_token",
        "token",
    }
)
_CONNECT = 0.3
"""The part of the time-out that connecting may take."""


class Refused(Exception):  # noqa: N818 - it is the cloud's answer, not a failure of ours
    """An HTTP answer of 400 and more; ``message`` is the cloud's own."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: HTTP {status}: {message}")
        self.method = method
        self.path = path
        self.status = status
        self.message = message


class NotConnected(requests.exceptions.ConnectionError):
    """No connection came about, so nothing was sent."""


class BoundedSession(requests.Session):
    """All requests of a thread inside ``within`` end by the same time."""

    def __init__(self) -> None:
        super().__init__()
        # One kept open, which the server has closed meanwhile, would make an order that never
        # arrived look like one whose answer was lost.
        self.headers["Connection"] = "close"
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(max_retries=0))
        self._thread = threading.local()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """The time that the requests in the block have together."""
        self._thread.until, self._thread.whole = time.monotonic() + seconds, seconds
        try:
            yield
        finally:
            del self._thread.until

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401
        """The answer is whole on return."""
        left = self._left()
        budget = Budget(ANSWER, left)
        kwargs |= {"timeout": (min(left, self._thread.whole * _CONNECT), left), "stream": True}
        try:
            response = super().send(request, **kwargs)
        except requests.exceptions.ConnectionError as error:
            if _is_unconnected(error):
                raise NotConnected(str(error)) from error
            raise
        try:
            # A byte now and then must not hold us either, nor more than memory has.
            body = b"".join(pieces(response.raw, budget, decode_content=True))
        except TimeoutError as error:
            raise requests.exceptions.Timeout(str(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise requests.exceptions.ConnectionError(error) from error
        finally:
            response.close()
        response.raw = io.BytesIO(body)
        return response

    def _left(self) -> float:
        left: float = self._thread.until - time.monotonic()
        if left <= 0:
            raise requests.exceptions.Timeout("the answer took too long")
        return left


def _is_unconnected(error: requests.exceptions.ConnectionError) -> bool:
    """Among these, requests has a class of its own only for a connection that took too long."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    refused = isinstance(reason, urllib3.exceptions.NewConnectionError)
    return refused or isinstance(error, requests.exceptions.ConnectTimeout)


class Api:
    """One project in one region, by raw requests; thread-safe."""

    def __init__(self, settings: OpenStackCloud) -> None:
        self._timeout = settings.timeout
        self._http = BoundedSession()
        region = region_of(settings, self._http)
        session = region.get_session()
        self._services = {
            service: Adapter(
                session,
                service_type=service,
                interface=region.get_interface(service),
                region_name=region.get_region_name(service),
                endpoint_override=region.get_endpoint(service),
                min_version=low,
                max_version=high,
            )
            for service, (low, high) in _VERSIONS.items()
        }

    def call(
        self, service: str, method: str, path: str, body: object = None, content: str = ""
    ) -> Any:  # noqa: ANN401
        """One request; the JSON of its answer, None where it has none. Refused, or what
        keystoneauth raises. ``content``: the body's type where it is another than JSON's own.
        """
        more: dict[str, object] = {"microversion": MICROVERSION} if service == "compute" else {}
        if body is not None:
            more["json"] = body
        if content:
            more["headers"] = {"Content-Type": content}
        return self._answered(service, method, path, self._timeout, more)

    def send(self, service: str, path: str, file: BinaryIO, seconds: float) -> None:
        """PUT a whole file in so many seconds; errors as of ``call``."""
        headers = {"Content-Type": "application/octet-stream"}
        self._answered(service, "PUT", path, seconds, {"data": file, "headers": headers})

    def _answered(
        self, service: str, method: str, path: str, seconds: float, more: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401
        with self._http.within(seconds):
            # Nothing of it is logged: user data and passwords are in it.
            answer = self._services[service].request(
                path, method, raise_exc=False, log=False, connect_retries=0, **more
            )
        if answer.status_code >= 400:
            raise Refused(method, path.partition("?")[0], answer.status_code, _message(answer))
        return answer.json() if answer.content else None

    def credentials_end(self) -> float | None:
        """Unix time; of a token, an application credential or a password, whichever there is.
        Errors: keystoneauth's.
        """
        session = self._services["compute"].session
        auth: Any = session.auth
        with self._http.within(self._timeout):
            access = auth.get_access(session)
            name = type(auth).__name__
            if name.endswith("Token"):
                return float(access.expires.timestamp())
            if name == "ApplicationCredential":
                return _time(_application_credential(session, access).get("expires_at"))
        return _time(access._data["token"]["user"].get("password_expires_at"))


def _application_credential(session: Any, access: Any) -> Mapping[str, Any]:  # noqa: ANN401
    """Keystone's record of the one in use; empty where it does not show it."""
    used = access._data["token"].get("application_credential") or {}
    base = session.auth.token_url.removesuffix("/auth/tokens")
    path = f"{base}/users/{access.user_id}/application_credentials/{used.get('id')}"
    answer = session.request(path, "GET", raise_exc=False, log=False, connect_retries=0)
    if answer.status_code >= 400:
        return {}
    found: Mapping[str, Any] = answer.json().get("application_credential") or {}
    return found


def _time(text: str | None) -> float | None:
    """Keystone's times are of UTC, with and without saying so."""
    if text is None:
        return None
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def region_of(settings: OpenStackCloud, http: BoundedSession) -> Any:  # noqa: ANN401 - the SDK's
    """The entry of clouds.yaml, read anew; NoCredentials, or the SDK's ConfigException."""
    plain, secret = _files(settings, os.environ)
    if plain is None:
        raise NoCredentials("there is no clouds.yaml; see docs/openstack.md")
    for path in (plain, secret):
        if path is not None:
            _require_private(path)
    # All words but these come from the files: a daemon's environment has none.
    constructor: Any = functools.partial(Session, session=http)
    config = OpenStackConfig(
        config_files=[plain],
        secure_files=[secret] if secret else [],
        load_envvars=False,
        session_constructor=constructor,
    )
    chosen: dict[str, Any] = {"region_name": settings.region} if settings.region else {}
    return config.get_one(cloud=settings.cloud, **chosen)


def _files(settings: OpenStackCloud, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """clouds.yaml and secure.yaml, as openstacksdk finds them; with ``clouds_file`` beside it."""
    if settings.clouds_file:
        beside = [str(Path(settings.clouds_file).with_name("secure.yaml"))]
        return settings.clouds_file, _first(beside)
    plain = [*_named(env, "OS_CLIENT_CONFIG_FILE"), *CONFIG_FILES]
    secret = [*_named(env, "OS_CLIENT_SECURE_FILE"), *SECURE_FILES]
    return _first(plain), _first(secret)


def _named(env: Mapping[str, str], name: str) -> Sequence[str]:
    return [env[name]] if env.get(name) else []


def _first(paths: Sequence[str]) -> str | None:
    return next((path for path in paths if os.path.exists(path)), None)


def _require_private(path: str) -> None:
    """A file with a secret must be its owner's alone."""
    try:
        with open(path, encoding="utf-8") as file:
            words = yaml.safe_load(file)
        wrong = trust.flaw(path, trust.ours(), private=_has_secret(words))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoCredentials(f"{path} cannot be read: {why}") from None
    except yaml.YAMLError:
        # The parser's words would show a line of it.
        raise NoCredentials(f"{path} is not YAML") from None
    if wrong:
        raise NoCredentials(wrong)


def _has_secret(words: object) -> bool:
    if isinstance(words, Mapping):
        return bool(_SECRETS & words.keys()) or any(map(_has_secret, words.values()))
    return isinstance(words, list) and any(map(_has_secret, words))


def _message(answer: requests.Response) -> str:
    """``{"badRequest": {"message": ...}}`` of nova and its like; else the beginning of the text."""
    try:
        words = answer.json()
    except ValueError:
        return answer.text
    if not isinstance(words, Mapping):
        return answer.text
    found = (p.get("message") for p in words.values() if isinstance(p, Mapping))
    listed = (e.get("title") for e in words.get("errors", ()) if isinstance(e, Mapping))
    return str(next((m for m in (*found, *listed) if m), answer.text))
