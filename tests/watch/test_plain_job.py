"""``doctor`` submits a plain job to a throw-away slurmctld with the site's own job_submit.lua."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings, domain_pools
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf import plan
from slurm_elastic.slurm.conf.submissions import filter_lines, unlisted_partitions
from slurm_elastic.slurm.hooks.submit_filter import FILTER, render
from slurm_elastic.watch.doctor import plain_job
from tests.slurm import site_cases

pytestmark = [unless("slurmctld"), site_cases.ISOLATED]

CONF = """\
ClusterName=test
SlurmctldHost=head
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
ProctrackType=proctrack/linuxproc
JobSubmitPlugins=lua
NodeName=n[1-2] CPUs=2 RealMemory=1000
PartitionName=site Nodes=n[1-2] Default=YES State=UP
"""
SCRIPT = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  {}
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
"""
KEEPS_AT_HOME = SCRIPT.format(
    "if job_desc.partition == nil then job_desc.partition = 'site' end return slurm.SUCCESS"
)


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-plain-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def config(root: Path, clouds: int = 1) -> Config:
    names = [f"cloud-with-a-long-name-{i:02}" for i in range(clouds)]
    return Config(
        cluster=Cluster(name="test"),
        state_dir=str(root / "state"),
        clouds=tuple(FakeCloud(name=name, location=Location.ON_PREMISES) for name in names),
        pools=tuple(
            PoolSettings(name=f"pool{i}", cloud=name, nodes=f"c{i}-[1-2]", cpus=2, memory=2000)
            for i, name in enumerate(names)
        ),
        slurm=SlurmSettings(conf=str(root / "slurm.conf")),
    )


def installed(root: Path, script: str | None, clouds: int = 1) -> Config:
    """A site with the filter beside its slurm.conf; without ``script``, with our job_submit.lua."""
    (root / "slurm.conf").write_text(CONF)
    site = config(root, clouds)
    texts = render(site, domain_pools(site, expand), siteconf.read(root / "slurm.conf"))
    for name, text in texts.items():
        (root / name).write_text(text)
    if script is not None:
        (root / "job_submit.lua").write_text(script)
    return site


def tried(config: Config, account: str = "") -> Finding:
    (finding,) = plain_job.examine(config, plan.make(config), lambda _: (account, ""))
    return finding


def test_a_plain_job_that_gets_the_list_is_in_order(root: Path) -> None:
    finding = tried(installed(root, None))
    assert (finding.level, finding.observed) == (
        FindingLevel.OK, "it gets site,cloud-with-a-long-name-00",
    )  # fmt: skip


@pytest.mark.parametrize("account", ["physics", "-x", "--parsable", "two words"])
def test_the_job_has_the_account_whatever_its_name_is(root: Path, account: str) -> None:
    body = f"return job_desc.account == '{account}' and slurm.SUCCESS or slurm.ERROR"
    lines = "\n".join(filter_lines(root))
    finding = tried(installed(root, f"{SCRIPT.format(body)}{lines}\n"), account)
    assert (finding.level, finding.observed) == (
        FindingLevel.OK, "it gets site,cloud-with-a-long-name-00",
    )  # fmt: skip


def test_a_script_that_keeps_plain_jobs_at_home_is_wrong(root: Path) -> None:
    finding = tried(installed(root, KEEPS_AT_HOME))
    assert finding.level is FindingLevel.WRONG
    assert finding.observed.startswith(
        "it gets site only: the site's job_submit.lua leaves no plain"
    )
    assert "site,cloud-with-a-long-name-00" in finding.expected


def test_with_the_printed_lines_the_same_script_is_in_order(root: Path) -> None:
    lines = "\n".join(filter_lines(root))
    assert tried(installed(root, f"{KEEPS_AT_HOME}{lines}\n")).level is FindingLevel.OK


def test_a_rule_of_the_site_is_no_fault_and_told_in_the_sites_words(root: Path) -> None:
    body = "slurm.log_user('please give an account: sbatch -A PROJECT') return slurm.ERROR"
    finding = tried(installed(root, SCRIPT.format(body)))
    assert finding.level is FindingLevel.NOTE
    assert finding.observed == (
        "refused by the site's own job_submit.lua: please give an account: sbatch -A PROJECT"
    )
    assert "slurm-elastic doctor --account NAME" in finding.advice


