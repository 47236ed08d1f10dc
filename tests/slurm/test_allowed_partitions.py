"""``conf check`` and the partitions of the site whose jobs may use a cloud (``allow.partitions``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.sections.access import Who
from slurm_elastic.slurm.conf import plan
from slurm_elastic.slurm.conf.plan import ConfPlan
from tests.slurm import site_cases, small_sites

GPU = "PartitionName=gpu Nodes=n[1-2]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def planned(
    root: Path, *partitions: str, lines: str = "", version: tuple[int, int] = (24, 11)
) -> ConfPlan:
    """The plan for a site whose default partition ``debug`` has PriorityTier 5 and MaxTime 10, with
    ``lines`` at its end, and a cloud for jobs of these partitions.
    """
    conf = small_sites.copy("default-1", root)
    conf.write_text(f"{conf.read_text()}{lines}\n")
    config = small_sites.config(conf)
    allowed = replace(config.allow, partitions=partitions)
    return plan.make(replace(config, allow=allowed), version=version)


def notices(one: ConfPlan, word: str) -> list[str]:
    return [notice for notice in one.notices if word in notice]


def test_partitions_without_a_cloud_are_named_once(root: Path) -> None:
    lines = f"{GPU} PriorityTier=5\nPartitionName=big Nodes=n3 PriorityTier=5\n"
    lines += "PartitionName=old Nodes=n3 State=DOWN\nPartitionName=tests Nodes=n3 RootOnly=YES"
    sentence = "jobs that name partition gpu or big do not burst (clouds[].allow.partitions)"
    assert notices(planned(root / "a", lines=lines), "do not burst") == [sentence]
    one = planned(root / "b", "debug", "gpu", lines=lines)
    assert notices(one, "name partition") == [sentence.replace("gpu or ", "")]
    assert notices(planned(root / "c"), "do not burst") == []


def test_the_named_default_partition_is_mentioned_until_its_word_is_listed(root: Path) -> None:
    sentence = (
        "jobs that name partition debug, as workflow tools such as Snakemake do, stay on your own"
        " nodes, though jobs that name none burst; to let them burst, too:"
        " allow: {partitions: [default]}"
    )
    assert notices(planned(root / "a"), "Snakemake") == [sentence]
    assert notices(planned(root / "b", "default"), "Snakemake") == []
    assert notices(planned(root / "c", "debug"), "Snakemake") == []


def test_the_word_for_the_default_partition_counts_as_its_name(root: Path) -> None:
    lines = f"{GPU} PriorityTier=5 MaxTime=30"
    named, by_word = (
        planned(root / word, "gpu", word, lines=lines) for word in ("debug", "default")
    )
    assert "DefaultTime=0-00:10:00" in by_word.fragment
    assert len(by_word.notices) == len(named.notices)


def test_plain_jobs_that_no_cloud_is_open_to_are_named(root: Path) -> None:
    lines = f"{GPU} PriorityTier=5 MaxTime=10"
    sentence = "jobs that name no partition do not burst; add debug to allow.partitions"
    assert notices(planned(root / "a", "gpu", lines=lines), "do not burst") == [sentence]
    assert notices(planned(root / "b", "gpu", "debug", lines=lines), "do not burst") == []


def test_a_cloud_named_like_an_allowed_partition_is_the_mistake(root: Path) -> None:
    conf = small_sites.copy("default-1", root)
    conf.write_text(f"{conf.read_text()}{GPU} PriorityTier=5\n")
    line = len(conf.read_text().splitlines())
    text = small_sites.CONFIGURATION.format(cluster="alpha", conf=conf)
    text = text.replace("name: aws", "name: gpu").replace("cloud: aws", "cloud: gpu")
    text = text.replace("groups: [users]", "groups: [users], partitions: [gpu]")
    with pytest.raises(ConfigError) as raised:
        plan.make(configfile.parse(text, "slurm-elastic.yaml"), version=(24, 11))
    assert str(raised.value) == (
        f"{conf}:{line}: gpu is the site's own; cloud gpu uses it too; give that cloud another"
        " `partition` or `name` in slurm-elastic.yaml"
    )


def test_a_partition_of_a_cloud_is_none_of_the_sites(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"allow.partitions\[0\]: found 'aws', expected a part"):
        planned(root, "aws")


@pytest.mark.parametrize(("name", "hint"), [("gpuu", "gpu"), ("GPU", "gpu")])
def test_a_partition_that_the_site_lacks_is_refused(root: Path, name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(root, "debug", name, lines=f"{GPU} PriorityTier=5")
    assert str(raised.value) == (
        f"slurm-elastic.yaml: allow.partitions[1]: found '{name}', expected a partition of"
        f" {root}/etc/slurm.conf: debug, gpu; did you mean {hint}?"
    )


def test_the_key_of_a_cloud_is_named_with_its_place(root: Path) -> None:
    conf = small_sites.copy("default-1", root)
    config = small_sites.config(conf)
    (cloud,) = config.clouds
    config = replace(config, clouds=(replace(cloud, allow=Who(partitions=("none",))),))
    with pytest.raises(
        ConfigError, match=r"clouds\[0\] \(aws\)\.allow\.partitions\[0\]: found 'none'"
    ):
        plan.make(config)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("", "PriorityTier=1, the partitions of its clouds (aws) have 5"),
        ("PriorityTier=4", "PriorityTier=4, the partitions of its clouds (aws) have 5"),
        ("PriorityTier=5", ""),
        ("PriorityTier=9", ""),
        ("Priority=9", ""),
    ],
)
def test_a_partition_behind_its_clouds_is_refused(root: Path, options: str, wrong: str) -> None:
    """Slurm starts jobs in the partition of the higher tier first, whatever their list says."""
    planned(root / "a", lines=f"{GPU} {options}")
    if not wrong:
        planned(root / "b", "gpu", lines=f"{GPU} {options}")
        return
    with pytest.raises(ConfigError) as raised:
        planned(root / "b", "gpu", lines=f"{GPU} {options}")
    assert f"slurm.conf:10: partition gpu has {wrong} as the default partition" in str(raised.value)
    assert "write PriorityTier=5 there" in str(raised.value)


@pytest.mark.parametrize(("weight", "refused"), [("0", False), ("9", True)])
def test_a_lower_factor_counts_only_with_a_weight(root: Path, weight: str, refused: bool) -> None:
    conf = small_sites.copy("priority-job-factor", root)
    lines = f"PartitionName=gpu Nodes=n1 PriorityJobFactor=5\nPriorityWeightPartition={weight}\n"
    conf.write_text(conf.read_text() + lines)
    config = small_sites.config(conf)
    config = replace(config, allow=replace(config.allow, partitions=("batch", "gpu")))
    if refused:
        with pytest.raises(ConfigError, match="partition gpu has PriorityJobFactor=5"):
            plan.make(config)
    else:
        plan.make(config)


def test_a_cloud_gets_the_time_of_its_first_partition(root: Path) -> None:
    """Slurm gives all tasks of an array one limit, so a cloud must give the limit of its partition."""
    lines = f"{GPU} PriorityTier=5 MaxTime=30"
    assert "DefaultTime=0-00:10:00" in planned(root / "a", lines=lines).fragment
    assert "DefaultTime=0-00:30:00" in planned(root / "b", "gpu", lines=lines).fragment
    assert "DefaultTime=0-00:10:00" in planned(root / "c", "debug", "gpu", lines=lines).fragment
    # The default partition is first in any order, or plain arrays would lose the cloud.
    assert "DefaultTime=0-00:10:00" in planned(root / "d", "gpu", "debug", lines=lines).fragment


@pytest.mark.parametrize(
    ("times", "has_note"),
    [
        ("MaxTime=30", True),
        ("MaxTime=UNLIMITED", True),
        ("MaxTime=10", False),
        ("MaxTime=30 DefaultTime=5", False),
    ],
)
def test_other_limits_of_listed_partitions_are_named(
    root: Path, times: str, has_note: bool
) -> None:
    one = planned(root, "gpu", "debug", lines=f"{GPU} PriorityTier=5 {times}")
    found = notices(one, "has another MaxTime")
    assert len(found) == has_note
    for notice in found:
        assert notice.startswith("cloud aws sets a time limit for jobs without --time by partition")
        assert " debug, but partition gpu has another MaxTime: " in notice
        assert "arrays of partition gpu do not burst" in notice


@pytest.mark.parametrize(
    ("default", "partitions", "expected"),
    [
        ("YES", (), "debug,aws"),
        ("YES", ("gpu", "debug"), "debug,aws"),
        ("YES", ("gpu",), ""),
        ("YES", ("default",), "debug,aws"),
        ("NO", (), "aws"),
        ("NO", ("gpu",), ""),
    ],
)
def test_without_lua_plain_jobs_get_the_clouds_that_are_open_to_them(
    root: Path, default: str, partitions: tuple[str, ...], expected: str
) -> None:
    conf = small_sites.copy("default-1", root)
    text = conf.read_text().replace("Default=1", f"Default={default}")
    conf.write_text(f"PluginDir={root}\n{text}{GPU} PriorityTier=5\n")
    config = small_sites.config(conf)
    config = replace(config, allow=replace(config.allow, partitions=partitions))
    lines = plan.make(config, version=(24, 11)).manual
    listed = [line for line in lines if "sbatch --partition" in line]
    assert listed == ([f"    sbatch --partition={expected} SCRIPT"] if expected else [])
    assert bool(lines) == bool(expected)


def test_properties_of_each_named_partition_are_compared(root: Path) -> None:
    lines = f"{GPU} PriorityTier=5 MaxTime=UNLIMITED QOS=gold DefMemPerGPU=9000\n"
    lines += (
        "PriorityWeightQOS=100\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory"
    )
    quiet, one = planned(root / "a", lines=lines), planned(root / "b", "gpu", lines=lines)
    for words in (
        "partition gpu has QOS gold, cloud partitions have none",
        "may start jobs of partition gpu in a cloud first, or last",
        "partition gpu has neither MaxTime nor DefaultTime: jobs that name no time start in no cloud",
    ):
        assert not notices(quiet, words)
        assert len(notices(one, words)) == 1


@pytest.mark.parametrize(
    ("options", "gres", "expected"),
    [
        ("DefMemPerGPU=9000", {}, ""),
        ("DefMemPerGPU=9000", {"gpu:a100": 1}, "a job with GPUs and without --mem gets all memory"),
        ("DefMemPerCPU=10 DefMemPerGPU=9000", {"gpu": 1}, "a job without --mem gets all memory"),
    ],
)
def test_memory_for_each_gpu_concerns_jobs_with_gpus(
    root: Path, options: str, gres: dict[str, int], expected: str
) -> None:
    conf = small_sites.copy("default-1", root)
    lines = f"SelectTypeParameters=CR_Core_Memory\n{GPU} PriorityTier=5 {options}\n"
    conf.write_text(f"{conf.read_text()}{lines}")
    config = small_sites.config(conf)
    allowed = replace(config.allow, partitions=("gpu",))
    pools = tuple(replace(pool, gres=gres) for pool in config.pools)
    one = plan.make(replace(config, allow=allowed, pools=pools), version=(24, 11))
    found = notices(one, "DefMem")
    assert len(found) == bool(expected)
    assert all(expected in notice for notice in found)


def test_memory_for_each_gpu_counts_beside_memory_for_each_cpu(root: Path) -> None:
    conf = site_cases.copy("accounting", root)
    config = site_cases.config("accounting", conf)
    clouds = tuple(
        replace(cloud, allow=Who(partitions=("gpu",))) if cloud.name == "aws" else cloud
        for cloud in config.clouds
    )
    one = plan.make(replace(config, clouds=clouds), version=(24, 11))
    (notice,) = notices(one, "DefMemPerGPU")
    assert "partition gpu has DefMemPerGPU=120000, cloud partitions have none: a job with" in notice
    assert "gets DefMemPerCPU=3900 there" in notice
