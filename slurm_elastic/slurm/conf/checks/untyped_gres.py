"""Pools with a gres whose type is not named, beside nodes of the site where jobs ask for a type."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.siteconf import ConfRecord, SiteConf
from slurm_elastic.slurm.conf import allowed_partitions

# "gpu:a100:2(S:0-1)": a name and a type, then perhaps a count and sockets.
_TYPED = re.compile(r"([^:(]+:(?!\d+[KMGT]?$|no_consume\b)[^:(]+)(?::no_consume)?(?::\d+[KMGT]?)?")


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """A sentence for each typed gres that jobs know from the site and that a cloud's pools have
    without the type: no such job can use these pools.
    """
    for cloud in config.clouds:
        gres = {name for pool in config.pools if pool.cloud == cloud.name for name in pool.gres}
        typed: dict[str, ConfRecord] = {}
        for partition in allowed_partitions.partitions_of(config, cloud, site):
            typed |= _typed_gres(partition, site)
        for full_name, node in typed.items():
            name, _, kind = full_name.partition(":")
            if name in gres and full_name not in gres:
                yield (
                    f"cloud {cloud.name}: its pools have {name} without the type {kind}, which"
                    f" {node.location} gives to {node.names[0]}: jobs with --gres={full_name}:1 do"
                    f' not burst; if the machines have this type, set gres: {{"{full_name}": N}}'
                )


def _typed_gres(partition: ConfRecord, site: SiteConf) -> dict[str, ConfRecord]:
    """The typed gres of the nodes of a partition, such as gpu:a100, with their lines."""
    try:
        members = set(expand(partition.get("nodes")))
    except HostlistError:
        return {}  # slurmctld refuses it, and the check shows that
    typed: dict[str, ConfRecord] = {}
    for record in site.nodes:
        if "ALL" not in members and members.isdisjoint(record.names):
            continue
        for item in re.sub(r"\([^)]*\)", "", record.get("gres")).split(","):
            if match := _TYPED.fullmatch(item):
                typed.setdefault(match[1], record)
    return typed
