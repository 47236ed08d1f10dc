"""When a login token of OpenNebula ends."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace

import pytest

from slurm_elastic.model.protocols import Expiring
from slurm_elastic.providers.opennebula.client import token_end
from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider


def token(secret: str, ends: object) -> SimpleNamespace:
    return SimpleNamespace(TOKEN=secret, EXPIRATION_TIME=ends, EGID=-1)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (None, None),
        (token("mine", 1795149147), 1795149147.0),
        ([token("another", 5), token("mine", "1795149147")], 1795149147.0),
        (token(sha256(b"mine").hexdigest(), 1795149147), 1795149147.0),
        (token("mine", -1), None),
        (token("another", 5), None),
    ],
)
def test_it_is_the_end_of_the_token_in_use(tokens: object, found: float | None) -> None:
    assert token_end(SimpleNamespace(LOGIN_TOKEN=tokens), "mine") == found


def test_the_provider_tells_it() -> None:
    assert issubclass(OpenNebulaProvider, Expiring)
