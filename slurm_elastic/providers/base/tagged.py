"""Machines on hosts (``hosted``) that keep our tags: these tell all there is to know of one."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.base.hosted import HostedProvider, Kind


class Tagged(Struct, frozen=True, kw_only=True):
    """A machine with its ``name`` on its host; ``half``: it was made and never started."""

    machine: Instance
    name: str
    host: str
    half: bool
    tags: Mapping[str, str]

    @property
    def short(self) -> str:
        """Our id of it."""
        return self.machine.id

    @property
    def node(self) -> str:
        """The node that it was made for."""
        return self.machine.node

    @property
    def generation(self) -> str:
        """The launch that it is of."""
        return self.machine.generation

    @property
    def ended(self) -> bool:
        """Whether it runs no more, and will not."""
        return self.machine.state is InstanceState.TERMINATED


class TaggedProvider(HostedProvider[Tagged, Kind]):
    """The part that they share."""

    def _owner(self, one: Tagged) -> str | None:
        return self._ownership.owner(one.tags)

    def _instance(self, one: Tagged) -> Instance:
        return one.machine
