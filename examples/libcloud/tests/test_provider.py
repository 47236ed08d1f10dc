"""The suite that every provider keeps, on libcloud's dummy cloud, and the way in by entry point."""

from __future__ import annotations

import json

import pytest
from bed import DummyBed, MatrixBed
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.providers import open_provider
from slurm_elastic.testing import contract, matrix

SITE = """
cluster: {name: demo, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}
clouds:
  - name: far
    provider: libcloud
    location: public
    driver: dummy
    credentials: FILE
    image: "1"
    limits: {dollars_per_hour: 5}
    types: {Big: {cpus: 2, memory: 4G, price: 0.2}}
pools:
  - {name: b, cloud: far, nodes: "b[1-4]", cpus: 2, memory: 4G, instance_types: [Big]}
allow: {accounts: [physics]}
"""


@pytest.fixture
def bed():
    return DummyBed()


@pytest.fixture
def new_bed():
    return lambda _: MatrixBed()


class TestLaunches(contract.LaunchContract): ...


class TestScarcity(contract.ScarceContract): ...


class TestFaults(contract.FaultContract):
    asks_for_notices = False


class TestDelays(contract.DelayedContract): ...


class TestLateFailures(contract.LateFailureContract): ...


class TestBulk(contract.BulkContract): ...


class TestMatrix(matrix.FaultMatrix): ...


def site(file):
    return configfile.parse(SITE.replace("FILE", str(file)), "site.yaml")


def test_a_configuration_finds_it_by_its_entry_point(tmp_path):
    assert "libcloud" in table().names()
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"creds": "1"}))
    config = site(file)
    provider = open_provider(config.clouds[0], config.cluster, config)
    provider.check()
    assert provider.instances() == ()


@pytest.mark.parametrize("text", ["not JSON", '{"unknown": 1}'])
def test_credentials_that_will_not_do_are_a_mistake_of_that_cloud(tmp_path, text):
    file = tmp_path / "credentials.json"
    file.write_text(text)
    config = site(file)
    with pytest.raises(ConfigError, match="cloud 'far': driver or credentials"):
        open_provider(config.clouds[0], config.cluster, config)


def test_the_sites_arguments_cannot_take_the_tags_from_a_machine(bed):
    settings = replace(bed.settings(), arguments={"ex_metadata": "theirs"})
    provider = bed._opened(settings, contract.UUID, bed.cloud.now)
    (machine,) = provider.launch(contract.spec_for(bed, provider, 1))
    assert [m.id for m in provider.instances()] == [machine.id]
