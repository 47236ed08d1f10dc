"""Properties of a site that change the order of a job's partitions.

A QOS of a partition, or an association with a partition, gives a job another priority there. Both
also carry limits, so the fragment copies neither. The sentences say which line to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import Config, SlurmSettings
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.command import output
from slurm_elastic.slurm.client.siteconf import ConfRecord, SiteConf
from slurm_elastic.slurm.conf import allowed_partitions


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """A sentence for each property of the site that changes the order of a job's partitions.
    No sentence if Slurm orders jobs by their time alone.
    """
    kind = site.option("PriorityType")
    if kind is not None and kind.value == "priority/basic":
        return
    records = [record for record, _ in allowed_partitions.clouds_by_partition(config, site)]
    for record in records:
        yield from _qos(site, record)
    if _weighs(site, "PriorityWeightAssoc") or _weighs(site, "PriorityWeightFairshare"):
        yield from _associations(config.slurm, site, [record.names[0] for record in records])


def _qos(site: SiteConf, record: ConfRecord) -> Iterator[str]:
    own_entry, inherited = record.values.get("qos"), site.partition_defaults.get("qos")
    names = [entry.value if entry else "" for entry in (own_entry, inherited)]
    if names[0] == names[1] or not _weighs(site, "PriorityWeightQOS"):
        return
    entry = own_entry or inherited
    where = entry.location if entry else record.location
    own_qos, cloud_qos = (name or "none" for name in names)
    change = " and ".join(f"`sacctmgr modify qos {name} set priority=0`" for name in names if name)
    yield (
        f"{where}: partition {record.names[0]} has QOS {own_qos}, cloud partitions have"
        f" {cloud_qos}: with PriorityWeightQOS the priority of a QOS may start"
        f" {allowed_partitions.jobs_of(record, site)} in a cloud first, or last; to prevent it:"
        f" {change}, or the same priority for both"
    )


def _associations(
    settings: SlurmSettings, site: SiteConf, partitions: Sequence[str]
) -> Iterator[str]:
    kind = site.option("AccountingStorageType")
    if kind is None or kind.value.rpartition("/")[2] != "slurmdbd":
        return
    counts = Counter(_partitions_of_associations(settings))
    for partition in partitions:
        if counts[partition]:
            yield (
                f"{counts[partition]} associations name partition {partition}: jobs of these users"
                " have another priority there than in a cloud partition; to prevent it, give them"
                " the same association without a partition (`sacctmgr show associations"
                f" partition={partition}`)"
            )


def _partitions_of_associations(settings: SlurmSettings) -> list[str]:
    """The partition of each association; nothing if slurmdbd does not answer."""
    command = (
        f"{settings.bin_dir}/sacctmgr",
        *("--noheader", "--parsable2", "show", "associations", "format=partition"),
    )
    try:
        return output(command, settings).split()
    except SlurmError:
        return []


def _weighs(site: SiteConf, option: str) -> bool:
    entry = site.option(option)
    return entry is not None and bool(confvalues.number(entry.value))
