"""The configurations of docs/first-burst.md, run: a job's machine is bought at the cloud's emulated API
by its real SDK, serves, and is given back. Only what names the site's own cloud is put in.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emulated import running_ec2, running_one
from libvirt_hosts import running_libvirtd
from msgspec.structs import replace as changed
from needs import ROOT
from providers.libvirt.bed import IMAGE
from providers.openstack.stand_in import FLAVORS, StandIn

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import configfile
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.client.fake_timed import TimedSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.testing.bench import Bench
from slurm_elastic.testing.census import Census
from slurm_elastic.testing.contract import UUID
from slurm_elastic.testing.in_memory import Inline, Silent
from tests.faults.beds import Aws, Libvirt, One, Stack

PAGE = Path(__file__).parents[2] / "docs" / "first-burst.md"


def on_page(provider: str) -> str:
    texts = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (text,) = [one for one in texts if f"provider: {provider}\n" in one]
    return str(text)


class Burst(Bench):
    """A site with that configuration, before its cloud."""

    def __init__(self, bed: Any, directory: Path, text: str) -> None:
        file = directory / "slurm-elastic.yaml"
        file.write_text(f"state_dir: {directory}\ntimings: {{suspend_time: 300}}\n{text}")
        config = configfile.load(file)
        self.config = changed(config, cluster=changed(config.cluster, uuid=UUID))
        (cloud,) = self.config.clouds
        (pool,) = self.config.pools
        self.bed, self.dir, self.now = bed, directory, time.time()
        self.nodes = tuple(expand(pool.nodes))
        self.spool = Spool(directory)
        self.spool.create()
        self._numbers = iter(range(10**6))
        self.slurm = TimedSlurm(
            self.nodes, lambda: self.now, self._program, suspend_time=300.0,
            suspend_timeout=30.0, resume_timeout=600.0,
        )  # fmt: skip
        self.ledger = Ledger(directory / "ledger.db")
        self.census = Census(bed.nodes)
        provider = open_provider(cloud, self.config.cluster, self.config)
        site = Site.of(
            self.config, self.slurm, self.ledger, {cloud.name: provider}, lambda: self.now
        )
        self.daemon = Daemon(
            replace(site, monotonic=lambda: self.now, wait=self._wait),
            self.spool, Silent(), lambda _: Inline(),  # type: ignore[arg-type]
            features=FEATURES,
        )  # fmt: skip

    def step(self, seconds: float) -> None:
        """As a bench does, before a cloud that hides nothing."""
        self.now += seconds
        self.slurm.step()
        for machine in self.ledger.machines.live():
            node = machine.instance.node
            if machine.is_wanted and self.now - self.slurm.asked(node) >= 30:
                self.slurm.register(node, machine.instance.address or node)
        self.daemon.guarded_tick()


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[tuple[Any, Mapping[str, str]]]:
    with running_ec2(tmp_path) as control:
        bed = Aws(control)
        subnets = bed.client.describe_subnets()["Subnets"]
        subnet = next(s["SubnetId"] for s in subnets if s["AvailabilityZone"] == "us-east-1a")
        yield (
            bed,
            {
                "region: eu-central-1": f"region: us-east-1\n    endpoint: {control.url}",
                "ami-0123456789abcdef0": "ami-12345678",
                "eu-central-1a: subnet-0aa": f"us-east-1a: {subnet}",
            },
        )


@pytest.fixture
def openstack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Mapping[str, str]]]:
    monkeypatch.setitem(FLAVORS, "m1.large", (4, 8192))
    with StandIn().serving() as stand_in:
        bed = Stack(stand_in, tmp_path)
        yield (
            bed,
            {
                "cloud: hpc ": f"clouds_file: {bed.file}\n    cloud: hpc ",
                "slurm-node": "worker",
                "cluster-net": "lan",
            },
        )


@pytest.fixture
def opennebula(tmp_path: Path) -> Iterator[tuple[Any, Mapping[str, str]]]:
    with running_one(tmp_path) as control:
        bed = One(control, tmp_path, user="elastic")
        yield (
            bed,
            {
                "http://front-end:2633/RPC2": f"{control.endpoint}\n    auth_file: {bed.auth}",
                "template: 12": "template: 0",
            },
        )


@pytest.fixture
def libvirt(tmp_path: Path) -> Iterator[tuple[Any, Mapping[str, str]]]:
    with running_libvirtd() as daemon:
        bed = Libvirt(daemon, tmp_path)
        yield (
            bed,
            {
                'qemu+ssh://slurm@kvm1/system"': f'{daemon.uri("test:///default")}", memory: 1T',
                "slurm-node.qcow2": f"{IMAGE}\n    storage_pool: default-pool\n    virtualization: test",
            },
        )
        bed.close()


@pytest.mark.parametrize(
    "provider", ["aws", "openstack", "opennebula", pytest.param("libvirt", marks=ROOT)]
)
def test_the_first_configuration_bursts(
    provider: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bed, own = request.getfixturevalue(provider)
    text = on_page(provider)
    for name, there in own.items():
        assert name in text, "the page names it"
        text = text.replace(name, there)
    site = Burst(bed, tmp_path, text)
    try:
        run(site, bed.alive)
    finally:
        site.close()


def run(site: Burst, alive: Callable[[], set[str]]) -> None:
    node = site.nodes[0]
    site.advance(30)
    site.slurm.submit(42, (node,))
    for _ in range(60):
        site.step(10)
        if site.running():
            break
    assert site.running(), [str(d.reason) for d in site.ledger.decisions.about("job:42")]
    (machine,) = site.ledger.machines.live()
    (running,) = alive()
    assert running.split("-", 1)[-1] == machine.instance.id.split("-", 1)[-1]
    site.slurm.finish(42)
    for _ in range(90):
        site.step(10)
        if not alive():
            break
    assert alive() == set()
    assert site.ledger.machines.live() == ()
