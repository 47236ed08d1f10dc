"""Finds when credentials end that a person has to renew. Credentials that botocore renews are
ignored.

Botocore knows the end only of credentials that it renews itself. For the rest the tools that made
them write it down: in the variable AWS_CREDENTIAL_EXPIRATION (aws configure export-credentials), in
the profile (saml2aws and similar tools), or in the token file of ``aws sso login``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha1
from pathlib import Path
from typing import Any

import botocore.session
from botocore.exceptions import BotoCoreError
from botocore.utils import parse_timestamp

from slurm_elastic.providers.aws.settings import AwsCloud

_PROFILE_KEYS = ("x_security_token_expires", "aws_expiration", "expiration")
_SSO_CACHE = Path("~/.aws/sso/cache")


def credentials_end(settings: AwsCloud) -> float | None:
    """The end as Unix time. None if it is unknown, or if a role or a process renews the
    credentials.
    """
    session = botocore.session.Session(profile=settings.profile)
    try:
        credentials: Any = session.get_credentials()
        profile = session.get_scoped_config()
        config = session.full_config
    except (BotoCoreError, OSError, ValueError):
        return None  # the first call to EC2 will report the error
    match getattr(credentials, "method", None):
        case "env":
            ends_at = _time(os.environ.get("AWS_CREDENTIAL_EXPIRATION"))
        case "shared-credentials-file" | "config-file":
            ends_at = next(
                (t for w in _PROFILE_KEYS if (t := _time(profile.get(w))) is not None), None
            )
        case "sso":
            ends_at = _token_end(profile, config.get("sso_sessions", {}))
        case _:
            # botocore renews credentials of a role or a process itself.
            ends_at = None
    return ends_at


def _token_end(profile: Mapping[str, Any], sessions: Mapping[str, Any]) -> float | None:
    """The end of the token. A token that can be renewed lasts until its registration ends."""
    for name in _token_names(profile, sessions):
        path = _SSO_CACHE.expanduser() / f"{sha1(name.encode()).hexdigest()}.json"  # noqa: S324 - botocore's
        try:
            token = json.loads(path.read_text("utf-8"))
            is_renewable = "refreshToken" in token
            return _time(token.get("registrationExpiresAt" if is_renewable else "expiresAt"))
        # Deliberate: a missing or broken file only hides a date, and must not stop doctor.
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return None


def _token_names(profile: Mapping[str, Any], sessions: Mapping[str, Any]) -> Iterator[str]:
    """The names that a token's file may have: the session, or in older configurations the URL."""
    if name := profile.get("sso_session"):
        yield str(name)
        profile = sessions.get(name, {})
    if url := profile.get("sso_start_url"):
        yield str(url)


def _time(text: object) -> float | None:
    if not text:
        return None
    try:
        when: datetime = parse_timestamp(str(text))
    except (ValueError, TypeError, OverflowError):
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
