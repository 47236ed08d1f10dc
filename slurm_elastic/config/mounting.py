"""``join.mounts``: directories that machines mount by NFS before slurmd starts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.sections.joining import HEAD, Mount, Network
from slurm_elastic.config.tunnel import uses
from slurm_elastic.policies.repair.tunnel_addresses import head_address

OPTIONS = ("hard", "timeo=150", "nosuid", "nodev", "_netdev")
"""Options of each mount. ``hard``: while the server is away, writes wait and lose nothing.
``timeo``: the client asks again after 15 s, not 60, so jobs continue soon after the server is back.
"""


class MachineMount(Struct, frozen=True, kw_only=True):
    """A mount as a machine makes it: ``server`` as the machine reaches it."""

    path: str
    server: str
    export: str
    options: str
    required: bool = True

    @property
    def source(self) -> str:
        return f"{self.server}:{self.export}"


def mounts_of(config: Config, cloud: CloudSettings) -> Sequence[MachineMount]:
    """The mounts of that cloud's machines, a directory before those below it."""
    mounts = [mount for mount in config.join.mounts if has_mount(mount, cloud)]
    return [
        MachineMount(
            path=mount.path.rstrip("/"), server=_server(config, cloud, mount), export=mount.export,
            options=",".join((*OPTIONS, *mount.options)), required=mount.required,
        )
        for mount in sorted(mounts, key=lambda mount: mount.path.rstrip("/"))
    ]  # fmt: skip


def has_mount(mount: Mount, cloud: CloudSettings) -> bool:
    """Whether machines of that cloud make the mount."""
    return cloud.by_user_data and (not mount.clouds or cloud.name in mount.clouds)


def through_tunnel(network: Network | None, cloud: CloudSettings) -> bool:
    """Whether machines of that cloud reach the head through the tunnel."""
    return network is not None and network.tunnels and uses(network, cloud)


def _server(config: Config, cloud: CloudSettings, mount: Mount) -> str:
    network = config.join.network
    if mount.host != HEAD:
        return mount.host
    if network is not None and through_tunnel(network, cloud):
        return head_address(network.subnet)
    return config.join.heads[0].partition(":")[0]
