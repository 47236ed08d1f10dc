"""The settings that clouds of hosts share which are only switched on and off (``switched``)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slurm_elastic.config.clouds import CloudSettings, InstanceType, without_spot
from slurm_elastic.config.numbers import Seconds
from slurm_elastic.model.cluster import Market


class HostsCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hosts`` by node: what switches each one's power. ``on_wait``: so long a host may take to
    show that it is on; ``off_wait``: to shut down before it is switched off. ``claims``: the file
    that says which hosts we switched on; in the state directory unless it is named.
    """

    hosts: Annotated[dict[str, str], Meta(min_length=1)]
    types: Annotated[dict[str, InstanceType], Meta(min_length=1)]
    on_wait: Seconds = 120.0
    off_wait: Seconds = 180.0
    claims: str | None = None
    threads: Annotated[int, Meta(ge=1, le=64)] = 16

    @property
    def markets(self) -> frozenset[Market]:
        """No spot."""
        return without_spot(self.location)

    @property
    def room(self) -> int:
        """The hosts."""
        return len(self.hosts)
