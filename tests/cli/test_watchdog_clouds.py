"""The clouds that the watchdog watches while the configuration changes at a bad moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.services.watchdog import _WatchedClouds
from slurm_elastic.config.fresh import FreshConfig
from slurm_elastic.providers.base.refused import RefusedProvider

CLOUD = """
  - name: {name}
    provider: opennebula
    endpoint: http://127.0.0.1:1/RPC2
    location: on-premises
    {user_data}
    types:
      s: {{template: 12, cpus: 4, memory: 8000, price: {price}}}
"""
POOL = """
  - {{name: {name}, cloud: {name}, nodes: "{name}[1-2]", cpus: 4, memory: 7000,
     instance_types: [s], markets: [on-demand]}}
"""


class File:
    """A configuration whose first cloud needs a file that a person may move."""

    def __init__(self, directory: Path, *other_clouds: str) -> None:
        self.path, self.user_data = directory / "slurm-elastic.yaml", directory / "user-data"
        self._directory, self._other_clouds = directory, other_clouds
        self.user_data.write_text("#!/bin/sh\n")
        self.write(price=0.1)

    def write(self, price: float) -> None:
        names = {"one": f"user_data: {self.user_data}", **dict.fromkeys(self._other_clouds, "")}
        clouds = [CLOUD.format(name=n, user_data=u, price=price) for n, u in names.items()]
        self.path.write_text(
            "cluster: {name: demo, uuid: 11111111-2222-3333-4444-555555555555}\n"
            f"state_dir: {self._directory}/state\nslurm: {{user: root}}\n"
            f"clouds:{''.join(clouds)}pools:{''.join(POOL.format(name=n) for n in names)}"
        )

    def lose_user_data(self) -> None:
        self.user_data.rename(self._directory / "moved")

    def put_user_data_back(self) -> None:
        (self._directory / "moved").rename(self.user_data)


def test_a_change_while_no_cloud_can_be_opened_keeps_the_clouds_before(tmp_path: Path) -> None:
    file = File(tmp_path)
    clouds = _WatchedClouds(FreshConfig(file.path))
    assert clouds.renewed() is not None
    file.write(price=0.125)
    file.lose_user_data()
    assert clouds.renewed() is None
    assert clouds.renewed() is None
    file.put_user_data_back()
    renewed = clouds.renewed()
    assert renewed is not None
    assert not isinstance(renewed.providers["one"], RefusedProvider)
    assert clouds.renewed() is None


def test_a_cloud_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    file = File(tmp_path, "two")
    file.lose_user_data()
    clouds = _WatchedClouds(FreshConfig(file.path))
    first = clouds.renewed()
    assert first is not None
    assert isinstance(first.providers["one"], RefusedProvider)
    assert clouds.renewed() is None
    file.put_user_data_back()
    second = clouds.renewed()
    assert second is not None
    assert not isinstance(second.providers["one"], RefusedProvider)
    assert second.providers["two"] is first.providers["two"]
    assert clouds.renewed() is None


def test_a_start_without_any_usable_cloud_is_an_error(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.lose_user_data()
    with pytest.raises(ConfigError, match="user_data"):
        _WatchedClouds(FreshConfig(file.path)).renewed()
