"""Uses openstacksdk's credentials and service catalog with our own transport, which keeps a time
limit (``base.bounded_http``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import requests
import yaml
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from msgspec import Struct
from openstack.config import OpenStackConfig
from openstack.config.loader import CONFIG_FILES, SECURE_FILES

from slurm_elastic.base import trust
from slurm_elastic.base.pages import page
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.errors import NoCredentials
from slurm_elastic.providers.openstack.settings import OpenStackCloud

MICROVERSION = "2.69"
"""The first version in which nova also lists servers of an unreachable cell (Stein, 2019)."""
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
_LOGIN = frozenset({"auth", "auth_type", "username", "user_id", "project_name", "project_id"})
"""Keys of an entry of clouds.yaml that say who logs in."""


class HttpRefused(Exception):  # noqa: N818 - the cloud's answer, not a failure of ours
    """An HTTP answer of 400 or more. ``message`` is the cloud's own."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: HTTP {status}: {message}")
        self.method = method
        self.path = path
        self.status = status
        self.message = message


class Login(Struct, frozen=True, kw_only=True):
    """How keystone knows us. ``user``: its id; ``roles``: the names of its roles in the project;
    ``credential``: the id of the application credential in use, "" if it is another kind of login.
    """

    auth_url: str
    user: str
    roles: tuple[str, ...]
    region: str
    credential: str


