"""The runner's look at an OpenStack: what is on and what is not, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import Kind, StandIn

from slurm_elastic.base.errors import TransientError
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.stack import sources
from slurm_elastic.testing.contract import UUID


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    with StandIn().serving() as running:
        yield running


@pytest.fixture
def layout(stand_in: StandIn, tmp_path: Path) -> Layout:
    bed = StackBed(stand_in, tmp_path)
    cloud = {
        "provider": "openstack",
        "name": "stack",
        "location": "on-premises",
        "cloud": "hpc",
        "clouds_file": str(bed.file),
        "image": "worker",
        "types": {"small": {"cpus": 2, "memory": 4096}},
    }
    pool = {"name": "os", "cloud": "stack", "nodes": "os[1-9]", "cpus": 2, "memory": 4096}
    config = {
        "cluster": {"name": "site", "uuid": UUID},
        "clouds": [cloud, {**cloud, "name": "stack-b", "partition": "b"}],
        "pools": [{**pool, "instance_types": ["small"]}],
    }
    (tmp_path / "etc").mkdir()
    made = Layout(dir=tmp_path)
    made.config.write_text(yaml.safe_dump(config))
    return made


def test_active_servers_are_machines_that_are_on(
    stand_in: StandIn, layout: Layout, tmp_path: Path
) -> None:
    bed = StackBed(stand_in, tmp_path)
    provider = bed.open()
    offer = provider.offers(bed.pool)[0]
    spec = LaunchSpec(generation="g1", pool=bed.pool, nodes=("os1", "os2", "os3"), offer=offer)
    first, second, third = provider.launch(spec)
    bed.add_foreign()
    bed.world.servers[second.id]["status"] = "SHUTOFF"
    bed.world.servers[third.id]["OS-EXT-STS:task_state"] = "deleting"
    (prefix, look), (other, look_elsewhere) = sources(layout)
    assert {(m.id, m.node, m.state) for m in look()} == {
        (f"openstack=stack={first.id}", "os1", "running"),
        (f"openstack=stack={second.id}", "os2", "off"),
        (f"openstack=stack={third.id}", "os3", "off"),
    }
    assert look_elsewhere() == ()
    assert not prefix.startswith(other)
    assert not other.startswith(prefix)


def test_a_cloud_that_does_not_answer_says_nothing_about_machines(
    stand_in: StandIn, layout: Layout
) -> None:
    (_, look), _ = sources(layout)
    stand_in.fail(Kind.STATUS, status=503)
    with pytest.raises(TransientError):
        look()
    stand_in.heal()
    assert look() == ()
