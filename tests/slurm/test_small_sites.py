"""Real sites' ways to write slurm.conf, each in a small file: refused with its place, or read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import ROOT_PART, unless

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf import check, dryrun, leaving, removal, topology
from tests.slurm import releases, small_sites
from tests.slurm.site_cases import ISOLATED

pytestmark = unless("slurmctld")
OLD, NEW = (22, 5), (25, 11)


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-small-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@ISOLATED
@pytest.mark.parametrize(
    "name", ["cluster-name-with-dot", "node-default-procs", "default-1", "licenses"]
)
def test_what_slurmctld_takes_is_checked_in_full(root: Path, name: str) -> None:
    assert check.check(small_sites.planned(name, root)).full


def test_the_default_partition_may_be_marked_by_any_word_for_yes(root: Path) -> None:
    text = small_sites.planned("default-1", root).fragment
    assert "PartitionName=aws Nodes=burst[1-4] Default=NO PriorityTier=5 " in text


def test_a_plugin_may_have_its_prefix(root: Path) -> None:
    conf = small_sites.copy("default-1", root)
    (conf.parent / "job_submit.lua").write_text("function slurm_job_submit() return 0 end\n")
    conf.write_text(f"{conf.read_text()}JobSubmitPlugins=job_submit/lua\n")
    text = small_sites.plan.make(small_sites.config(conf)).fragment
    assert "JobSubmitPlugins" not in text


@pytest.mark.parametrize("word", ["1", "UP", "true", "YES"])
def test_power_down_on_idle_is_refused_in_every_spelling(root: Path, word: str) -> None:
    conf = small_sites.copy("power-down-on-idle-1", root)
    conf.write_text(conf.read_text().replace("PowerDownOnIdle=1", f"PowerDownOnIdle={word}"))
    with pytest.raises(ConfigError) as refused:
        small_sites.plan.make(small_sites.config(conf), version=NEW)
    assert str(refused.value) == (
        f"{conf}:9: PowerDownOnIdle of partition debug is {word}; with slurm-elastic's"
        " SuspendProgram it would power down the site's own nodes, so it must be NO or absent"
    )


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("SuspendTime=NONE", False),
        ("SuspendTime=infinite", False),
        ("SuspendTime=-1", False),
        ("SuspendTime=UNLIMITED", True),
        ("PartitionName=q Nodes=n1 SuspendTime=INFINITE", False),
        ("PartitionName=q Nodes=n1 SuspendTime=NONE", True),
        ("PartitionName=q Nodes=n1 SuspendTime=UNLIMITED", True),
    ],
)
def test_a_suspend_time_is_as_endless_as_slurm_reads_it(
    root: Path, line: str, refused: bool
) -> None:
    if not refused:
        small_sites.planned("default-1", root, line)
        return
    with pytest.raises(ConfigError, match=r"slurm.conf:10: SuspendTime .*must be INFINITE"):
        small_sites.planned("default-1", root, line)


@ISOLATED
def test_an_include_in_an_included_file_is_read_where_slurm_looks(root: Path) -> None:
    one = small_sites.planned("nested-include", root, version=OLD)
    assert set(one.site.node_names) == {"n1", "n2", "n3"}
    assert check.check(one).full


def test_newer_slurm_looks_for_every_include_beside_slurm_conf(root: Path) -> None:
    conf = small_sites.copy("nested-include", root)
    with pytest.raises(ConfigError, match=rf"hosts.conf:1: cannot read {conf.parent}/nodes.conf"):
        small_sites.plan.make(small_sites.config(conf), version=NEW)
    (conf.parent / "nodes.conf").write_text("NodeName=n[1-5] CPUs=8\n")
    site = small_sites.plan.make(small_sites.config(conf), version=NEW).site
    assert len(site.node_names) == 5
    assert len(small_sites.plan.make(small_sites.config(conf), version=OLD).site.node_names) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('Include "nodes.conf"', "found \"nodes.conf\", expected a file name without quotes"),
        ("  Include nodes.conf", "found 'Include nodes.conf', expected Include at the start"),
        ("Include nodes.conf more.conf", "expected Include at the start of the line and one"),
    ],
)  # fmt: skip
def test_an_include_that_slurm_does_not_take_is_refused(
    root: Path, line: str, message: str
) -> None:
    conf = small_sites.copy("include-in-quotes", root)
    conf.write_text(conf.read_text().replace('Include "nodes.conf"', line))
    with pytest.raises(ConfigError) as refused:
        small_sites.plan.make(small_sites.config(conf))
    assert f"{conf}:8: " in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("line", "tier", "factor"),
    [
        ("PriorityTier=5", 5, 1),
        ("PriorityTier=0x10", 16, 1),
        ("Priority=7", 7, 7),
        ("PriorityTier=5 Priority=7", 7, 7),
        ("PriorityTier=5 PriorityJobFactor=9", 5, 9),
    ],
)
def test_the_default_partitions_order_is_read_as_slurm_does(
    root: Path, line: str, tier: int, factor: int
) -> None:
    conf = small_sites.copy("default-1", root)
    conf.write_text(conf.read_text().replace("PriorityTier=5", line))
    site = small_sites.plan.make(small_sites.config(conf)).site
    assert (site.priority_tier, site.priority_job_factor) == (tier, factor)


@ISOLATED
@pytest.mark.parametrize(
    "extra",
    [
        "",
        "PriorityWeightTRES=CPU=1000,Mem=2000,GRES/gpu=3000\nPriorityType=priority/multifactor",
        "SlurmSchedLogLevel=1\nSlurmSchedLogFile=/var/log/slurmsched.log",
    ],
)
def test_options_that_need_slurmdbd_or_a_log_are_no_hindrance(root: Path, extra: str) -> None:
    assert check.check(small_sites.planned("tres-billing-gpu", root, extra)).full


@ISOLATED
def test_a_gres_line_that_fits_no_cloud_node_is_refused_with_the_remedy(root: Path) -> None:
    conf = small_sites.copy("tres-billing-gpu", root)
    text = conf.read_text().replace("CPUs=2", "CPUs=16")
    conf.write_text(text)
    path = conf.parent / "gres.conf"
    path.write_text("Name=gpu Count=2 Cores=0-15\n")
    with pytest.raises(ConfigError) as refused:
        check.check(small_sites.plan.make(small_sites.config(conf)))
    failure, *remedies = refused.value.problems
    assert "Invalid GRES data" in failure
    assert remedies[0] == (
        f"{path}:1: Name=gpu without NodeName holds for cloud nodes, too; expected NodeName= with"
        " the site's own nodes before it"
    )


@ISOLATED
def test_a_fatal_error_without_a_cause_comes_with_the_errors_before_it(root: Path) -> None:
    conf = small_sites.copy("default-1", root)
    text = conf.read_text()
    conf.write_text(text.replace("Nodes=n[1-3] ", "").replace("NodeName=n", "#NodeName=n"))
    report = check.check(small_sites.plan.make(small_sites.config(conf)))
    assert not report.full
    assert "no nodes configured" in report.lines[-1].lower()
    assert "slurm-elastic-check" not in report.lines[-1]


def test_cloud_dns_is_mentioned(root: Path) -> None:
    one = small_sites.planned("default-1", root, "SlurmctldParameters=cloud_dns")
    assert any("cloud_dns: slurmctld gives commands" in notice for notice in one.notices)


@ISOLATED
@pytest.mark.parametrize(
    ("partitions", "order"),
    [
        (
            (
                "PartitionName=DEFAULT PriorityJobFactor=50\n"
                "PartitionName=batch Nodes=n[1-4] Default=YES PriorityJobFactor=10"
            ),
            ("1", "10"),
        ),
        (
            (
                "PartitionName=DEFAULT Priority=4\n"
                "PartitionName=batch Nodes=n[1-4] Default=YES Priority=7"
            ),
            ("7", "7"),
        ),
        ("PartitionName=batch Nodes=n[1-4] Default=YES PriorityTier=3", ("3", "1")),
    ],
)
def test_cloud_partitions_have_the_default_partitions_order(
    root: Path, partitions: str, order: tuple[str, str]
) -> None:
    conf = small_sites.copy("priority-job-factor", root)
    kept = [line for line in conf.read_text().splitlines() if "PartitionName" not in line]
    conf.write_text("\n".join((*kept, partitions, "")))
    one = small_sites.plan.make(small_sites.config(conf))
    assert check.check(one).full
    wrapper = dryrun.isolation() or ()
    shown = dryrun.run(one.config.slurm, one.site, one.fragment, wrapper).partitions["aws"]
    assert (shown["PriorityTier"], shown["PriorityJobFactor"]) == order


def test_a_priority_that_cannot_be_followed_is_refused(root: Path) -> None:
    conf = small_sites.copy("priority-job-factor", root)
    conf.write_text(f"{conf.read_text()}PartitionName=DEFAULT Priority=4\n")
    with pytest.raises(ConfigError, match=r"slurm.conf:12: PartitionName=DEFAULT sets Priority=4"):
        small_sites.plan.make(small_sites.config(conf))


def test_a_qos_of_the_default_partition_is_named_and_not_copied(root: Path) -> None:
    conf = small_sites.copy("priority-job-factor", root)
    conf.write_text(conf.read_text().replace("Default=YES", "Default=YES QOS=gold"))
    quiet = small_sites.plan.make(small_sites.config(conf))
    assert not any("QOS" in notice for notice in quiet.notices)
    conf.write_text(conf.read_text() + "PriorityWeightQOS=100\n")
    one = small_sites.plan.make(small_sites.config(conf))
    (notice,) = (notice for notice in one.notices if "QOS" in notice)
    assert notice.startswith(
        f"{conf}:11: partition batch has QOS gold, cloud partitions have none: "
    )
    assert "`sacctmgr modify qos gold set priority=0`" in notice
    assert "QOS=gold" not in one.fragment


@pytest.mark.parametrize("name", ["DefMemPerCPU", "DefMemPerNode"])
def test_a_default_memory_of_the_default_partition_alone_is_named(root: Path, name: str) -> None:
    """On a real slurmctld each job of one CPU had a cloud node to itself, and a share at home."""
    conf = small_sites.copy("priority-job-factor", root)
    by_memory = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n"
    kept = [n for n in conf.read_text().splitlines() if not n.startswith("SelectType")]
    plain = "\n".join((*kept, by_memory)).replace("Default=YES", f"Default=YES {name}=300")
    conf.write_text(plain)
    (notice,) = (n for n in small_sites.plan.make(small_sites.config(conf)).notices if name in n)
    assert f"partition batch has {name}=300, cloud partitions have none" in notice
    for everywhere in ("DefMemPerCPU=100\n", "PartitionName=DEFAULT DefMemPerNode=100\n"):
        conf.write_text(everywhere + plain)
        notices = small_sites.plan.make(small_sites.config(conf)).notices
        (notice,) = (n for n in notices if "DefMem" in n)
        inherited = everywhere.split()[-1]
        assert f"has {name}=300, cloud partitions {inherited}: a job without --mem" in notice
    conf.write_text(f"{name}=300\n{plain}")
    notices = small_sites.plan.make(small_sites.config(conf)).notices
    assert not any("DefMem" in notice for notice in notices)


@pytest.mark.parametrize("name", ["DefMemPerCPU", "DefMemPerNode"])
def test_a_default_memory_that_no_cloud_node_has_is_named(root: Path, name: str) -> None:
    conf = small_sites.copy("priority-job-factor", root)
    text = conf.read_text()
    config = small_sites.config(conf)
    most = max(pool.slurm_memory for pool in config.pools)
    for value, told in ((most, 0), (most + 1, 1)):
        conf.write_text(f"{name}={value}\n{text}")
        notices = [n for n in small_sites.plan.make(config).notices if "more than any node" in n]
        assert len(notices) == told
    assert f"{name}={most + 1} is more than any node of cloud" in notices[0]
    assert f"({most} MiB): no job without --mem gets this cloud" in notices[0]


def test_associations_with_the_default_partition_are_named(root: Path) -> None:
    conf = small_sites.copy("priority-job-factor", root)
    more = "PriorityWeightFairshare=10\nAccountingStorageType=accounting_storage/slurmdbd\n"
    conf.write_text(conf.read_text() + more)
    sacctmgr = root / "bin" / "sacctmgr"
    sacctmgr.parent.mkdir()
    sacctmgr.write_text("#!/bin/sh\nprintf '\\nbatch\\n\\nbatch\\nother\\n'\n")
    sacctmgr.chmod(0o755)
    config = small_sites.config(conf)
    config = replace(config, slurm=replace(config.slurm, bin_dir=str(sacctmgr.parent)))
    one = small_sites.plan.make(config, version=OLD)
    assert any("2 associations name partition batch: " in notice for notice in one.notices)


@pytest.mark.parametrize(
    ("line", "beginning"),
    [
        ("SuspendExcNodes=n1,burst1", "SuspendExcNodes has burst1: Slurm does not power down"),
        ("SuspendExcParts=aws", "SuspendExcParts has aws: Slurm does not power down these"),
        ("SuspendExcStates=CLOUD,DRAIN", "SuspendExcStates is CLOUD,DRAIN: Slurm does not power"),
        (
            "PartitionName=sim Nodes=n1,burst[1-2]",
            "partition sim has cloud nodes (burst[1-2]): its jobs get them whatever `allow`",
        ),
    ],
)
def test_lines_that_name_our_nodes_are_told_with_their_place(
    root: Path, line: str, beginning: str
) -> None:
    one = small_sites.planned("default-1", root, line)
    place = f"{one.site.path}:10: "
    assert any(notice.startswith(place + beginning) for notice in one.notices)


@ISOLATED
@pytest.mark.parametrize(
    "line",
    [
        "PartitionName=sim Nodes=n1,burst[1-2]",
        "NodeSet=sets Nodes=n1,burst[1-2]\nPartitionName=sim Nodes=sets",
        # The first run must not give our nodes the sockets of the site's own.
        "NodeName=DEFAULT Sockets=2 CoresPerSocket=48\nNodeName=b\nPartitionName=p Nodes=b,burst1",
    ],
    ids=["partition", "node set", "sockets by default"],
)
def test_a_partition_with_our_nodes_is_checked_in_full(root: Path, line: str) -> None:
    assert check.check(small_sites.planned("default-1", root, line)).full


@ISOLATED
def test_a_value_that_slurmctld_reads_otherwise_is_refused_with_its_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siteconf, "priority", lambda *_: 4)
    with pytest.raises(ConfigError) as refused:
        check.check(small_sites.planned("default-1", root))
    assert refused.value.problems[0].endswith(
        "/slurm.conf:9: slurm-elastic reads PriorityTier of partition debug as 4, slurmctld as 5;"
        " write it so that it cannot be misread (slurm.conf(5))"
    )


def test_topology_yaml_lacks_our_nodes(root: Path) -> None:
    one = small_sites.planned("topology-yaml", root, version=NEW)
    path = Path(one.site.path).parent / "topology.yaml"
    with pytest.raises(ConfigError) as refused:
        check.check(one)
    assert str(refused.value) == (
        f"{path}: topology/tree must know the cloud nodes, or their jobs are refused; add:\n"
        "    - switch: elastic-aws\n"
        "      nodes: burst[1-4]\n"
        "    - switch: elastic-root\n"
        "      children: s1,elastic-aws"
    )


YAML_WITH_ROOT = """\
- topology: default
  cluster_default: true
  tree:
    switches:
      - {switch: s1, nodes: "n[1-3]"}
      - switch: core
        children: s1
