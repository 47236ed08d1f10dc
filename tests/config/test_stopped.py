"""Which pools may keep stopped machines, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.configfile import load

SITE = """
cluster: {{name: demo}}
{join}
clouds:
  - name: cloud
    provider: {provider}
    location: {location}
    {more}
pools:
  - {{name: pool, cloud: cloud, nodes: "c[1-2]", cpus: 2, memory: 4G, {pool}}}
"""
FAKE = {"provider": "fake", "location": "public", "more": "", "join": ""}


def read(tmp_path: Path, **values: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(SITE.format(**{**FAKE, **values}))
    load(file)


def test_a_pool_on_demand_may(tmp_path: Path) -> None:
    read(tmp_path, pool="max_stopped: 2, stopped_price: 0.01")
    read(tmp_path, pool="max_stopped: 1, markets: [spot, on-demand]")
    read(tmp_path, pool="markets: [spot]")


def test_one_behind_a_tunnel_may(tmp_path: Path) -> None:
    hosts = "image: a\n    hosts: {h: {}}\n    types: {t: {cpus: 2, memory: 8G}}"
    join = "join: {head: 10.99.0.1, network: {endpoint: 'head.example.org:51820'}}"
    pool = "max_stopped: 1, instance_types: [t]"
    read(tmp_path, pool=pool, provider="libvirt", location="on-premises", more=hosts, join=join)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pool": "max_stopped: 3"}, "found 3, expected at most 2, the number of nodes of the pool"),
        ({"pool": "max_stopped: -1"}, "found -1, expected a whole number"),
        ({"pool": "max_stopped: 1, markets: [spot]"}, "expected 0: spot machines are not stopped"),
        (
            {
                "pool": "max_stopped: 1, slurmd_port: 17000", "provider": "local",
                "location": "on-premises",
            },
            "expected 0: machines of provider local cannot be stopped and started",
        ),
    ],
)  # fmt: skip
def test_others_may_not(tmp_path: Path, values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **values)
    text = str(caught.value)
    assert "pools[0] (pool).max_stopped: " in text
    assert words in text