def test_a_script_that_refuses_plain_jobs_without_a_word_is_wrong(root: Path) -> None:
    finding = tried(installed(root, SCRIPT.format("return slurm.ERROR")))
    assert finding.level is FindingLevel.WRONG
    assert finding.observed.endswith("gives no reason (slurm.log_user): Unspecified error")


def test_a_job_of_each_allowed_partition_is_tried(root: Path) -> None:
    site = installed(root, None, 2)
    conf = root / "slurm.conf"
    conf.write_text(CONF + "PartitionName=gpu Nodes=n1\nPartitionName=big Nodes=n2\n")
    other, gpu_cloud = site.clouds
    site = replace(site, clouds=(other, replace(gpu_cloud, allow=Who(partitions=("gpu",)))))
    texts = render(site, domain_pools(site, expand), siteconf.read(conf))
    (root / FILTER).write_text(texts[FILTER])
    plain, named = plain_job.examine(site, plan.make(site), lambda _: ("", ""))
    assert (plain.level, plain.observed) == (FindingLevel.OK, f"it gets site,{other.name}")
    assert named.subject == "a job of partition gpu on a throw-away slurmctld"
    assert (named.level, named.observed) == (FindingLevel.OK, f"it gets gpu,{gpu_cloud.name}")


def test_each_job_has_the_account_of_its_own_first_cloud(root: Path) -> None:
    body = """local at = job_desc.partition == 'gpu' and 'cloud-with-a-long-name-01'
      or 'cloud-with-a-long-name-00'
  return job_desc.account == at and slurm.SUCCESS or slurm.ERROR"""
    site = installed(root, f"{SCRIPT.format(body)}{chr(10).join(filter_lines(root))}\n", 2)
    conf = root / "slurm.conf"
    conf.write_text(CONF + "PartitionName=gpu Nodes=n1\n")
    other, gpu_cloud = site.clouds
    site = replace(site, clouds=(other, replace(gpu_cloud, allow=Who(partitions=("gpu",)))))
    texts = render(site, domain_pools(site, expand), siteconf.read(conf))
    (root / FILTER).write_text(texts[FILTER])
    found = list(plain_job.examine(site, plan.make(site), lambda cloud: (cloud.name, "")))
    assert [finding.level for finding in found] == [FindingLevel.OK] * 2


def test_a_filter_of_an_earlier_configuration_is_no_fault_of_the_sites_script(root: Path) -> None:
    site = installed(root, None)
    (root / "slurm.conf").write_text(CONF + "PartitionName=gpu Nodes=n1\n")
    (cloud,) = site.clouds
    site = replace(site, clouds=(replace(cloud, allow=Who(partitions=("site", "gpu"))),))
    plain, named = plain_job.examine(site, plan.make(site), lambda _: ("", ""))
    assert plain.level is FindingLevel.OK
    assert named.level is FindingLevel.WRONG
    assert named.observed == (
        "it gets gpu only: the installed slurm_elastic.lua does not match the configuration"
    )
    assert named.expected.startswith(f"partitions gpu,{cloud.name}")
    assert named.advice == "slurm-elastic conf install"


@pytest.mark.parametrize("clouds", [40, pytest.param(100, marks=pytest.mark.release)])
def test_plain_jobs_of_a_site_with_many_clouds_are_taken(root: Path, clouds: int) -> None:
    site = installed(root, None, clouds)
    finding = tried(site)
    assert finding.level is FindingLevel.OK
    listed = finding.observed.removeprefix("it gets ").split(",")
    unlisted = unlisted_partitions(site, siteconf.read(root / "slurm.conf"))
    assert ["site", *(cloud.name for cloud in site.clouds)] == [*listed, *unlisted]
    assert unlisted
    notices = "\n".join(plan.make(site).notices)
    assert f"{', '.join(unlisted)} do not fit in" in notices
