"""The fragment: golden files for five sites and two versions, and every conflict by name.

``UPDATE_GOLDEN=1 pytest tests/slurm/test_fragment.py`` writes the golden files anew.
"""

from __future__ import annotations

import os
import pwd
import re
from glob import glob
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster, Config, PoolSettings, domain_pools
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.pool_rules import types_of
from slurm_elastic.config.sections.access import Share, Who
from slurm_elastic.config.sections.books import BooksSettings
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.joining import Join
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf import fragment, plan, submissions
from slurm_elastic.slurm.conf import topology as slurm_topology
from slurm_elastic.slurm.conf.checks import conflicts
from slurm_elastic.slurm.conf.fragment import EPILOG
from tests.slurm import site_cases

GOLDEN = site_cases.ROOT / "golden"
BASE = "ClusterName=small\nSlurmUser=slurm\n"


def rendered(
    config: Config, site: siteconf.SiteConf, version: tuple[int, int] = (22, 5), *, lua: bool = True
) -> str:
    return fragment.render(config, plan.pools_of(config), site, version, lua=lua)


def site_of(tmp_path: Path, text: str) -> siteconf.SiteConf:
    path = tmp_path / "slurm.conf"
    path.write_text(BASE + text)
    return siteconf.read(path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return site_cases.config("small", tmp_path / "slurm.conf")


def line(text: str, start: str) -> str:
    found = [one for one in text.splitlines() if one.startswith(start)]
    assert len(found) == 1, f"{start}: {found}"
    return found[0]


@pytest.mark.parametrize("version", site_cases.VERSIONS, ids=str)
@pytest.mark.parametrize("name", site_cases.NAMES)
def test_golden(name: str, version: tuple[int, int]) -> None:
    conf = site_cases.SITES / name / "slurm.conf"
    text = rendered(site_cases.config(name, conf), siteconf.read(conf), version)
    golden = GOLDEN / f"{name}-{version[0]}.{version[1]:02}.conf"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", site_cases.NAMES)
def test_it_sets_nothing_that_changes_the_sites_own_jobs(name: str) -> None:
    conf = site_cases.SITES / name / "slurm.conf"
    for version in site_cases.VERSIONS:
        text = rendered(site_cases.config(name, conf), siteconf.read(conf), version).lower()
        keys = {one.split("=")[0] for one in text.splitlines() if not one.startswith("#")}
        assert not keys & {
            *("requeueexit", "jobfileappend", "jobrequeue", "returntoservice", "slurmdtimeout"),
            *("suspendtime", "resumetimeout", "suspendtimeout", "authinfo", "schedulerparameters"),
        }
        assert "idle_on_node_suspend" not in text or name == "own-lua"


def test_list_options_are_the_union_and_the_sites_own_value_stays(
    tmp_path: Path, config: Config
) -> None:
    text = rendered(
        config,
        site_of(
            tmp_path,
            "PrivateData=jobs,users\nJobSubmitPlugins=throttle\nGresTypes=mps\n"
            "SlurmctldParameters=Power_Save_Interval=7,cloud_dns\n",
        ),
    )
    assert "PrivateData=jobs,users,cloud" in text
    assert "JobSubmitPlugins=throttle,lua" in text
    assert "GresTypes=mps,gpu" in text
    assert line(text, "SlurmctldParameters") == (
        "SlurmctldParameters=Power_Save_Interval=7,cloud_dns,power_save_min_interval=0,"
        "cloud_reg_addrs,enable_configless"
    )


@pytest.mark.parametrize(
    ("version", "reg_addrs", "private"),
    [((22, 5), True, True), ((23, 2), True, False), ((23, 11), False, False)],
)
def test_options_by_version(
    tmp_path: Path, config: Config, version: tuple[int, int], reg_addrs: bool, private: bool
) -> None:
    text = rendered(config, site_of(tmp_path, "PrivateData=jobs\n"), version)
    assert ("cloud_reg_addrs" in text) is reg_addrs
    assert ("PrivateData=jobs,cloud" in text) is private


def test_without_lua_in_slurm_no_plugin_is_named(tmp_path: Path, config: Config) -> None:
    assert "JobSubmitPlugins" not in rendered(config, site_of(tmp_path, ""), lua=False)


def test_only_local_clouds_need_no_configless(tmp_path: Path, config: Config) -> None:
    local = replace(config, clouds=config.clouds[1:], pools=config.pools[2:])
    assert "enable_configless" not in rendered(local, site_of(tmp_path, ""))


def test_wiping_sets_an_epilog_that_all_nodes_have_where_the_site_has_none(
    tmp_path: Path, config: Config
) -> None:
    """Measured on 22.05: a pattern that fits nothing is an Epilog error."""
    wiped = replace(config, join=Join(wipe=("/scratch",)))
    assert line(rendered(wiped, site_of(tmp_path, "")), "Epilog=") == f"Epilog={EPILOG}"
    assert glob(EPILOG) == ["/usr/bin/true"]
    assert "Epilog=" not in rendered(wiped, site_of(tmp_path, "Epilog=/etc/slurm/epilog\n"))
    assert "Epilog=" not in rendered(config, site_of(tmp_path, ""))
    local = replace(wiped, clouds=config.clouds[1:], pools=config.pools[2:])
    assert "Epilog=" not in rendered(local, site_of(tmp_path, "")), "no machine would wipe"


@pytest.mark.parametrize(
    ("share", "option"),
    [(Share.USER, "ExclusiveUser=YES"), (Share.EXCLUSIVE, "OverSubscribe=EXCLUSIVE")],
)
def test_the_share_of_pools_is_an_option_of_their_partition(
    tmp_path: Path, config: Config, share: Share, option: str
) -> None:
    pools = tuple(replace(p, share=share if p.cloud == "aws" else None) for p in config.pools)
    text = rendered(replace(config, pools=pools), site_of(tmp_path, ""))
    assert option in line(text, "PartitionName=aws").split()
    assert option not in line(text, "PartitionName=onprem")
    assert option not in rendered(config, site_of(tmp_path, ""))


def test_a_public_cloud_without_consent_is_shut(tmp_path: Path, config: Config) -> None:
    uncapped = replace(config, limits=replace(config.limits, dollars_per_hour=None))
    text = rendered(uncapped, site_of(tmp_path, ""))
    assert line(text, "PartitionName=aws").endswith("State=INACTIVE")
    assert line(text, "PartitionName=onprem").endswith("State=UP")
    assert "# Shut: cloud aws costs money: it has no spending cap" in text


def test_ports_follow_the_order_of_the_names(tmp_path: Path, config: Config) -> None:
    pools = tuple(
        replace(p, nodes="op[2,1]", slurmd_port=9000) if p.name == "hall" else p
        for p in config.pools
    )
    text = rendered(replace(config, pools=pools), site_of(tmp_path, ""))
    assert "NodeName=op2,op1 " in text
    assert "Port=[9000-9001]" in text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(60, "0-00:01:00"), (61, "0-00:02:00"), (86400 * 2 + 5400, "2-01:30:00")],
)
def test_times_are_rounded_up_to_minutes(seconds: float, expected: str) -> None:
    assert fragment.slurm_time(seconds) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ResumeProgram=/opt/resume",
            (
                "{}:3: ResumeProgram is /opt/resume, slurm-elastic needs"
                " /usr/local/libexec/slurm-elastic/slurm-elastic-resume"
            ),
        ),
        ("SuspendRate=30", "{}:3: SuspendRate is 30, slurm-elastic needs 0"),
        (
            "SuspendTime=300",
            (
                "{}:3: SuspendTime is 300; with slurm-elastic's SuspendProgram it would power down the"
                " site's own nodes, so it must be INFINITE or absent"
            ),
        ),
        (
            "PartitionName=a SuspendTime=60",
            (
                "{}:3: SuspendTime of partition a is 60; with slurm-elastic's SuspendProgram it would"
                " power down the site's own nodes, so it must be INFINITE or absent"
            ),
        ),
        (
            "PartitionName=a PowerDownOnIdle=yes",
            (
                "{}:3: PowerDownOnIdle of partition a is yes; with slurm-elastic's SuspendProgram it"
                " would power down the site's own nodes, so it must be NO or absent"
            ),
        ),
        (
            "NodeName=n[1-2] SuspendTime=60",
            (
                "{}:3: SuspendTime of node n1 is 60; with slurm-elastic's SuspendProgram it would power"
                " down the site's own nodes, so it must be INFINITE or absent"
            ),
        ),
        ("NodeName=pub3", "{}:3: node pub3 is the site's own; pool spot names it too"),
        (
            "PartitionName=aws",
            "{}:3: aws is the site's own; cloud aws uses it too; give that cloud another `partition` or `name` in slurm-elastic.yaml",
        ),
        (
            "NodeSet=onprem Nodes=x",
            "{}:3: onprem is the site's own; cloud onprem uses it too; give that cloud another `partition` or `name` in slurm-elastic.yaml",
        ),
        (
            "PartitionName=a Nodes=ALL",
            "{}:3: partition a has Nodes=ALL and would take in cloud nodes; name its nodes instead",
        ),
        (
            "NodeSet=fast Feature=t4\nNodeName=gn[1-2] Feature=big,t4",
            (
                "{}:3: node set fast takes nodes by the feature t4, which cloud nodes have; rename one"
                " of them, or name its nodes: NodeSet=fast Nodes=gn[1-2]"
            ),
        ),
        (
            "NodeName=DEFAULT CpuSpecList=0",
            (
                "{}:3: NodeName=DEFAULT sets CpuSpecList=0, which cloud nodes would inherit; set it on"
                " the site's own NodeName lines instead"
            ),
        ),
        (
            "MaxNodeCount=10\nNodeName=n[1-3]",
            "{}:3: MaxNodeCount is 10; 3 own and 12 cloud nodes need 15",
        ),
        (
            "NodeName=localhost CPUs=4",
            (
                "{}:3: a first node named localhost can only be a cluster's only one: Slurm takes every"
                " further node for it (Duplicated NodeHostName); give it another name, as NodeName=n1"
                " NodeHostname=localhost"
            ),
        ),
        *(
            (
                f"JobSubmitPlugins={plugins}",
                (
                    "{}:3: JobSubmitPlugins has all_partitions, which adds every cloud to each job that"
                    " names no partition, also if the submit filter keeps the job from clouds; with"
                    " EnforcePartLimits=ALL Slurm refuses the job if one cloud cannot hold it. Take it"
                    " out: the submit filter adds the clouds that fit"
                ),
            )
            for plugins in ("all_partitions", "lua,job_submit/all_partitions,require_timelimit")
        ),
        ("ClusterName=other", "{}:3: ClusterName is other, slurm-elastic has small"),
        ("SlurmUser=hpc", "{}:3: SlurmUser is hpc, slurm-elastic's slurm.user is slurm"),
        ("SlurmUser=77777", "{}:3: SlurmUser is 77777, slurm-elastic's slurm.user is slurm"),
    ],
)
def test_a_conflict_names_file_line_and_both_values(
    tmp_path: Path, config: Config, text: str, message: str
) -> None:
    site = site_of(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        rendered(config, site)
    assert refused.value.problems == (message.replace("{}", site.path),)


@pytest.mark.parametrize(
    "text",
    [
        "SuspendTime=INFINITE",
        "SuspendTime=-1",
        "ResumeRate=0",
        "ResumeProgram=/usr/local/libexec/slurm-elastic/slurm-elastic-resume",
        "PartitionName=a SuspendTime=INFINITE PowerDownOnIdle=NO",
        "NodeName=n1 SuspendTime=INFINITE",
        "PowerAction=wake Program=/opt/wake Location=slurmctld",
        "MaxNodeCount=12",
        "ClusterName=SMALL",
        "NodeName=n1 NodeHostname=localhost",
        "NodeName=n1\nNodeName=localhost",
    ],
)
def test_what_is_no_conflict(tmp_path: Path, config: Config, text: str) -> None:
    assert rendered(config, site_of(tmp_path, text))


@pytest.mark.parametrize(
    ("site", "ours"), [("NUMBER", "NAME"), ("NAME", "NUMBER"), ("NUMBER", "NUMBER")]
)
def test_slurms_user_may_be_given_by_number(
    tmp_path: Path, config: Config, site: str, ours: str
) -> None:
    who = pwd.getpwuid(1)
    spelled = {"NUMBER": str(who.pw_uid), "NAME": who.pw_name}
    settings = replace(config.slurm, user=spelled[ours])
    text = site_of(tmp_path, f"SlurmUser={spelled[site]}")
    assert rendered(replace(config, slurm=settings), text)


@pytest.mark.parametrize(
    ("flags", "data", "wipe", "is_conflict"),
    [
        ("Contain,RunInJob", Data.COPY, ("/tmp",), True),
        ("Contain", Data.COPY, ("/tmp",), False),
        ("RunInJob", Data.SHARED, ("/tmp",), False),
        ("RunInJob", Data.COPY, (), False),
    ],
)
def test_an_epilog_in_the_job_does_not_wait_for_a_copy_that_waits_for_the_job(
    tmp_path: Path, config: Config, flags: str, data: Data, wipe: tuple[str, ...], is_conflict: bool
) -> None:
    clouds = tuple(replace(cloud, data=data) for cloud in config.clouds)
    config = replace(config, clouds=clouds, join=replace(config.join, wipe=wipe))
    site = site_of(tmp_path, f"PrologFlags={flags}")
    found = conflicts.conflicts_of(config, domain_pools(config, expand), site)
    assert [text.startswith(f"{site.path}:3: PrologFlags has RunInJob") for text in found] == (
        [True] * is_conflict
    )


def test_all_conflicts_come_at_once(tmp_path: Path, config: Config) -> None:
    with pytest.raises(ConfigError) as refused:
        rendered(config, site_of(tmp_path, "SuspendTime=1\nResumeRate=5\nNodeName=op1\n"))
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (
            "SwitchName=s1 Nodes=n[1-2]\nSwitchName=root Switches=s1\n",
            [
                "SwitchName=elastic-aws Nodes=pub[1-8],pubgpu[1-2]",
                "SwitchName=elastic-onprem Nodes=op[1-2]",
                "SwitchName=root Switches=s1,elastic-aws,elastic-onprem    # instead of {}:2",
            ],
        ),
        (
            "SwitchName=s1 Nodes=n[1-2]\n",
            [
                "SwitchName=elastic-aws Nodes=pub[1-8],pubgpu[1-2]",
                "SwitchName=elastic-onprem Nodes=op[1-2]",
                "SwitchName=elastic-root Switches=s1,elastic-aws,elastic-onprem",
            ],
        ),
        (
            "SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n2\n",
            [
                "SwitchName=elastic-aws Nodes=pub[1-8],pubgpu[1-2]",
                "SwitchName=elastic-onprem Nodes=op[1-2]",
            ],
        ),
        (
            (
                "SwitchName=elastic-aws Nodes=pub[1-4]\nSwitchName=elastic-onprem Nodes=op[1-2]\n"
                "SwitchName=root Switches=elastic-aws,elastic-onprem\n"
            ),
            ["SwitchName=elastic-aws Nodes=pub[1-8],pubgpu[1-2]    # instead of {}:1"],
        ),
        (
            "SwitchName=elastic-aws Nodes=pub[1-8],pubgpu1,op[1-2]\n",
            ["SwitchName=elastic-aws Nodes=pub[1-8],pubgpu[1-2]    # instead of {}:1"],
        ),
        ("SwitchName=s1 Nodes=n1,op[1-2],pub[1-8],pubgpu[1-2]\n", []),
    ],
)
def test_lines_that_topology_lacks(
    tmp_path: Path, config: Config, tree: str, expected: list[str]
) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(tree)
    switches = slurm_topology.switches(siteconf.read_lines(path))
    lines = slurm_topology.missing(config, plan.pools_of(config), switches)
    assert lines == [one.replace("{}", str(path)) for one in expected]


