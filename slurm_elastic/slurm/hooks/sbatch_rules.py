"""The submit filter's rules about a job itself, by the options of sbatch (for ``price``).

The filter reads the fields of Slurm's job description (CHOSEN and STRANGE_* of the Lua code). This
module has the same rules by the names that ``sbatch --verbose`` prints. A test submits each option
to a real slurmctld with the filter, and compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.spot_use import bears_loss, nodes_for
from slurm_elastic.policies.launch.verdict import could_run, need
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.commands import sbatch_test_only
from slurm_elastic.slurm.client.requested_job import requested_job
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.hooks.submit_filter import is_open_to, requeues_by_default

CHOSEN = ("nodelist", "nodefile", "exclude", "reservation", "clusters")
"""Options by which the user chose the nodes or another cluster."""
STRANGE = (
    "batch", "bb", "bbf", "container", "contiguous", "cores-per-socket", "extra-node-info",
    "gpus-per-socket", "network", "ntasks-per-gpu", "ntasks-per-socket", "prefer", "reboot",
    "segment", "sockets-per-node", "switches", "tmp",
)  # fmt: skip
"""Requests that the filter does not judge."""
SPECIALIZED = ("core-spec", "thread-spec")
"""Ignored by sbatch itself, unless the site has AllowSpecResourcesUsage."""
ONE_AT_MOST = ("ntasks-per-core", "threads-per-core")


_NOT_A_NAME = frozenset("|[]()*!,")
"""Characters of constraints other than names with ``&`` between them. The filter judges no others.
"""


def stays_unchanged(options: Mapping[str, str], site: SiteConf | None) -> bool:
    """Whether the filter adds no partition of ours to a job with these options."""
    allowed = site.option("AllowSpecResourcesUsage") if site else None
    specialized = SPECIALIZED if allowed and confvalues.is_true(allowed.value) else ()
    return (
        any(options.get(name) for name in (*CHOSEN, *STRANGE, *specialized))
        or any(sbatch_test_only.count(options.get(name, ""), 1) > 1 for name in ONE_AT_MOST)
        # The only hint that asks for cores of a socket.
        or options.get("hint") == "memory_bound"
        or not _NOT_A_NAME.isdisjoint(options.get("constraint", ""))
    )


def may_requeue(options: Mapping[str, str], site: SiteConf | None) -> bool:
    """Whether Slurm may requeue the job: by its own option, else by the site's JobRequeue."""
    if "no-requeue" in options:
        return False
    return "requeue" in options or requeues_by_default(site)


def open_clouds(
    config: Config, site: SiteConf | None, options: Mapping[str, str], partition: str
) -> list[CloudSettings]:
    """The clouds that the filter may list for a job with these options, whose first partition is
    ``partition``. Slurm judges the accounts, QOS and sizes.
    """
    if stays_unchanged(options, site):
        return []
    is_named = bool(options.get("partition"))
    job = requested_job(options, (), requeue=may_requeue(options, site))
    default = site.default_partition if site else None
    is_default = not is_named or (default is not None and partition in default.names)
    return [
        cloud
        for cloud in config.clouds
        if is_open_to(config, cloud, partition, is_named=is_named, is_default=is_default)
        and _has_nodes_for(config, cloud, job)
        and _is_licensed(config, cloud, options.get("licenses", ""))
    ]


def _has_nodes_for(config: Config, cloud: CloudSettings, job: SlurmJob) -> bool:
    """Whether the job may lose a spot machine, or nodes of the cloud without them can hold it."""
    accounts = config.who_of(cloud).no_requeue_on_spot
    if bears_loss(job, accounts):
        return True
    pools = [pool for pool in domain_pools(config, expand) if pool.cloud == cloud.name]
    fitting = [pool for pool in pools if could_run(job, pool)]
    nodes = sum(nodes_for(job, pool, accounts) for pool in fitting)
    return any(need(job, pool) <= nodes for pool in fitting)


def _is_licensed(config: Config, cloud: CloudSettings, licenses: str) -> bool:
    allowed = {name.lower() for name in config.who_of(cloud).licenses}
    names = (re.sub(r"[:=]\d+$", "", item.lower()) for item in re.findall(r"[^,|]+", licenses))
    return all(name in allowed or name.partition("@")[0] in allowed for name in names)
