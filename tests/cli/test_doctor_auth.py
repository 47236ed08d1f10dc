"""``doctor`` on a site with auth/slurm: keys that end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings
from slurm_elastic.doctor import auth
from slurm_elastic.model import Finding, Level, Location
from slurm_elastic.providers.fake.settings import FakeCloud

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
        {"alg": "HS256", "kty": "oct", "kid": kid, "k": "x"} | ({"exp": exp} if exp else {})
        for kid, exp in ends.items()
    ]
    (tmp_path / "slurm.jwks").write_bytes(msgspec.json.encode({"keys": found}))


def told(config: Config) -> dict[str, Finding]:
    return {finding.what: finding for finding in auth.examine(config, NOW)}


def test_keys_that_end_are_told(config: Config, tmp_path: Path) -> None:
    keys(tmp_path, old=NOW - 1, soon=NOW + 3 * DAY, good=NOW + 90 * DAY, ever=None)
    found = told(config)
    assert found["slurm.jwks: key old"].level is Level.WRONG
    assert found["slurm.jwks: key soon"].found == "it expires in 3.0 days"
    assert len(found) == 2
    keys(tmp_path, good=NOW + 90 * DAY)
    assert told(config)["slurm.jwks"].level is Level.OK


def test_a_spoilt_file_is_told(config: Config, tmp_path: Path) -> None:
    (tmp_path / "slurm.jwks").write_text("[]")
    assert told(config)["slurm.jwks"].level is Level.WRONG


def test_without_the_file_a_key_never_ends(config: Config) -> None:
    assert told(config)["slurm.jwks"].level is Level.NOTE


def test_other_sites_hear_nothing(config: Config, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=a\nAuthType=auth/munge\n")
    assert told(config) == {}
