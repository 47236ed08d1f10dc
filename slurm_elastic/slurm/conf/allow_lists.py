"""Allow lists that Slurm cannot apply here: accounts and QOS without slurmdbd, unknown groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_elastic.base.account import is_group
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.siteconf import SiteConf

_SLURMDBD = "accounting_storage/slurmdbd"
UNKNOWN_GROUP_REMEDY = "correct the name in allow.groups, or make the group"


def conflicts(config: Config, site: SiteConf) -> Iterator[str]:
    """Report allow lists by account or QOS without slurmdbd, for which Slurm knows neither: every
    job would wait for ever (Job's account not known).
    """
    entry = site.option("AccountingStorageType")
    storage = entry.value if entry else "not set"
    # Slurm also takes the name of a plug-in without its type.
    if storage.lower().rpartition("/")[2] == "slurmdbd":
        return
    rules_by_cloud = [config.who_of(cloud) for cloud in config.clouds]
    lists = {
        "accounts": sorted({name for rules in rules_by_cloud for name in rules.accounts}),
        "qos": sorted({name for rules in rules_by_cloud for name in rules.qos}),
    }
    for key, names in lists.items():
        if names:
            yield (
                f"{entry.location if entry else site.path}: AccountingStorageType: found {storage},"
                f" expected {_SLURMDBD}, as slurm-elastic.yaml has allow.{key}: {', '.join(names)}:"
                " without slurmdbd Slurm knows no accounts and no QOS, and jobs in these clouds"
                " would wait for ever; use allow.groups instead"
            )


def unknown_groups(config: Config) -> Mapping[str, str]:
    """A cloud by each group of the allow lists that this host does not have."""
    named = {group: cloud.name for cloud in config.clouds for group in config.who_of(cloud).groups}
    return {group: cloud for group, cloud in named.items() if not is_group(group)}


def notices(config: Config) -> Iterator[str]:
    """A sentence for each unknown group. It is no conflict, as another host may know the group."""
    for group, cloud in unknown_groups(config).items():
        yield f"who may use {cloud}: this host has no group {group}; {UNKNOWN_GROUP_REMEDY}"
