"""``init`` at five sites, with the clouds that each has: what it writes passes ``conf check`` and
``doctor`` without a complaint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest
from docker_proxy import Fault, running_proxy
from emulated import running_ec2, running_one
from libvirt_hosts import running_libvirtd
from needs import unless
from providers.libvirt.bed import LibvirtBed
from providers.opennebula.bed import OneBed
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import StandIn
from providers.redfish import bed as redfish

from slurm_elastic.config import Config, configfile
from slurm_elastic.model.cluster import Location
from tests.cli.test_init import Host, host

pytestmark = unless("slurmctld")
__all__ = ["host"]
NOT_FOR_BATCH = ("t1.", "t2.", "t3", "t4g.", "m1.", "m2.", "trn", "inf", "dl", "f1.", "vt1.", "hpc")
"""Types that have no spot price here, so that doctor complains of a pool that takes one."""


class Site:
    """A host with ``init``, and what stands beside it until the end of a test."""

    def __init__(
        self,
        host: Host,
        stack: ExitStack,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.host, self.stack, self.patch, self.capsys = host, stack, monkeypatch, capsys

    def with_ec2(self) -> None:
        place = self.host.root / "ec2"
        place.mkdir()
        ec2 = self.stack.enter_context(running_ec2(place))
        for key, value in {
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": ec2.url,
        }.items():  # fmt: skip
            self.patch.setenv(key, value)
        api = boto3.client("ec2")
        api.register_image(Name="slurm-24.11", RootDeviceName="/dev/sda1")
        pages = api.get_paginator("describe_instance_types").paginate()
        for kind in (kind for page in pages for kind in page["InstanceTypes"]):
            name, cpus = kind["InstanceType"], kind["VCpuInfo"]["DefaultVCpus"]
            if 4 <= cpus <= 8 and not name.startswith(NOT_FOR_BATCH):
                ec2.price(name, "us-east-1a", 0.02)

    def init(self, conf: str, answers: str) -> Config:
        """The configuration; no check of it complains."""
        file = self.host.root / "answers.yaml"
        file.write_text(answers)
        code = self.host.init(self.host.site(conf), "--answers", str(file))
        out = self.capsys.readouterr().out
        assert code == 0, out
        assert self.host.run("conf", "check") == 0
        self.capsys.readouterr()
        assert self.host.run("doctor", "--clouds", "--json") == 0
        told = json.loads(self.capsys.readouterr().out)
        found = [one for part in told["parts"] for one in part["findings"]]
        assert found
        assert [one for one in found if one["level"] != "ok"] == []
        self.second_run_changes_nothing()
        return configfile.load(self.host.yaml)

    def second_run_changes_nothing(self) -> None:
        before = self.host.yaml.read_bytes()
        assert self.host.init(self.host.root / "etc" / "slurm.conf", "--yes") == 0
        assert "nothing is changed" in self.capsys.readouterr().out
        assert self.host.yaml.read_bytes() == before


@pytest.fixture
def site(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(host, stack, monkeypatch, capsys)


@pytest.mark.release
def test_a_small_lab_with_ec2(site: Site) -> None:
    site.with_ec2()
    config = site.init("small", "groups: [users]\ncap: 4\nshape: 4x8G\nhead: 10.0.0.1\n")
    (cloud,) = config.clouds
    assert cloud.location is Location.PUBLIC
    assert config.who_of(cloud).groups == ("users",)
    text = site.host.yaml.read_text()
    assert "generation: 5.., exclude: [t*, inf*" in text


@pytest.mark.release
def test_openstack_and_ec2_with_own_nodes(site: Site) -> None:
    site.with_ec2()
    bed = StackBed(site.stack.enter_context(StandIn().serving()), site.host.root)
    bed.world.images = [
        {"id": "11111111-aaaa-4bbb-8ccc-111111111111", "name": "worker", "status": "active",
         "created_at": "2026-01-01T00:00:00Z"},
    ]  # fmt: skip
    site.host.for_the_services(bed.file)
    site.patch.setenv("OS_CLIENT_CONFIG_FILE", str(bed.file))
    answers = "accounts: [physics]\ncap: 4\nshape: 4x8G\nhead: head.example.org\n"
    config = site.init("accounting", answers)
    assert [c.provider for c in config.clouds] == ["openstack", "aws"]
    assert [config.who_of(c).accounts for c in config.clouds] == [(), ("physics",)]


@pytest.mark.release
def test_opennebula(site: Site) -> None:
    place = site.host.root / "one"
    place.mkdir()
    one = site.stack.enter_context(running_one(place))
    auth = OneBed(one, site.host.root).auth
    site.host.for_the_services(auth)
    site.patch.setenv("ONE_AUTH", str(auth))
    site.patch.setenv("ONE_XMLRPC", one.endpoint)
    config = site.init("small", "shape: 2x4G\nhead: head.example.org\n")
    assert [c.provider for c in config.clouds] == ["opennebula"]


ENGINE = {
    "/images/json": [{"RepoTags": ["postgres:17"]}, {"RepoTags": ["site/slurm-node:1"]}],
    r"/networks(\?|$)": [{"Name": "bridge"}, {"Name": "lan"}, {"Name": "slurm"}],
    "/info": {"ServerVersion": "26.1.5", "NCPU": 2, "MemTotal": 4 << 30},
    "/images/site": {"Id": "1"},
    "/networks/slurm": {"Name": "slurm"},
}


@pytest.mark.release
def test_docker(site: Site) -> None:
    site.host.of_root = True
    socket = site.host.root / "engine.sock"
    engine = site.stack.enter_context(running_proxy(socket, None))
    engine.fail(*(
        Fault(status=200, body=json.dumps(body).encode(), match=match)
        for match, body in ENGINE.items()
    ))  # fmt: skip
    site.patch.setattr("slurm_elastic.providers.docker.found.SOCKET", socket)
    config = site.init("small", "shape: 4x8G\nhead: head.example.org\n")
    (pool,) = config.pools
    assert (pool.cpus, pool.memory) == (2, 4096)  # the whole of the engine's host
    assert (config.clouds[0].image, config.clouds[0].network) == ("site/slurm-node:1", "slurm")


@pytest.mark.release
def test_an_engine_without_an_image_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host.of_root = True
    with running_proxy(host.root / "engine.sock", None):
        socket = host.root / "engine.sock"
        monkeypatch.setattr("slurm_elastic.providers.docker.found.SOCKET", socket)
        assert host.init(host.site("small"), "--yes") == 2
    told = " ".join(capsys.readouterr().out.split())  # the table folds it
    assert "make an image with slurm in its name (slurm-elastic help docker)" in told
    assert not host.yaml.exists()


def test_redfish_and_libvirt(site: Site, tmp_path: Path) -> None:
    site.host.of_root = True
    bmcs = site.stack.enter_context(redfish.running(tmp_path))
    login = redfish.RedfishBed(bmcs, tmp_path).login
    site.patch.setattr("slurm_elastic.providers.redfish.found.CREDENTIALS", login)
    daemon = site.stack.enter_context(running_libvirtd())
    site.patch.setattr("slurm_elastic.providers.libvirt.found.SOCKETS", (daemon.socket,))
    site.patch.setattr("slurm_elastic.providers.libvirt.found.URI", daemon.uri("test:///default"))
    hand = LibvirtBed(daemon, None, "test", tmp_path)  # type: ignore[arg-type]  # no call goes wrong
    site.stack.callback(hand.patch.undo)
    for domain in hand.hand.listAllDomains():
        domain.destroy()  # the test driver's own has more memory than its host
    hand.storage.createXML(
        "<volume><name>slurm-1.qcow2</name><capacity unit='MiB'>1</capacity>"
        "<target><format type='qcow2'/></target></volume>"
    )
    hosts = "".join(f"  {h}: {bmcs.url}/{bmcs.ids[h]}\n" for h in ("h1", "h2"))
    config = site.init("small", f"hosts:\n{hosts}shape: 2x1G\nhead: head.example.org\n")
    assert {c.provider for c in config.clouds} == {"libvirt", "redfish"}
    assert {p.cloud: p.nodes for p in config.pools}["rack"] == "h1,h2"
