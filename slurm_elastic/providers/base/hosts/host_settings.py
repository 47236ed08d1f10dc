"""Settings shared by clouds whose hosts we only switch on and off (``switched``)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from slurm_elastic.config.basics.numbers import Seconds
from slurm_elastic.config.clouds import CloudSettings, InstanceType, without_spot
from slurm_elastic.model.cluster import Market


class HostsCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hosts``: by node, the address of the controller that switches the host's power."""

    hosts: Annotated[dict[str, str], Meta(min_length=1)]
    """Change it when a host comes or goes."""
    types: Annotated[dict[str, InstanceType], Meta(min_length=1)]
    """Change it when the hosts are of another size."""
    power_on_timeout: Seconds = 120.0
    """Change it when BMCs need longer than two minutes to show that a host is on."""
    power_off_timeout: Seconds = 180.0
    """Change it when hosts need longer than three minutes to shut down cleanly."""
    claims_file: str | None = None
    """Change it when the file should outlive the state directory, or be on a disk that a second
    head has, too.
    """

    threads: ClassVar[int] = 16
    """How many hosts are asked at the same time. Each BMC answers for itself, so a hundred hosts
    take seconds.
    """

    @property
    def markets(self) -> frozenset[Market]:
        """All markets of the location except spot."""
        return without_spot(self.location)

    @property
    def room(self) -> int:
        """The number of hosts."""
        return len(self.hosts)
