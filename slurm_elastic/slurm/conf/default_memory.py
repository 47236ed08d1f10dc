"""The memory that jobs get which ask for none: what the site's default partition alone sets for it.

The fragment copies no DefMem, as a cloud's nodes have another memory for each CPU. Slurm
gives a job without a default all memory of its node, so each such job has a machine to itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.slurm.client.siteconf import SiteConf

_NAMES = ("DefMemPerCPU", "DefMemPerNode")


def notices(site: SiteConf) -> Iterator[str]:
    """A sentence if the default partition has a DefMem and cloud partitions have none."""
    default, by_memory = site.default_partition, site.option("SelectTypeParameters")
    if default is None or by_memory is None or "MEMORY" not in by_memory.value.upper():
        return
    inherited = [site.partition_defaults.get(name.lower()) or site.option(name) for name in _NAMES]
    own = [(name, default.values.get(name.lower())) for name in _NAMES]
    for name, entry in own:
        if entry and not any(inherited):
            yield (
                f"{entry.where}: partition {default.names[0]} has {name}={entry.value}, cloud"
                " partitions have none: a job without --mem gets all memory of a cloud node, so"
                f" each such job starts a machine of its own; set {name} for all partitions, in a"
                " line of its own of slurm.conf or in PartitionName=DEFAULT"
            )
