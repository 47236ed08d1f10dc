"""``conf check`` says what to write where Slurm's lists of accounts mean the accounts below, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config import Cluster, Config, SlurmSettings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf.checks.account_tree import notices

NEW, OLD = (23, 2), (22, 5)
BASE = "ClusterName=small\nNodeName=n1 CPUs=2\n"
TREE = "root|\nphysics|root\nphysics|\nastro|physics\nastro|\nStars|astro\nlaw|root\n"


def config(root: Path, *accounts: str, partitions: tuple[str, ...] = ()) -> Config:
    allow = Who(accounts=accounts, partitions=partitions)
    cloud = FakeCloud(name="near", location=Location.ON_PREMISES, allow=allow)
    slurm = SlurmSettings(bin_dir=str(root))
    return Config(cluster=Cluster(name="small"), clouds=(cloud,), pools=(), slurm=slurm)


def told(
    root: Path,
    text: str,
    *accounts: str,
    tree: str = "",
    version: tuple[int, int] = NEW,
    partitions: tuple[str, ...] = (),
) -> list[str]:
    conf = root / "slurm.conf"
    conf.write_text(BASE + text)
    (root / "tree").write_text(tree)
    sacctmgr = root / "sacctmgr"
    sacctmgr.write_text(
        f'#!/bin/sh\necho "$@" >{root}/asked\n{"cat" if tree else "false"} {root}/tree\n'
    )
    sacctmgr.chmod(0o755)
    made = config(root, *accounts, partitions=partitions)
    conf_settings = replace(made.slurm, conf=str(conf))
    return list(notices(replace(made, slurm=conf_settings), siteconf.read(conf), version))


BATCH = "PartitionName=batch Nodes=n1 Default=YES\n"
DENY = "PartitionName=DEFAULT DenyAccounts=chem,law\n"


def test_accounts_that_only_clouds_deny_are_named(tmp_path: Path) -> None:
    (notice,) = told(tmp_path, BATCH + DENY)
    assert notice.startswith(
        f"{tmp_path}/slurm.conf:4: cloud partitions deny account chem, law and all accounts below "
        "it, partition batch does not: the submit filter"
    )
    (notice,) = told(tmp_path, f"{BATCH.strip()} DenyAccounts=Law\n{DENY}")
    assert "deny account chem and all" in notice


@pytest.mark.parametrize(
    "text",
    [
        BATCH,
        DENY + BATCH,
        f"{BATCH.strip()} DenyAccounts=chem,law\n{DENY}",
        f"{BATCH}PartitionName=DEFAULT AllowAccounts=bio DenyAccounts=chem\n",
    ],
)
def test_nothing_is_said_of_accounts_that_the_default_partition_denies(
    tmp_path: Path, text: str
) -> None:
    assert told(tmp_path, text) == []


def test_accounts_that_only_a_named_partition_denies_are_named(tmp_path: Path) -> None:
    """The filter then lists no cloud for its jobs: one may have an account below these."""
    text = f"{BATCH}PartitionName=gpu Nodes=n1 DenyAccounts=law,chem\n"
    (notice,) = told(tmp_path, text, partitions=("gpu",))
    assert notice.startswith(
        f"{tmp_path}/slurm.conf:4: partition gpu denies account law, chem and all accounts below it"
    )
    assert "so jobs of partition gpu with an account get no cloud (near)" in notice
    assert told(tmp_path, text) == []
    assert told(tmp_path, text, "physics", partitions=("gpu",)) == []
    (notice,) = told(
        tmp_path, f"PartitionName=DEFAULT DenyAccounts=law\n{text}", partitions=("gpu",)
    )
    assert "partition gpu denies account chem and" in notice


def test_jobs_of_a_named_partition_are_called_so(tmp_path: Path) -> None:
    text = f"{BATCH}PartitionName=gpu Nodes=n1\n{DENY}"
    (notice,) = told(tmp_path, text, partitions=("gpu",))
    assert "so jobs of partition gpu with an account get no cloud (near)" in notice


def test_nothing_is_said_of_a_slurm_that_compares_names_only(tmp_path: Path) -> None:
    text = f"AccountingStorageType=accounting_storage/slurmdbd\n{BATCH}{DENY}"
    assert told(tmp_path, text, "physics", tree=TREE, version=OLD) == []
    assert told(tmp_path, BATCH + DENY, version=OLD) == []


@pytest.mark.parametrize(
    ("accounts", "unnamed"),
    [
        (["physics"], "astro, stars"),
        (["Physics", "astro"], "stars"),
        (["root"], "astro, law, physics, stars"),
        (["physics", "astro", "stars"], ""),
        (["stars"], ""),
        ([], ""),
    ],
)
def test_accounts_below_allowed_ones_are_named(
    tmp_path: Path, accounts: list[str], unnamed: str
) -> None:
    text = f"AccountingStorageType=accounting_storage/slurmdbd\n{BATCH}"
    answer = told(tmp_path, text, *accounts, tree=TREE)
    expected = (
        "cloud near: Slurm also admits accounts below the accounts of allow.accounts, but their "
        f"jobs get no cloud; name them, too: {unnamed}"
    )
    assert answer == ([expected] if unnamed else [])
    if accounts:
        assert "cluster=small" in (tmp_path / "asked").read_text()


def test_a_slurmdbd_that_does_not_answer_is_no_error(tmp_path: Path) -> None:
    text = f"AccountingStorageType=accounting_storage/slurmdbd\n{BATCH}"
    assert told(tmp_path, text, "physics") == []
    assert told(tmp_path, BATCH, "physics", tree=TREE) == []
