"""The machines of an OpenStack that a sandbox uses: the control plane its clouds.yaml leads to.

Unlike the emulated clouds it is not the sandbox's own: it is only looked at, as the daemon does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from slurm_elastic.config import Cluster, Config, configfile
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.openstack.convert import ServerFields
from slurm_elastic.providers.openstack.instances import Servers
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.seen import CloudMachine


def sources(layout: Layout) -> Iterator[tuple[str, Callable[[], Sequence[CloudMachine]]]]:
    """Each OpenStack of the configuration: how its machines are called here, and a look at them."""
    config = configfile.load(layout.config)
    for cloud in config.clouds:
        if isinstance(cloud, OpenStackCloud):
            # No name of a cloud has an equals sign: none is the beginning of another.
            yield f"openstack={cloud.name}=", _source(cloud, config.cluster, config)


def _source(
    cloud: OpenStackCloud, cluster: Cluster, config: Config
) -> Callable[[], Sequence[CloudMachine]]:
    servers = Servers(
        cloud.name, ownership_of(cloud, cluster, config), Project(cloud).call, cloud.threads
    )
    return lambda: tuple(_seen(cloud.name, one) for one in servers.live())


def _seen(cloud: str, one: ServerFields) -> CloudMachine:
    """On while nova says ACTIVE, and not while it is about to delete it."""
    on = one.status == "ACTIVE" and not one.task
    return CloudMachine(
        id=f"openstack={cloud}={one.id}",
        node=one.node,
        state="running" if on else "off",
        launched=one.created,
    )
