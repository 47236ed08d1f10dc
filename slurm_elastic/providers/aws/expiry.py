"""When the credentials end that a person has to renew; those that botocore renews are no concern.

Botocore knows an end only of what it renews. The rest is told by the tools that made them:
AWS_CREDENTIAL_EXPIRATION in the environment (aws configure export-credentials), a word in the
profile (saml2aws and its like), the token that ``aws sso login`` keeps.
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

_WORDS = ("x_security_token_expires", "aws_expiration", "expiration")
_SSO = Path("~/.aws/sso/cache")


def credentials_end(settings: AwsCloud) -> float | None:
    """Unix time; None where none is known, or somebody renews them: a role, a process."""
    session = botocore.session.Session(profile=settings.profile)
    try:
        credentials: Any = session.get_credentials()
        profile = session.get_scoped_config()
        whole = session.full_config
    except (BotoCoreError, OSError, ValueError):
        return None  # the first call says what is wrong
    match getattr(credentials, "method", None):
        case "env":
            ends = _time(os.environ.get("AWS_CREDENTIAL_EXPIRATION"))
        case "shared-credentials-file" | "config-file":
            ends = next((t for w in _WORDS if (t := _time(profile.get(w))) is not None), None)
        case "sso":
            ends = _of_token(profile, whole.get("sso_sessions", {}))
        case _:
            ends = None
    return ends


def _of_token(profile: Mapping[str, Any], sessions: Mapping[str, Any]) -> float | None:
    """A token that can be renewed lasts until its registration ends."""
    for name in _names(profile, sessions):
        path = _SSO.expanduser() / f"{sha1(name.encode()).hexdigest()}.json"  # noqa: S324 - botocore's
        try:
            token = json.loads(path.read_text("utf-8"))
            renewed = "refreshToken" in token
            return _time(token.get("registrationExpiresAt" if renewed else "expiresAt"))
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return None


def _names(profile: Mapping[str, Any], sessions: Mapping[str, Any]) -> Iterator[str]:
    """The word that names the file of a token: the session, or in older configurations the URL."""
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
