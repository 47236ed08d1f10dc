"""``init --make`` and ``--unmake`` on the stand-in of OpenStack."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import Kind, StandIn
from providers.openstack.stand_in_network import EXTERNAL, Neutron

from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.conf import plan
from slurm_elastic.testing.contract import UUID

SITE = """\
cluster: {{name: alps, uuid: {uuid}}}    # the site's own words stay
limits: {{nodes: 8}}
join:
  head: 10.1.2.3
  network: {{kind: wireguard, endpoint: "192.0.2.7:51820", routes: [10.1.2.0/24], public_key: {place}/wg.pub}}
clouds:
  - name: stack
    provider: openstack
    location: on-premises
    cloud: hpc
    clouds_file: {file}
    image: worker    # made by hand
    types: {{small: {{cpus: 2, memory: 4G}}}}
pools:
  - {{name: os, cloud: stack, nodes: "os[1-8]", cpus: 2, memory: 4G, instance_types: [small], markets: [reserved]}}
"""


class Project:
    """A project with a network to the outside alone."""

    def __init__(self, stand_in: StandIn, directory: Path) -> None:
        self.bed = StackBed(stand_in, directory)
        self.stand_in = stand_in
        self.neutron = Neutron()
        self.bed.world.neutron = self.neutron
        self.yaml = directory / "slurm-elastic.yaml"
        self.text = SITE.format(uuid=UUID, file=self.bed.file, place=directory)
        (directory / "wg.pub").write_text("A" * 43 + "=\n")
        self.yaml.write_text(self.text)
        self.key = directory / "ssh_key"

    def init(self, *arguments: str) -> int:
        return main(["--config", str(self.yaml), "init", *arguments])

    def make(self, *arguments: str) -> int:
        return self.init("--make", "--yes", *arguments)

    def unmake(self, *arguments: str) -> int:
        return self.init("--unmake", "--yes", *arguments)

    @property
    def cloud(self):
        (cloud,) = configfile.load(self.yaml).clouds
        return cloud

    def launch(self):
        config = configfile.load(self.yaml)
        pool = plan.pools_of(config)[0]
        provider = open_provider(config.clouds[0], config.cluster, config)
        offer = provider.offers(pool)[0]
        spec = LaunchSpec(generation="g1", pool=pool, nodes=pool.nodes[:1], offer=offer)
        return provider.launch(spec)


@pytest.fixture
def project(stand_in: StandIn, tmp_path: Path) -> Project:
    return Project(stand_in, tmp_path)


def test_from_an_empty_project_to_a_machine_and_back(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.neutron.snapshot()
    assert project.make() == 0, capsys.readouterr().err
    cloud = project.cloud
    text = project.yaml.read_text()
    assert "# the site's own words stay" in text
    assert "# made by hand" in text
    assert stat.S_IMODE(project.key.stat().st_mode) == 0o600
    rules = project.neutron.records["security-group-rules"].values()
    own = {
        (r["direction"], r["protocol"], r["port_range_min"], r["remote_ip_prefix"])
        for r in rules
        if r["security_group_id"] == cloud.security_groups[0]
    }
    assert own == {
        ("egress", "udp", 51820, "192.0.2.7/32"), ("egress", "tcp", 80, "169.254.169.254/32"),
    }  # fmt: skip

    (machine,) = project.launch()
    order = project.bed.world.bodies[-1]
    assert order["networks"] == [{"uuid": cloud.networks[0]}]
    assert order["security_groups"] == [{"name": cloud.security_groups[0]}]
    assert order["key_name"] == cloud.key_name == "slurm-elastic-alps-stack"
    capsys.readouterr()
    assert project.unmake() == 0
    out = capsys.readouterr().out
    assert f"in use by {machine.id}" in out
    assert "remove" not in out, "a running machine keeps its network, group and router"
    assert project.cloud == cloud

    project.bed.world.servers.clear()
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before
    assert project.yaml.read_text() == project.text
    assert not project.key.exists()


def test_the_second_run_changes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.make() == 0
    after, text = project.neutron.snapshot(), project.yaml.read_text()
    capsys.readouterr()
    assert project.make() == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert (project.neutron.snapshot(), project.yaml.read_text()) == (after, text)


CALLS = [
    "POST /network/v2.0/networks", "POST /network/v2.0/subnets", "POST /network/v2.0/routers",
    "PUT /network/v2.0/routers/*", "POST /network/v2.0/security-groups",
    "DELETE /network/v2.0/security-group-rules/*", "POST /network/v2.0/security-group-rules",
    "POST /compute/v2.1/os-keypairs",
]  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.RESET_BEFORE, Kind.RESET_AFTER])
@pytest.mark.parametrize("call", CALLS)
def test_a_run_that_ends_at_any_step_is_completed_and_removed(
    project: Project, call: str, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    before = project.neutron.snapshot()
    for complete in (False, True):
        project.stand_in.fail(kind, call, count=1)
        assert project.make() == 2
        project.stand_in.heal()
        assert "done before: " in capsys.readouterr().err
        if complete:
            assert project.make() == 0
            assert project.make() == 0
            assert "nothing is to be done" in capsys.readouterr().out
        assert project.unmake() == 0
        assert project.neutron.snapshot() == before
        assert project.yaml.read_text() == project.text


REMOVALS = [
    "DELETE /network/v2.0/networks/*", "DELETE /network/v2.0/subnets/*",
    "DELETE /network/v2.0/routers/*", "PUT /network/v2.0/routers/*",
    "DELETE /network/v2.0/security-groups/*", "DELETE /compute/v2.1/os-keypairs/*",
]  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.RESET_BEFORE, Kind.RESET_AFTER])
@pytest.mark.parametrize("call", REMOVALS)
def test_a_removal_that_ends_at_any_step_is_completed(
    project: Project, call: str, kind: Kind
) -> None:
    before = project.neutron.snapshot()
    assert project.make() == 0
    project.stand_in.fail(kind, call, count=1)
    assert project.unmake() == 2
    project.stand_in.heal()
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before
    assert project.yaml.read_text() == project.text


def test_a_missing_right_is_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    message = "rule:create_router is disallowed by policy"
    project.stand_in.refuse(403, message, "POST /network/v2.0/routers")
    assert project.make() == 2
    told = capsys.readouterr().err
    assert "the right to POST /routers (network) is missing" in told
    assert "done before: created network" in told
    project.stand_in.heal()


def test_what_somebody_changed_stays(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.make() == 0
    group = project.cloud.security_groups[0]
    rule = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4"}
    project.neutron._create("security-group-rules", rule)
    subnet = {"name": "theirs", "network_id": project.cloud.networks[0], "cidr": "10.7.0.0/24"}
    project.neutron._create("subnets", subnet)
    capsys.readouterr()
    assert project.unmake() == 0
    out = capsys.readouterr().out
    assert "somebody changed it: it has a rule of its own" in out
    assert "somebody changed it: it has subnet " in out
    assert project.cloud.security_groups == (group,)
    assert project.cloud.networks
    assert project.cloud.key_name is None


def test_several_networks_to_the_outside(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.neutron.records["networks"]["x"] = {
        "id": "x", "name": "other", "router:external": True, "description": ""
    }  # fmt: skip
    assert project.make() == 2
    assert "--external-network: expected one of the project's: other, public" in (
        capsys.readouterr().err
    )
    assert project.make("--external-network", "public") == 0
    (router,) = project.neutron.records["routers"].values()
    assert router["external_gateway_info"] == {"network_id": EXTERNAL}


def test_named_networks_are_kept(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.text = project.text.replace(
        "    image: worker", "    networks: [cluster-net]\n    image: worker"
    )
    project.yaml.write_text(project.text)
    before = project.neutron.snapshot()
    assert project.make() == 0
    assert "keep    network cluster-net" in capsys.readouterr().out
    assert not project.neutron.records["subnets"]
    assert project.unmake() == 0
    assert project.neutron.snapshot() == before
