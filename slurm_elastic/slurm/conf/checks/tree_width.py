"""TreeWidth before Slurm 23.11, whose slurmds know the addresses of other nodes only by slurm.conf.

If a message goes to more than TreeWidth nodes, slurmctld sends it to some slurmds, which forward it
to the others. A cloud machine has another address than its line in slurm.conf, so these slurmds
cannot reach it. Since 23.11 slurmctld sends the addresses along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Pool
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import SiteConf

_DEFAULT = 50
"""TreeWidth of 22.05 and 23.02 if slurm.conf has none (slurm.conf(5))."""
_LARGEST = 65533


def notices(
    config: Config, pools: Sequence[Pool], site: SiteConf, version: tuple[int, int]
) -> Iterator[str]:
    """A sentence if slurmds may have to forward messages to machines that they cannot reach."""
    # The addresses of nodes with a slurmd_port, which run on this host, are in slurm.conf.
    local_pools = {pool.name for pool in config.pools if pool.slurmd_port is not None}
    by_name = "cloud_dns" in site.items("SlurmctldParameters")
    if version >= (23, 11) or by_name or all(pool.name in local_pools for pool in pools):
        return
    entry = site.option("TreeWidth")
    width = (confvalues.number(entry.value) if entry else None) or _DEFAULT
    own_count, our_count = len(site.node_names), sum(len(pool.nodes) for pool in pools)
    if own_count + our_count > width:
        yield (
            f"{entry.location if entry else site.path}: TreeWidth is {width}, and there are"
            f" {own_count} own and {our_count} cloud nodes: with more than {width} nodes up,"
            f" slurmds of {version[0]}.{version[1]:02} forward messages to cloud machines, whose"
            f" addresses they do not know; write TreeWidth={_LARGEST}"
        )
