"""The memory of jobs that ask for none, if only the site's default partition sets it.

The fragment copies no DefMem, because cloud nodes have another amount of memory for each CPU. Slurm
gives a job without a default all memory of its node, so each such job gets a machine to itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.slurm.client.siteconf import SiteConf

_NAMES = ("DefMemPerCPU", "DefMemPerNode")


def notices(site: SiteConf) -> Iterator[str]:
    """A sentence if the default partition has a DefMem that cloud partitions do not inherit."""
    default, by_memory = site.default_partition, site.option("SelectTypeParameters")
    if default is None or by_memory is None or "MEMORY" not in by_memory.value.upper():
        return
    inherited = [site.partition_defaults.get(name.lower()) or site.option(name) for name in _NAMES]
    entries = [(name, default.values.get(name.lower())) for name in _NAMES]
    for name, entry in entries:
        if entry and not any(inherited):
            yield (
                f"{entry.location}: partition {default.names[0]} has {name}={entry.value}, cloud"
                " partitions have none: a job without --mem gets all memory of a cloud node, so"
                f" each such job starts a machine of its own; set {name} for all partitions, in a"
                " line of its own of slurm.conf or in PartitionName=DEFAULT"
            )
