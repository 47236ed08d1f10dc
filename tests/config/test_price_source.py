"""The key ``checkpoint.prices.source``: which clouds report the history of their spot prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.configfile import load

FAKE = "{name: c, provider: fake, location: public}"
EC2 = (
    "{name: c, provider: aws, location: public, region: eu-central-1, image: ami-1, "
    "types: {t: {cpus: 2, memory: 4G, price: 0.1}}}"
)


def read(tmp_path: Path, cloud: str, source: str) -> str:
    file = tmp_path / "site.yaml"
    file.write_text(
        f"cluster: {{name: demo}}\nclouds: [{cloud}]\n"
        "pools: [{name: p, cloud: c, nodes: c1, cpus: 2, memory: 4G, instance_types: [t]}]\n"
        f"checkpoint: {{prices: {{source: {source}}}}}\n"
    )
    return load(file).checkpoint.prices.source


def test_the_cloud_itself_may_be_asked_if_it_reports_its_prices(tmp_path: Path) -> None:
    assert read(tmp_path, EC2, "cloud") == "cloud"
    with pytest.raises(ConfigError, match=r"source: found 'cloud', expected a cloud that reports"):
        read(tmp_path, FAKE, "cloud")


def test_the_old_word_for_it_is_refused_with_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source: found 'ec2', expected 'cloud', the new word"):
        read(tmp_path, EC2, "ec2")
