"""How machines of a cloud reach their metadata service, and what jobs must not reach there."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import quote

from msgspec import Struct

LINK_LOCAL = "169.254.169.254"
"""The address that most clouds use."""


class WarningProtocol(StrEnum):
    """How the agent of a machine reads warnings (``machine/programs/agent.py``)."""

    NONE = ""
    EC2 = "ec2"
    GCE = "gce"
    AZURE = "azure"


class MetadataService(Struct, frozen=True, kw_only=True):
    """The metadata service of a cloud's machines.

    ``protocol``: how the agent reads warnings at ``url``; NONE if it reads none. A warning names
    the machine as ``Instance.id``: the instance's id with ``ec2``, its name with ``gce`` and
    ``azure``. Jobs cannot open TCP connections to ``addresses`` (unless ``join.metadata_for_jobs``
    is set), except to ``open_ports``. UDP stays open, because some clouds answer DNS, DHCP and NTP
    at the same addresses.
    """

    protocol: WarningProtocol = WarningProtocol.NONE
    url: str = ""
    addresses: tuple[str, ...] = (LINK_LOCAL, "fd00:ec2::254", "fe80::a9fe:a9fe")
    """The default has the addresses of EC2 and OpenStack, IPv4 and IPv6."""
    open_ports: tuple[int, ...] = ()


DNS = 53
AZURE_MANAGER = "https://management.azure.com"
AGENT = "python3 -I /run/slurm-elastic/agent.py /run/slurm-elastic/agent"
"""The agent as the joining program starts it."""
NO_WARNINGS = MetadataService()
"""A cloud whose metadata service, if there is one, gives no warnings."""
EC2 = MetadataService(protocol=WarningProtocol.EC2, url=f"http://{LINK_LOCAL}/latest/")
GCE = MetadataService(
    protocol=WarningProtocol.GCE,
    url=f"http://{LINK_LOCAL}/computeMetadata/v1/",
    addresses=(LINK_LOCAL, "fd20:ce::254"),
    open_ports=(DNS,),
)
AZURE = MetadataService(
    protocol=WarningProtocol.AZURE,
    url=f"http://{LINK_LOCAL}/metadata/",
    # WireServer at 168.63.129.16 has the machine's goal state and certificates.
    addresses=(LINK_LOCAL, "168.63.129.16"),
    open_ports=(DNS,),
)


def azure_stop_command(
    action: str = "delete", manager: str = AZURE_MANAGER, identity: str | None = None
) -> str:
    """The ``CloudSettings.stop_command`` by which a machine of Azure ends itself: ``action`` is
    delete or deallocate. ``identity``: the resource id of a managed identity that may do this to
    the machine. Without it the machine must have exactly one identity.
    """
    command = f"{AGENT} end {action} {manager}"
    # Quoted for a URL, which also leaves nothing that a shell would read.
    return command if identity is None else f"{command} {quote(identity)}"