def test_partitions_have_billing_weights_in_money_where_the_site_wants_them(
    config: Config, tmp_path: Path
) -> None:
    assert "TRESBillingWeights" not in rendered(config, site_of(tmp_path, ""))
    config = replace(config, accounting=BooksSettings(billing_unit=0.001))
    text = rendered(config, site_of(tmp_path, ""))
    for cloud in config.clouds:
        mine = [p for p in config.pools if p.cloud == cloud.name]
        prices = [
            shape.price / p.cpus
            for p in plan.pools_of(config)
            if p.cloud == cloud.name
            for shape in types_of(cloud, p).values()
        ]
        dearest = max(prices, default=(cloud.flat_price or 0.0) / mine[0].cpus)
        expected = f'TRESBillingWeights="CPU={dearest / 0.001:.6g}"'
        partition = line(text, f"PartitionName={cloud.partition_name} ")
        assert (expected in partition) == (dearest > 0)
    assert "TRESBillingWeights" in text


def test_a_whole_node_bills_the_price_of_the_largest_machine_that_serves_it(
    config: Config, tmp_path: Path
) -> None:
    (pool, *_) = (p for p in plan.pools_of(config) if p.cloud == "aws")
    cloud = config.cloud("aws")
    large = InstanceType(cpus=4 * pool.cpus, memory=4 * pool.real_memory, price=7.0)
    changed = replace(cloud, types={**cloud.types, "large": large})
    clouds = tuple(changed if c.name == "aws" else c for c in config.clouds)
    options = MachineOptions(disk_price=0.5)
    pools = tuple(
        replace(p, instance_types=("large",), machine=options) if p.name == pool.name else p
        for p in config.pools
    )
    books = BooksSettings(billing_unit=0.001)
    changed_config = replace(config, clouds=clouds, pools=pools, accounting=books)
    text = rendered(changed_config, site_of(tmp_path, ""))
    (weight,) = re.findall(rf'PartitionName={changed.partition_name} .*="CPU=([\d.]+)"', text)
    assert float(weight) * pool.cpus * 0.001 == pytest.approx(7.5)


