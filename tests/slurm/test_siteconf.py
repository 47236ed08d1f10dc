"""A site's slurm.conf, read as Slurm reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client import siteconf
from tests.slurm import site_cases


def read(tmp_path: Path, text: str) -> siteconf.SiteConf:
    path = tmp_path / "slurm.conf"
    path.write_bytes(text.encode())
    return siteconf.read(path)


def value(site: siteconf.SiteConf, name: str) -> str | None:
    entry = site.option(name)
    return entry.value if entry else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ClusterName=a", "a"),
        ("clustername = a", "a"),
        ("ClusterName=a # comment", "a"),
        ("ClusterName=a#comment", "a"),
        ("ClusterName=a\\#b", "a#b"),
        ('ClusterName="a b"', "a b"),
        ("ClusterName=a,\\\nb", "a,b"),
        ("ClusterName=a,\\  \nb", "a,b"),
        ("# ClusterName=x \\\nClusterName=a", "a"),
        ("ClusterName=a\r\nSlurmUser=b\r\n", "a"),
        ("SlurmUser=b ClusterName=a", "a"),
        ("ClusterName=a\nclustername=b", "b"),
        ("ClusterName=a \\", "a"),
    ],
)
def test_lines_are_read_as_slurm_does(tmp_path: Path, text: str, expected: str) -> None:
    assert value(read(tmp_path, text), "ClusterName") == expected


@pytest.mark.parametrize(("release", "place"), [((22, 5), "sub"), ((24, 11), "."), ((25, 11), ".")])
def test_includes_are_where_the_release_looks_and_know_the_cluster(
    tmp_path: Path, release: tuple[int, int], place: str
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.conf").write_text("Include last.conf\n")
    (tmp_path / place / "last.conf").write_text("NodeName=n1\n\nSlurmdPort=7\n")
    (tmp_path / "phys.conf").write_text("SlurmUser=slurm\n")
    absolute = tmp_path / "absolute.conf"
    absolute.write_text("MinJobAge=5\n")
    text = f"ClusterName=Phys\ninclude %c.conf\nInclude sub/more.conf\nINCLUDE {absolute}\n"
    (tmp_path / "slurm.conf").write_text(text)
    site = siteconf.read(tmp_path / "slurm.conf", release=lambda: release)
    port = site.option("slurmdport")
    assert port is not None
    assert port.location == f"{tmp_path / place / 'last.conf'}:3"
    assert value(site, "SlurmUser") == "slurm"
    assert value(site, "MinJobAge") == "5"
    assert list(site.node_names) == ["n1"]


def test_our_own_fragment_is_no_part_of_the_site(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=a\ninclude slurm-elastic.conf\n")
    assert value(siteconf.read(path, ignore="slurm-elastic.conf"), "ClusterName") == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ClusterName=a\nnonsense", "{}:2: 'nonsense' is not a name=value pair as Slurm has them"),
        ("A=1\n\nB=2 junk", "{}:3: 'junk' is not a name=value pair as Slurm has them"),
        ("NodeName=n[1-", "{}:1: NodeName: hostlist 'n[1-': bracket is not closed"),
        ("NodeName=n1\nNodeName=n[1-2]", "{}:2: node n1 is already at {}:1"),
        ("PartitionName=p\nPartitionName=p", "{}:2: partition p is already at {}:1"),
        ("A=1\nInclude gone.conf", "{}:2: cannot read {dir}/gone.conf: No such file or directory"),
        ("Include slurm.conf", "{}:1: Includes nest deeper than 8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "slurm.conf"
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert str(refused.value) == message.replace("{}", str(path)).replace("{dir}", str(tmp_path))


def test_a_missing_slurm_conf_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*/slurm.conf: No such file"):
        siteconf.read(tmp_path / "slurm.conf")


def test_defaults_fill_in_what_later_lines_leave_out(tmp_path: Path) -> None:
    site = read(
        tmp_path,
        "NodeName=early CPUs=1\n"
        "NodeName=DEFAULT CPUs=4 RealMemory=100\n"
        "NodeName=n[1-2] RealMemory=200\n"
        "NodeName=DEFAULT CPUs=8\n"
        "NodeName=late\n"
        "PartitionName=DEFAULT PriorityTier=3 MaxTime=60\n"
        "PartitionName=a Nodes=early\n"
        "PartitionName=b Nodes=late Default=YES PriorityTier=7\n",
    )
    early, middle, late = site.nodes
    assert (early.get("cpus"), early.get("realmemory")) == ("1", "")
    assert (middle.get("cpus"), middle.get("realmemory")) == ("4", "200")
    assert (late.get("cpus"), late.get("realmemory")) == ("8", "100")
    assert {k: e.value for k, e in site.node_defaults.items()} == {"cpus": "8", "realmemory": "100"}
    assert site.default_partition is not None
    assert site.default_partition.names == ("b",)
    assert site.priority_tier == 7


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("", 1),
        ("PartitionName=a", 1),
        ("PartitionName=a Default=yes", 1),
        ("PartitionName=a Default=YES Priority=5", 5),
        ("PartitionName=DEFAULT PriorityTier=9\nPartitionName=a Default=YES", 9),
    ],
)
def test_the_tier_is_that_of_the_default_partition(tmp_path: Path, text: str, tier: int) -> None:
    assert read(tmp_path, text).priority_tier == tier


def test_items_of_a_list_option(tmp_path: Path) -> None:
    site = read(tmp_path, "PrivateData=jobs,users\nJobSubmitPlugins=(null)\nGresTypes=gpu")
    assert site.items("PrivateData") == ("jobs", "users")
    assert site.items("JobSubmitPlugins") == ()
    assert site.items("Unset") == ()


@pytest.mark.parametrize(
    ("name", "nodes", "default"),
    [
        ("small", 4, "batch"),
        ("accounting", 13, "main"),
        ("own-lua", 4, "short"),
        ("topology", 6, "prod"),
        ("private", 2, "day"),
    ],
)
def test_realistic_sites(name: str, nodes: int, default: str) -> None:
    site = siteconf.read(site_cases.SITES / name / "slurm.conf")
    assert len(site.node_names) == nodes
    assert site.default_partition is not None
    assert site.default_partition.names == (default,)
