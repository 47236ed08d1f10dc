"""``doctor`` on a site with auth/slurm: keys that end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.joining import Join, Ssh
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.watch.doctor import auth

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "slurm.conf").write_text("ClusterName=a\nAuthType=auth/slurm\n")
    return Config(
        cluster=Cluster(name="a"),
        clouds=(FakeCloud(name="c", location=Location.ON_PREMISES),),
        pools=(PoolSettings(name="p", cloud="c", nodes="p1", cpus=1, memory=1024),),
        slurm=SlurmSettings(conf=str(tmp_path / "slurm.conf")),
    )


def keys(tmp_path: Path, **ends: float | None) -> None:
    found = [
        {"alg": "HS256", "kty": "oct", "kid": kid, "k": "x" * 32} | ({"exp": exp} if exp else {})
        for kid, exp in ends.items()
    ]
    (tmp_path / "slurm.jwks").write_bytes(msgspec.json.encode({"keys": found}))


def told(config: Config) -> dict[str, Finding]:
    return {finding.subject: finding for finding in auth.examine(config, NOW)}


def test_keys_that_end_are_told(config: Config, tmp_path: Path) -> None:
    keys(tmp_path, old=NOW - 1, soon=NOW + 3 * DAY, good=NOW + 90 * DAY, ever=None)
    found = told(config)
    assert found["slurm.jwks: key old"].level is FindingLevel.WRONG
    assert found["slurm.jwks: key soon"].observed == "it expires in 3.0 days"
    assert len(found) == 2
    assert "key rotate" in found["slurm.jwks: key soon"].advice
    keys(tmp_path, good=NOW + 90 * DAY)
    assert told(config)["slurm.jwks"].level is FindingLevel.OK


def test_a_spoilt_file_is_told(config: Config, tmp_path: Path) -> None:
    (tmp_path / "slurm.jwks").write_text("[]")
    assert told(config)["slurm.jwks"].level is FindingLevel.WRONG


def test_without_the_file_a_key_never_ends(config: Config) -> None:
    assert told(config)["slurm.jwks"].level is FindingLevel.NOTE


def test_other_sites_hear_nothing(config: Config, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=a\nAuthType=auth/munge\n")
    assert told(config) == {}


def test_keys_that_a_rotation_left_to_end_are_not_told(config: Config, tmp_path: Path) -> None:
    """Only those that slurmctld and machines sign with."""
    left = {"slurm-elastic::1": NOW - 1, "slurm-elastic:aws:1": NOW - 1}
    keys(tmp_path, **{"slurm-elastic::2": NOW + 90 * DAY}, **left)
    aws = AwsCloud(
        name="aws", location=Location.PUBLIC, region="r", image="ami-1",
        types={"t": InstanceType(cpus=1, memory=1024, price=0.1)},
    )  # fmt: skip
    config = msgspec.structs.replace(config, clouds=(aws,))
    assert told(config)["slurm.jwks: key slurm-elastic:aws:1"].level is FindingLevel.WRONG
    keys(tmp_path, **{"slurm-elastic::2": None}, **left, **{"slurm-elastic:aws:2": NOW + 90 * DAY})
    assert told(config)["slurm.jwks"].level is FindingLevel.OK
    keys(tmp_path, **{"slurm-elastic::2": NOW + 90 * DAY})
    assert told(config)["slurm.jwks"].observed == "no key of its own: aws"


@pytest.mark.parametrize(
    ("auth_type", "secret", "found"),
    [
        ("auth/slurm", {"munge_key": "/k"}, "machines need slurm_keys"),
        ("auth/munge", {"slurm_keys": "/k"}, "machines need munge_key"),
        ("auth/slurm", {"slurm_keys": "/k"}, ""),
        ("auth/munge", {"munge_key": "/k"}, ""),
    ],
)
def test_machines_that_get_the_other_secret_are_told(
    config: Config, tmp_path: Path, auth_type: str, secret: dict[str, str], found: str
) -> None:
    (tmp_path / "slurm.conf").write_text(f"ClusterName=a\nAuthType={auth_type}\n")
    ssh = Ssh(key="/id", **secret)
    config = msgspec.structs.replace(config, join=Join(head="h", ssh=ssh))
    wrong = told(config).get("join.ssh")
    assert found in (wrong.observed if wrong else "")
    assert (wrong is not None) == bool(found)
