"""The settings that clouds of hosts share (``hosted``), and what makes no sense in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from slurm_elastic.config.clouds import CloudSettings, without_spot
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.gone import Gone
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Market


class HostedCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud whose machines are on ``hosts``, which are its zones, in sizes of its own."""

    gone: ClassVar[Gone] = {"threads": "4 calls are made at a time on one host"}
    threads: ClassVar[int] = 4
    """Calls at a time on one host: its disk makes machines one after the other in the end."""

    needs_types: ClassVar[bool] = True

    @property
    def markets(self) -> frozenset[Market]:
        """No spot."""
        return without_spot(self.location)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The hosts."""
        hosts: Mapping[str, object] = getattr(self, "hosts", {})
        return tuple(hosts)


def own_addresses(draft: Draft, at: KeyPath, key: str, addresses: Mapping[str, str]) -> None:
    """A host by two names would be filled twice. ``addresses``: of each host, as ``key`` has it."""
    first: dict[str, str] = {}
    for name, address in addresses.items():
        other = first.setdefault(address, name)
        if other != name:
            found = f"{shown(address)}, which hosts.{other} has already"
            draft.problems.add((*at, "hosts", name, key), found, f"a {key} of its own")
