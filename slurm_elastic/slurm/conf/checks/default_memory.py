"""The memory of jobs without --mem, if cloud partitions have another default, or a default that is
too large for all cloud nodes.

The fragment copies no DefMem, because cloud nodes have another amount of memory for each CPU. Slurm
gives a job without a default all memory of its node, so each such job gets a machine to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import ConfRecord, Entry, SiteConf
from slurm_elastic.slurm.conf import allowed_partitions

_PER_GPU = "DefMemPerGPU"
_NAMES = ("DefMemPerCPU", "DefMemPerNode", _PER_GPU)


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """A sentence for each cloud whose nodes have less than the default, and for each allowed
    partition with a DefMem that cloud partitions do not inherit.
    """
    options = {name: site.partition_defaults.get(name.lower()) or site.option(name)
               for name in _NAMES}  # fmt: skip
    entries = {name: entry for name, entry in options.items() if entry}
    for cloud in config.clouds:
        yield from _above_all_nodes(config, cloud, entries)
    by_memory = site.option("SelectTypeParameters")
    if by_memory is None or "MEMORY" not in by_memory.value.upper():
        return
    inherited = {name: entry.value for name, entry in entries.items()}
    for record, clouds in allowed_partitions.clouds_by_partition(config, site):
        yield from _other_value(record, inherited)
        # A value for each GPU counts beside one for each CPU, and before it.
        names = [name for name in _NAMES if not inherited or name in {_PER_GPU} - inherited.keys()]
        # DefMemPerGPU is for jobs with GPUs only.
        if not _has_gpus(config, clouds):
            names = [name for name in names if name != _PER_GPU]
        # The first is enough: without a value for each CPU all jobs get all memory.
        for name in [name for name in names if name.lower() in record.values][:1]:
            entry = record.values[name.lower()]
            yield (
                f"{entry.location}: partition {record.names[0]} has {name}={entry.value}, cloud"
                f" partitions have none: {_effect(name, inherited)}; set {name} for all partitions,"
                " in a line of its own of slurm.conf or in PartitionName=DEFAULT"
            )


def _above_all_nodes(
    config: Config, cloud: CloudSettings, entries: Mapping[str, Entry]
) -> Iterator[str]:
    """A sentence for a default that no node of the cloud has: the submit filter then lists the
    cloud for no job without --mem.
    """
    largest = max((p.slurm_memory for p in config.pools if p.cloud == cloud.name), default=0)
    for name, entry in entries.items():
        value = confvalues.number(entry.value)
        if name != _PER_GPU and largest and value is not None and value > largest:
            yield (
                f"{entry.location}: {name}={entry.value} is more than any node of cloud"
                f" {cloud.name} has ({largest} MiB): no job without --mem gets this cloud"
            )


def _other_value(record: ConfRecord, inherited: Mapping[str, str]) -> Iterator[str]:
    """A sentence if the partition's own default differs from the default of cloud partitions."""
    names = [name for name in _NAMES if name != _PER_GPU]
    entry = next((record.values[n.lower()] for n in names if n.lower() in record.values), None)
    other = next((f"{name}={inherited[name]}" for name in names if name in inherited), None)
    if entry is None or other is None or f"{entry.name}={entry.value}".lower() == other.lower():
        return
    yield (
        f"{entry.location}: partition {record.names[0]} has {entry.name}={entry.value}, cloud"
        f" partitions {other}: a job without --mem gets other memory there; to have it equal, set"
        " it for all partitions, in PartitionName=DEFAULT"
    )


def _has_gpus(config: Config, clouds: Sequence[CloudSettings]) -> bool:
    names = {cloud.name for cloud in clouds}
    return any(
        gres.partition(":")[0] == "gpu"
        for pool in config.pools
        if pool.cloud in names
        for gres in pool.gres
    )


def _effect(name: str, inherited: Mapping[str, str]) -> str:
    jobs = "a job with GPUs and without --mem" if name == _PER_GPU else "a job without --mem"
    for other, value in inherited.items():
        return f"{jobs} gets {other}={value} there"
    return f"{jobs} gets all memory of a cloud node, so each such job starts a machine of its own"
