"""The memory of jobs that ask for none, if only the site's own partition sets it.

The fragment copies no DefMem, because cloud nodes have another amount of memory for each CPU. Slurm
gives a job without a default all memory of its node, so each such job gets a machine to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_elastic.config import Config
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.conf import allowed_partitions

_PER_GPU = "DefMemPerGPU"
_NAMES = ("DefMemPerCPU", "DefMemPerNode", _PER_GPU)


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """A sentence for each DefMem of an allowed partition that cloud partitions do not inherit."""
    by_memory = site.option("SelectTypeParameters")
    if by_memory is None or "MEMORY" not in by_memory.value.upper():
        return
    options = {name: site.partition_defaults.get(name.lower()) or site.option(name)
               for name in _NAMES}  # fmt: skip
    inherited = {name: entry.value for name, entry in options.items() if entry}
    for record, _ in allowed_partitions.clouds_by_partition(config, site):
        # A value for each GPU counts beside one for each CPU, and before it.
        for name in _NAMES if not inherited else {_PER_GPU} - inherited.keys():
            if entry := record.values.get(name.lower()):
                yield (
                    f"{entry.location}: partition {record.names[0]} has {name}={entry.value}, cloud"
                    f" partitions have none: {_effect(inherited)}; set {name} for all partitions,"
                    " in a line of its own of slurm.conf or in PartitionName=DEFAULT"
                )


def _effect(inherited: Mapping[str, str]) -> str:
    for name, value in inherited.items():
        return f"a job with GPUs and without --mem gets {name}={value} there"
    return (
        "a job without --mem gets all memory of a cloud node, so each such job starts a machine of"
        " its own"
    )
