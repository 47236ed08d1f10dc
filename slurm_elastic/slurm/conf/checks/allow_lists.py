"""Allow lists that Slurm cannot apply here: accounts and QOS without slurmdbd, unknown groups,
and groups without members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slurm_elastic.base.account import has_members, is_group
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.siteconf import SiteConf

_SLURMDBD = "accounting_storage/slurmdbd"
_UNKNOWN_REMEDY = "correct the name in allow.groups, or make the group"
# Slurm gives the submit filter such a partition as one that everybody may use (job_submit/lua,
# _user_can_use_part), so the filter lists it.
_EMPTY_REMEDY = (
    "name a group in allow.groups that your users are in: else Slurm lets nobody into that"
    " partition, and with EnforcePartLimits=ALL it refuses every job that lists it"
)


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


class GroupFlaw(NamedTuple):
    """A group of allow lists that lets nobody in. ``clouds``: the clouds that have it, by name."""

    clouds: str
    finding: str
    remedy: str


def group_flaws(config: Config) -> Iterator[GroupFlaw]:
    """The groups of the allow lists that this host does not have, or shows no member of."""
    clouds_by_group: dict[str, list[str]] = {}
    for cloud in config.clouds:
        for group in config.who_of(cloud).groups:
            clouds_by_group.setdefault(group, []).append(cloud.name)
    for group, names in clouds_by_group.items():
        clouds = ", ".join(names)
        if not is_group(group):
            yield GroupFlaw(clouds, f"this host has no group {group}", _UNKNOWN_REMEDY)
        elif not has_members(group):
            yield GroupFlaw(clouds, f"group {group} has no member on this host", _EMPTY_REMEDY)


def notices(config: Config) -> Iterator[str]:
    """A sentence for each such group. It is no conflict, as another host may know the group and
    its members.
    """
    for flaw in group_flaws(config):
        yield f"who may use {flaw.clouds}: {flaw.finding}; {flaw.remedy}"
