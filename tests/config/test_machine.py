"""The pools' section ``machine``: which clouds have which keys, and what EC2 would refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.model.machine_options import NO_OPTIONS, Disk

EC2 = """
cluster: {name: demo}
clouds:
  - {name: aws, provider: aws, location: public, region: eu-central-1, image: ami-1, MORE
     types: {c5.large: {cpus: 2, memory: 4G, price: 0.1}}}
pools:
  - {name: p, cloud: aws, nodes: "c[1-2]", cpus: 2, memory: 4G, instance_types: [c5.large],
     POOL machine: {KEYS}}
"""
FAKE = """
cluster: {name: demo}
clouds: [{name: cloud, provider: fake, location: public}]
pools: [{name: p, cloud: cloud, nodes: c1, cpus: 2, memory: 4G, POOL machine: {KEYS}}]
"""
GROUP = "0b9d8a4e-5f0e-4f5c-8a33-0a5f6f1f0b52"
GROUPS = "security_groups: [sg-1],"


def read(tmp_path: Path, keys: str, pool: str = "", more: str = "", text: str = EC2) -> Config:
    file = tmp_path / "site.yaml"
    text = text.replace("KEYS", keys).replace("POOL", pool).replace("MORE", more)
    file.write_text(text)
    return load(file)


def test_all_keys(tmp_path: Path) -> None:
    keys = (
        "root_disk: {size: 100G, type: gp3, iops: 6000, throughput: 500}, "
        "disks: [{size: 1T, type: st1, encrypted: true, kms_key: alias/hpc}], disk_price: 0.02, "
        "rdma: true, placement_group: cluster, metadata_hops: 2, subnets: {eu-central-1a: subnet-1}"
    )
    pool = read(tmp_path, keys, more=GROUPS).pools[0]
    assert pool.machine.root_disk == Disk(size=100 * 1024, type="gp3", iops=6000, throughput=500)
    assert pool.machine.disks[0].size == 1024 * 1024
    assert pool.machine.subnets == {"eu-central-1a": "subnet-1"}


def test_the_old_word_for_rdma_is_refused_with_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"machine\.efa is now pools.*machine\.rdma; .*upgrade"):
        read(tmp_path, "efa: true")


def test_without_the_section_nothing_changes(tmp_path: Path) -> None:
    assert read(tmp_path, "").pools[0].machine == NO_OPTIONS
    assert read(tmp_path, "rdma: false, disks: []", text=FAKE).pools[0].machine == NO_OPTIONS


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("rdma: true", "machine.rdma: found true (true or false), expected security_groups of the"),
        ("root_disk: {size: 10}", "root_disk.size: found 10"),
        ("root_disk: {size: 1500M}", "found 1500 MiB, expected whole gigabytes, such as 100G"),
        ("root_disk: {type: st1}", "found 'st1', expected one of gp3, gp2, io2, io1, standard"),
        ("root_disk: {type: gp33}", "found 'gp33', expected one of gp3, gp2, io2, io1, standard"),
        ("root_disk: {type: io2}", "no 'iops', expected the number that a disk of type io2 needs"),
        ("root_disk: {type: gp2, iops: 10}", "found 10, expected type gp3, io2, io1 beside it"),
        ("root_disk: {throughput: 200}", "found 200, expected type gp3 beside it"),
        ("root_disk: {kms_key: k}", "found 'k', expected encrypted: true beside it"),
        ("disks: [{type: gp3}]", "machine.disks[0]: found no 'size', expected a size such as 100G"),
        (f"disks: [{', '.join(['{size: 1G}'] * 12)}]", "found 12 disks, expected at most 11"),
        ("placement_group: cluster", "found 'cluster' and all zones of the region, expected one z"),
        ("placement_group: 'caf\u00e9'", "expected cluster, or the name or id (pg-...) of a"),
        ("metadata_hops: 65", "found 65, expected a whole number from 1 to 64"),
        ("disk_price: -1", "found -1, expected a number of at least 0"),
        ("subnets: {us-east-1a: s}", "found 'us-east-1a', expected a zone of region eu-central-1"),
        ("rdna: true", "unknown key 'rdna', expected one of disk_price, disks,"),
    ],
)  # fmt: skip
def test_what_ec2_refuses_is_told_with_its_line(tmp_path: Path, keys: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, keys)
    (complaint,) = raised.value.args
    assert complaint.startswith(f"{tmp_path}/site.yaml:8: pools[0] (p).machine"), complaint
    assert words in complaint


def test_zones_are_those_of_the_pools_subnets(tmp_path: Path) -> None:
    keys = "subnets: {eu-central-1a: subnet-1}"
    cloud = "zones: [eu-central-1c],"
    read(tmp_path, keys, "zones: [eu-central-1a],", cloud)
    with pytest.raises(
        ConfigError, match=r"expected a zone of machine\.subnets: one of eu-central"
    ):
        read(tmp_path, keys, "zones: [eu-central-1c],", cloud)
    read(tmp_path, "placement_group: cluster", "zones: [eu-central-1c],", cloud)


def test_another_cloud_has_other_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, "rdma: true, root_disk: {size: 9G}, disks: [{size: 9G}]", text=FAKE)
    words = "expected no section machine, because provider fake has nothing else"
    assert str(raised.value).count(words) == 3


OPENSTACK = """
cluster: {name: demo}
clouds:
  - {name: stack, provider: openstack, location: on-premises, cloud: hpc, image: node,
     types: {m1: {cpus: 2, memory: 4G}}}
pools:
  - {name: p, cloud: stack, nodes: "c[1-2]", cpus: 2, memory: 4G, instance_types: [m1],
     POOL machine: {KEYS}}
"""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (f"root_disk: {{size: 40G, type: ssd}}, placement_group: {GROUP}", None),
        ("placement_group: cluster", "found 'cluster', expected the id of a server group"),
        ("root_disk: {type: ssd}", "found no 'size', expected a size such as 40G"),
        ("root_disk: {size: 40G, iops: 9}", "found 9, expected only size and type"),
        ("rdma: true", "expected one of placement_group, root_disk, because provider openstack"),
    ],
)
def test_openstack_has_server_groups_and_volumes(
    tmp_path: Path, keys: str, words: str | None
) -> None:
    if words is None:
        read(tmp_path, keys, text=OPENSTACK)
        return
    with pytest.raises(ConfigError, match=re.escape(words)):
        read(tmp_path, keys, text=OPENSTACK)
