"""The accounts below an account that AllowAccounts or DenyAccounts names.

Since 23.02 Slurm takes them as named, too (its CHANGELOG: "[Allow|Deny]Accounts parameter for a
partition is hierarchical"). The submit filter sees only the names that a list has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.command import output
from slurm_elastic.slurm.client.siteconf import ConfRecord, SiteConf
from slurm_elastic.slurm.conf import allowed_partitions


def is_hierarchical(version: tuple[int, int]) -> bool:
    """Whether Slurm applies both lists to the accounts below the named ones."""
    return version >= (23, 2)


def notices(config: Config, site: SiteConf, version: tuple[int, int]) -> Iterator[str]:
    """Sentences about jobs that get no cloud because the filter does not know the tree."""
    if is_hierarchical(version):
        for record, clouds in allowed_partitions.clouds_by_partition(config, site):
            # An account that allow.accounts names may use its cloud, whatever is above it.
            names = [cloud.name for cloud in clouds if not config.who_of(cloud).accounts]
            if names:
                yield from _denied_by_clouds(record, names, site)
                yield from _denied_by_partition(record, names, site)
        yield from _unnamed(config, site)


def _denied_by_clouds(record: ConfRecord, clouds: Sequence[str], site: SiteConf) -> Iterator[str]:
    """The accounts that cloud partitions deny and the partition of their jobs does not."""
    inherited = site.partition_defaults.get("denyaccounts")
    # AllowAccounts switches DenyAccounts off.
    if inherited is None or "allowaccounts" in site.partition_defaults:
        return
    own_list = "" if record.get("allowaccounts") else record.get("denyaccounts")
    if names := _missing(inherited.value, own_list):
        yield (
            f"{inherited.location}: cloud partitions deny account {names} and all"
            f" accounts below it, partition {record.names[0]} does not: the submit filter cannot"
            f" see the tree of accounts, so {allowed_partitions.jobs_of(record, site)} with an"
            f" account get no cloud ({', '.join(clouds)}); deny the same accounts in partition"
            f" {record.names[0]}, or name the others in allow.accounts"
        )


def _denied_by_partition(
    record: ConfRecord, clouds: Sequence[str], site: SiteConf
) -> Iterator[str]:
    """The accounts that a named partition denies and the clouds of its jobs do not."""
    entry, inherited = record.values.get("denyaccounts"), site.partition_defaults
    if record is site.default_partition or entry is None or record.get("allowaccounts"):
        return
    denied = inherited.get("denyaccounts")
    names = _missing(entry.value, denied.value if denied else "")
    if names and "allowaccounts" not in inherited:
        yield (
            f"{entry.location}: partition {record.names[0]} denies account {names} and all"
            " accounts below it, cloud partitions do not: the submit filter cannot see the tree of"
            f" accounts, so {allowed_partitions.jobs_of(record, site)} with an account get no"
            f" cloud ({', '.join(clouds)}); deny the same accounts in PartitionName=DEFAULT, or"
            " name the others in allow.accounts"
        )


def _missing(names: str, denied_names: str) -> str:
    """The accounts of the first list that the second does not have."""
    denied = {name.lower() for name in denied_names.split(",")}
    return ", ".join(name for name in names.split(",") if name.lower() not in denied)


def _unnamed(config: Config, site: SiteConf) -> Iterator[str]:
    """The accounts that ``allow.accounts`` does not name, below accounts that it names."""
    kind = site.option("AccountingStorageType")
    allow_lists = {cloud.name: config.who_of(cloud).accounts for cloud in config.clouds}
    if kind is None or kind.value.rpartition("/")[2] != "slurmdbd" or not any(allow_lists.values()):
        return
    parents = _parents(config)
    for cloud, accounts in allow_lists.items():
        named = {name.lower() for name in accounts}
        unnamed = sorted(name for name in parents.keys() - named if _above(name, parents) & named)
        if unnamed:
            yield (
                f"cloud {cloud}: Slurm also admits accounts below the accounts of allow.accounts,"
                f" but their jobs get no cloud; name them, too: {', '.join(unnamed)}"
            )


def _above(account: str, parents: Mapping[str, str]) -> set[str]:
    """All accounts above this one."""
    above: set[str] = set()
    while (account := parents.get(account, "")) and account not in above:
        above.add(account)
    return above


def _parents(config: Config) -> dict[str, str]:
    """Each account's parent; nothing if slurmdbd does not answer."""
    command = (
        f"{config.slurm.bin_dir}/sacctmgr",
        *("--noheader", "--parsable2", "show", "associations"),
        *(f"cluster={config.cluster.name}", "format=account,parentname"),
    )
    try:
        lines = output(command, config.slurm).splitlines()
    except SlurmError:
        return {}
    rows = (line.partition("|") for line in lines)
    # An association of a user has no parent's name.
    return {account.lower(): parent.lower() for account, _, parent in rows if parent}