@pytest.mark.parametrize(
    ("partition", "who", "expected"),
    [
        ("MaxTime=2-0", Who(), "2-00:00:00"),
        ("MaxTime=2-0", Who(max_time=2 * 86400.0), "2-00:00:00"),
        ("MaxTime=2-0", Who(max_time=86400.0), None),
        ("MaxTime=2-0", Who(default_time=3600.0), "0-01:00:00"),
        ("MaxTime=2-0 DefaultTime=1:00:00", Who(), None),
        ("MaxTime=UNLIMITED", Who(), None),
        ("", Who(), None),
    ],
)
def test_jobs_without_a_time_get_the_sites_limit_in_a_cloud_that_allows_it(
    tmp_path: Path, partition: str, who: Who, expected: str | None
) -> None:
    """Slurm gives all tasks of an array the limit of the first one that starts."""
    site = site_of(
        tmp_path, f"NodeName=n1 CPUs=2\nPartitionName=site Nodes=n1 Default=YES {partition}\n"
    )
    cloud = FakeCloud(name="near", location=Location.ON_PREMISES, allow=who)
    pool = PoolSettings(name="p", cloud="near", nodes="c[1-2]", cpus=2, memory=2000)
    plain = Config(cluster=Cluster(name="small"), clouds=(cloud,), pools=(pool,))
    text = rendered(plain, site)
    found = re.search(r"^PartitionName=near .*?DefaultTime=(\S+)", text, re.MULTILINE)
    assert (found[1] if found else None) == expected