- topology: flat
  flat: true
"""


@pytest.mark.parametrize(
    ("text", "extra", "lines"),
    [
        (YAML_WITH_ROOT, "", ["- switch: core    # instead of {}:6", "  children: s1,elastic-aws"]),
        (YAML_WITH_ROOT, "PartitionName=DEFAULT Topology=flat", []),
        (YAML_WITH_ROOT.replace("n[1-3]", "n[1-3],burst[1-4]"), "", []),
        ("- topology: b\n  cluster_default: true\n  block: {block_sizes: [4]}\n", "", []),
    ],
)
def test_only_a_tree_that_our_partitions_use_must_know_our_nodes(
    root: Path, text: str, extra: str, lines: list[str]
) -> None:
    conf = small_sites.copy("topology-yaml", root)
    conf.write_text(f"{conf.read_text()}TopologyPlugin=topology/tree\n{extra}\n")
    path = conf.parent / "topology.yaml"
    path.write_text(text)
    one = small_sites.plan.make(small_sites.config(conf), version=NEW)
    problems = topology.problems(one.config, one.pools, one.site, one.version)
    shown = [line.removeprefix("    ") for text in problems for line in text.splitlines()[3:]]
    assert shown == [line.replace("{}", str(path)) for line in lines]


def test_an_older_slurm_does_not_read_topology_yaml(root: Path) -> None:
    one = small_sites.planned("topology-yaml", root, version=OLD)
    assert topology.problems(one.config, one.pools, one.site, one.version) == []


def test_a_topology_yaml_that_is_none_is_named_with_its_line(root: Path) -> None:
    conf = small_sites.copy("topology-yaml", root)
    (conf.parent / "topology.yaml").write_text("- topology: default\n  tree: [\n")
    one = small_sites.plan.make(small_sites.config(conf), version=NEW)
    with pytest.raises(ConfigError, match=r"topology.yaml:3: is no YAML: "):
        topology.problems(one.config, one.pools, one.site, one.version)


def test_uninstall_names_our_switches_in_topology_yaml(root: Path) -> None:
    conf = small_sites.copy("topology-yaml", root)
    (conf.parent / "topology.yaml").write_text(YAML_WITH_ROOT.replace("n[1-3]", "n[1-3],burst2"))
    (conf.parent / "slurm-elastic.conf").write_text("NodeName=burst[1-4] State=CLOUD\n")
    config = small_sites.config(conf)
    site = siteconf.read(conf)
    departing = leaving.installed(conf.parent)
    with pytest.raises(ConfigError, match=r"topology.yaml:5: switch s1 has burst2: slurmctld"):
        removal.refuse_mentions(config.slurm, site, NEW, departing, force=False)
    removal.refuse_mentions(config.slurm, site, OLD, departing, force=False)


@ISOLATED
def test_a_present_switch_of_topology_yaml_is_replaced(root: Path) -> None:
    one = small_sites.planned("topology-yaml", root, version=NEW)
    path = Path(one.site.path).parent / "topology.yaml"
    added = topology.problems(one.config, one.pools, one.site, one.version)[0].splitlines()[1:]
    name = added[0].split()[-1]
    path.write_text(f"{path.read_text()}      - switch: {name}\n        nodes: n[1-3]\n")
    line = len(path.read_text().splitlines()) - 1
    (problem,) = topology.problems(one.config, one.pools, one.site, one.version)
    assert f"- switch: {name}    # instead of {path}:{line}" in problem


@pytest.mark.release
@ROOT_PART
def test_a_topology_yaml_with_the_printed_lines_is_checked_by_the_release(root: Path) -> None:
    conf = small_sites.copy("topology-yaml", root)
    config = small_sites.config(conf)
    places = releases.settings("25.11", root)
    config = replace(config, slurm=replace(places, conf=str(conf)))
    one = small_sites.plan.make(config, version=NEW)
    (problem,) = topology.problems(one.config, one.pools, one.site, one.version)
    path = conf.parent / "topology.yaml"
    lines = [f"  {line}\n" for line in problem.splitlines()[1:]]
    path.write_text(path.read_text() + "".join(lines))
    assert check.check(one).full


@pytest.mark.parametrize("is_configless", [False, True])
def test_hosts_with_a_link_to_the_same_slurm_conf_are_mentioned(
    root: Path, is_configless: bool
) -> None:
    conf = small_sites.copy("default-1", root)
    if is_configless:
        conf.write_text(f"{conf.read_text()}SlurmctldParameters=enable_configless\n")
    shared = root / "shared" / "slurm.conf"
    shared.parent.mkdir()
    conf.rename(shared)
    conf.symlink_to(shared)
    assert (
        f"{conf} is a link to {shared}: on each host Slurm looks for slurm-elastic.conf beside the"
        " host's own link. Put it there, or a link to it, before the install; without it Slurm's"
        " commands and daemons fail on that host"
    ) in small_sites.plan.make(small_sites.config(conf)).notices


def test_a_link_to_the_directory_of_slurm_conf_needs_nothing(root: Path) -> None:
    directory = small_sites.copy("default-1", root).parent
    linked = root / "linked"
    linked.symlink_to(directory)
    notices = small_sites.plan.make(small_sites.config(linked / "slurm.conf")).notices
    assert not [line for line in notices if "is a link" in line]


@ISOLATED
@pytest.mark.parametrize("addresses", ["fd00::[1-3]", "fd00::1,fd00::2,fd00::3"])
def test_nodes_may_have_ipv6_addresses(root: Path, addresses: str) -> None:
    conf = small_sites.copy("default-1", root)
    text = conf.read_text().replace("NodeName=n[1-3]", f"NodeName=n[1-3] NodeAddr={addresses}")
    conf.write_text(f"CommunicationParameters=EnableIPv6\n{text}")
    assert check.check(small_sites.plan.make(small_sites.config(conf))).full


def test_a_node_set_of_all_nodes_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        small_sites.planned("default-1", root, "NodeSet=every Nodes=ALL")
    assert str(refused.value) == (
        f"{root}/etc/slurm.conf:10: node set every has Nodes=ALL and would take in cloud nodes; name"
        " its nodes instead"
    )
