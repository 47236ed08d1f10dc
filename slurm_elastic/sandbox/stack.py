"""Lists the machines of an OpenStack that a sandbox uses, by the endpoint in its clouds.yaml.

Unlike the emulated clouds it does not belong to the sandbox, which only reads it.
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
    """Yield for each OpenStack of the configuration the prefix of its machines' ids, and a function
    that lists them.
    """
    config = configfile.load(layout.config)
    for cloud in config.clouds:
        if isinstance(cloud, OpenStackCloud):
            # The equals sign, which no cloud's name contains, keeps a prefix from matching another
            # cloud with a longer name.
            yield f"openstack={cloud.name}=", _source(cloud, config.cluster, config)


def _source(
    cloud: OpenStackCloud, cluster: Cluster, config: Config
) -> Callable[[], Sequence[CloudMachine]]:
    servers = Servers(
        cloud.name, ownership_of(cloud, cluster, config), Project(cloud).call, cloud.threads
    )
    return lambda: tuple(_seen(cloud.name, server) for server in servers.live())


def _seen(cloud: str, server: ServerFields) -> CloudMachine:
    """Return a server for the runner. It is on if nova shows ACTIVE and no task, such as
    deleting.
    """
    is_on = server.status == "ACTIVE" and not server.task
    return CloudMachine(
        id=f"openstack={cloud}={server.id}",
        node=server.node,
        state="running" if is_on else "off",
        launched=server.created,
    )