ENDS = (
    "partition site has neither MaxTime nor DefaultTime: a job that names no time ends after "
    "{}, and never on the site's own nodes; arrays that name none stay there. DefaultTime of "
    "partition site makes both alike"
)


@pytest.mark.parametrize(
    ("partition", "near", "far", "expected"),
    [
        ("", Who(default_time=600.0), Who(), [ENDS.format("10m in cloud near")]),
        ("MaxTime=INFINITE", Who(default_time=600.0), Who(default_time=7200.0),
         [ENDS.format("10m in cloud near, 2h in cloud far")]),
        ("MaxTime=2-0", Who(default_time=600.0), Who(), []),
        ("DefaultTime=1:00:00", Who(default_time=600.0), Who(), []),
        ("", Who(), Who(), []),
    ],
)  # fmt: skip
def test_a_default_time_that_ends_jobs_in_clouds_alone_is_told(
    tmp_path: Path, partition: str, near: Who, far: Who, expected: list[str]
) -> None:
    site = site_of(
        tmp_path, f"NodeName=n1 CPUs=2\nPartitionName=site Nodes=n1 Default=YES {partition}\n"
    )
    clouds = tuple(
        FakeCloud(name=name, location=Location.ON_PREMISES, allow=who)
        for name, who in (("near", near), ("far", far))
    )
    config = Config(cluster=Cluster(name="small"), clouds=clouds, pools=())
    assert list(submissions.notices(config, site)) == expected
