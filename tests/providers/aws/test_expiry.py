"""When credentials of AWS end that nobody but a person renews."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha1
from pathlib import Path

import pytest

from slurm_elastic.model.cluster import Location
from slurm_elastic.model.protocols import Expiring
from slurm_elastic.providers.aws.expiry import credentials_end
from slurm_elastic.providers.aws.provider import AwsProvider
from slurm_elastic.providers.aws.settings import AwsCloud

ENDS = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC).timestamp()
TEXT = "2031-05-04T03:02:01Z"
KEY = "aws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def ends(profile: str | None = "site") -> float | None:
    cloud = AwsCloud(
        name="aws",
        location=Location.PUBLIC,
        region="eu-west-1",
        profile=profile,
        image="ami-1",
        types={},
    )
    return credentials_end(cloud)


def test_the_provider_tells_it() -> None:
    assert issubclass(AwsProvider, Expiring)


def test_of_a_session_in_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert ends(None) is None
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", TEXT)
    assert ends(None) == ENDS


@pytest.mark.parametrize("word", ["x_security_token_expires", "aws_expiration", "expiration"])
def test_of_a_session_in_a_file(home: Path, word: str) -> None:
    (home / "credentials").write_text(f"[site]\n{KEY}{word} = {TEXT}\n")
    assert ends() == ENDS


def test_keys_have_no_end_and_nonsense_is_none(home: Path) -> None:
    (home / "credentials").write_text(f"[site]\n{KEY}")
    assert ends() is None
    (home / "credentials").write_text(f"[site]\n{KEY}expiration = one day\n")
    assert ends() is None
    assert ends("nobody") is None


@pytest.mark.parametrize(
    ("token", "found"),
    [
        ({"accessToken": "t", "expiresAt": TEXT}, ENDS),
        # It renews itself until its registration ends.
        (
            {"accessToken": "t", "refreshToken": "r", "expiresAt": "2030-01-01T00:00:00Z",
             "registrationExpiresAt": TEXT},
            ENDS,
        ),
        ({"accessToken": "t"}, None),
        (["nonsense"], None),
    ],
)  # fmt: skip
def test_of_single_sign_on(home: Path, token: object, found: float | None) -> None:
    (home / "config").write_text(
        "[profile site]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = elastic\n"
        "[sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://sso.example\n"
    )
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    (cache / f"{sha1(b'corp').hexdigest()}.json").write_text(json.dumps(token))
    assert ends() == found


def test_a_process_renews_its_own(home: Path) -> None:
    answer = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": TEXT}
    (home / "keys.json").write_text(json.dumps(answer))
    (home / "config").write_text(f"[profile site]\ncredential_process = cat {home}/keys.json\n")
    assert ends() is None