class OpenStackApi:
    """One project in one region, by plain requests. Thread-safe."""

    def __init__(self, settings: OpenStackCloud) -> None:
        self._timeout = settings.api_timeout
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
        """Send one request and return the JSON of its answer, or None if it is empty. ``content``:
        the type of the body, if it is not JSON's own.

        Raises HttpRefused, or the exceptions of keystoneauth.
        """
        options: dict[str, object] = {"microversion": MICROVERSION} if service == "compute" else {}
        if body is not None:
            options["json"] = body
        if content:
            options["headers"] = {"Content-Type": content}
        return self._answered(service, method, path, self._timeout, options)

    def send(self, service: str, path: str, file: BinaryIO, seconds: float) -> None:
        """PUT a whole file within ``seconds``. Raises the same exceptions as ``call``."""
        headers = {"Content-Type": "application/octet-stream"}
        self._answered(service, "PUT", path, seconds, {"data": file, "headers": headers})

    def _answered(
        self, service: str, method: str, path: str, seconds: float, options: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401
        with self._http.within(seconds):
            # Not logged, because requests contain user data and passwords.
            answer = self._services[service].request(
                path, method, raise_exc=False, log=False, connect_retries=0, **options
            )
        if answer.status_code >= 400:
            raise HttpRefused(method, path.partition("?")[0], answer.status_code, _message(answer))
        return answer.json() if answer.content else None

    def login(self) -> Login:
        """Log in. Raises the exceptions of keystoneauth."""
        adapter = self._services["compute"]
        auth: Any = adapter.session.auth
        with self._http.within(self._timeout):
            token = auth.get_access(adapter.session)._data["token"]
        return Login(
            auth_url=str(auth.auth_url),
            user=str(token["user"]["id"]),
            roles=tuple(sorted(str(role["name"]) for role in token.get("roles", ()))),
            region=adapter.region_name or "",
            credential=str((token.get("application_credential") or {}).get("id", "")),
        )

    def own_user(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        """Send one request to keystone about our own user; ``path`` is below the user's. Like
        ``call``.
        """
        session = self._services["compute"].session
        options: dict[str, Any] = {} if body is None else {"json": body}
        with self._http.within(self._timeout):
            auth: Any = session.auth
            user = auth.get_access(session).user_id
            url = f"{_keystone(session)}/users/{user}{path}"
            answer = session.request(
                url, method, raise_exc=False, log=False, connect_retries=0, **options
            )
        if answer.status_code >= 400:
            raise HttpRefused(method, f"/users/*{path}", answer.status_code, _message(answer))
        return answer.json() if answer.content else None

    def credentials_end(self) -> float | None:
        """The end of the token, application credential or password in use (Unix time), or None.
        Raises the same exceptions as ``own_user``.
        """
        session = self._services["compute"].session
        auth: Any = session.auth
        with self._http.within(self._timeout):
            access = auth.get_access(session)
        auth_class = type(auth).__name__
        if auth_class.endswith("Token"):
            return float(access.expires.timestamp())
        if auth_class == "ApplicationCredential":
            credential = access._data["token"].get("application_credential") or {}
            # A refusal passes: "not shown" is not "it does not end".
            answer = self.own_user("GET", f"/application_credentials/{credential.get('id')}")
            return _time(answer["application_credential"].get("expires_at"))
        return _time(access._data["token"]["user"].get("password_expires_at"))


def _keystone(session: Any) -> str:  # noqa: ANN401
    """The address of keystone's version 3, as keystoneauth derives it for tokens."""
    base = str(session.auth.auth_url).rstrip("/")
    return base if base.endswith("v3") else f"{base}/v3"


def entry_of(settings: OpenStackCloud) -> dict[str, Any]:
    """The project's entry of clouds.yaml without its login: certificates, addresses, interface."""
    plain, _ = _files(settings, os.environ)
    with open(plain or os.devnull, encoding="utf-8") as file:
        content = yaml.safe_load(file) or {}
    entry = (content.get("clouds") or {}).get(settings.cloud) or {}
    return {key: value for key, value in entry.items() if key not in _LOGIN | _SECRETS}


def _time(text: str | None) -> float | None:
    """Convert a time of keystone to Unix time. Such times are in UTC, with or without a zone."""
    if text is None:
        return None
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def region_of(settings: OpenStackCloud, http: BoundedSession) -> Any:  # noqa: ANN401 - the SDK's
    """The entry of clouds.yaml, read again at each call. NoCredentials, or the SDK's
    ConfigException.
    """
    plain, secret = _files(settings, os.environ)
    if plain is None:
        raise NoCredentials(f"there is no clouds.yaml; see {page('openstack')}")
    for path in (plain, secret):
        if path is not None:
            _require_private(path)
    # Everything else comes from the files, because the environment of a daemon has no variables.
    constructor: Any = functools.partial(Session, session=http)
    config = OpenStackConfig(
        config_files=[plain],
        secure_files=[secret] if secret else [],
        load_envvars=False,
        session_constructor=constructor,
    )
    region_option: dict[str, Any] = {"region_name": settings.region} if settings.region else {}
    return config.get_one(cloud=settings.cloud, **region_option)


def _files(settings: OpenStackCloud, env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The paths of clouds.yaml and secure.yaml, as openstacksdk finds them. With ``clouds_file``
    the second is beside it.
    """
    if settings.clouds_file:
        beside = [str(Path(settings.clouds_file).with_name("secure.yaml"))]
        return settings.clouds_file, _first_existing(beside)
    plain = [*_from_environment(env, "OS_CLIENT_CONFIG_FILE"), *CONFIG_FILES]
    secret = [*_from_environment(env, "OS_CLIENT_SECURE_FILE"), *SECURE_FILES]
    return _first_existing(plain), _first_existing(secret)


def _from_environment(env: Mapping[str, str], name: str) -> Sequence[str]:
    return [env[name]] if env.get(name) else []


def _first_existing(paths: Sequence[str]) -> str | None:
    return next((path for path in paths if os.path.exists(path)), None)


def _require_private(path: str) -> None:
    """NoCredentials if a file with a secret may be read by other users than its owner."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
        flaw = trust.flaw(path, trust.ours(), private=_has_secret(content))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise NoCredentials(f"{path} cannot be read: {reason}") from None
    except yaml.YAMLError:
        # The parser's text would show a line of the file, which may be a secret.
        raise NoCredentials(f"{path} is not YAML") from None
    if flaw:
        raise NoCredentials(flaw)


def _has_secret(content: object) -> bool:
    if isinstance(content, Mapping):
        return bool(_SECRETS & content.keys()) or any(map(_has_secret, content.values()))
    return isinstance(content, list) and any(map(_has_secret, content))


def _message(answer: requests.Response) -> str:
    """The message in ``{"badRequest": {"message": ...}}`` of nova and similar services; else the
    start of the text.
    """
    try:
        content = answer.json()
    except ValueError:
        return answer.text
    if not isinstance(content, Mapping):
        return answer.text
    messages = (p.get("message") for p in content.values() if isinstance(p, Mapping))
    titles = (e.get("title") for e in content.get("errors", ()) if isinstance(e, Mapping))
    return str(next((m for m in (*messages, *titles) if m), answer.text))
