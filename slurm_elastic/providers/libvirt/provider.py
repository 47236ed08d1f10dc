"""Domains on the site's own KVM hosts, by libvirt (9.0 and later)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.config import Cluster
from slurm_elastic.errors import ProviderError, TransientError
from slurm_elastic.model import Finding, InstanceState, LaunchSpec, Pool
from slurm_elastic.providers.base.hosted import Room, room
from slurm_elastic.providers.base.hosts import left
from slurm_elastic.providers.base.marks import machine_of
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.tagged import Tagged, TaggedProvider
from slurm_elastic.providers.base.user_data import read_user_data
from slurm_elastic.providers.libvirt import domains, machine, preflight
from slurm_elastic.providers.libvirt.hosts import LibvirtHosts, bindings
from slurm_elastic.providers.libvirt.machine import Plan
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtType

Marks = Mapping[str, str] | None
"""A domain's; None of one that is not ours."""


class LibvirtProvider(TaggedProvider[LibvirtType]):
    """One or more hosts; see protocols.Provider for the contract. Thread-safe."""

    def __init__(
        self, settings: LibvirtCloud, cluster: Cluster, ownership: Ownership, joining: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._calls = LibvirtHosts(settings)
        super().__init__(settings, settings.types, cluster, ownership, self._calls, clock)
        self._settings = settings
        self._text = machine.template(settings)
        site = read_user_data(settings.user_data, settings.name)
        self._parts = tuple(filter(None, (joining, site)))
        self._marks: dict[str, Mapping[str, Marks]] = {}

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:  # noqa: ARG002 - all are alike
        """Version, virtualization, storage, image and network of each host."""
        return preflight.examine(self._settings, self._calls)

    def _ping(self, host: str) -> None:
        self._calls.call(host, lambda connection: connection.getLibVersion())

    def _rows(self, host: str) -> Sequence[Tagged]:
        return self._calls.call(host, lambda connection: list(self._there(connection, host)))

    def _there(self, connection: Any, host: str) -> Iterator[Tagged]:  # noqa: ANN401
        known, seen = self._marks.get(host, {}), {}
        for domain, told in connection.getAllDomainStats(bindings().VIR_DOMAIN_STATS_STATE):
            left()
            number = domain.UUIDString()
            seen[number] = tags = known[number] if number in known else _marks(domain, number)
            if tags is not None:
                now = time.time()
                state = machine.state_of(told["state.state"], told["state.reason"], tags, now)
                found = domains.address(domain)
                one = machine_of(number, tags, self._settings, state, found)
                half = state is InstanceState.PENDING
                yield Tagged(machine=one, name=domain.name(), host=host, half=half, tags=tags)
        self._marks[host] = seen

    def _room(
        self, host: str, types: Mapping[str, LibvirtType], there: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        halves = {one.short for one in there if one.half}
        size, used = self._calls.call(host, lambda c: domains.capacity(c, halves))
        own = self._settings.hosts[host]
        most = (own.cpus or size[0], own.memory or size[1] * 9 // 10)
        return {name: room(kind, most, used) for name, kind in types.items()}

    def _run(self, spec: LaunchSpec, node: str, kind: LibvirtType) -> None:
        host = spec.offer.zone
        plan = Plan(
            settings=self._settings, cluster=self._cluster, spec=spec, node=node, kind=kind,
            text=self._text, parts=self._parts,
        )  # fmt: skip
        try:
            self._calls.call(host, lambda connection: domains.start(connection, plan))
        except TransientError:
            raise
        except ProviderError:
            place = (plan.id, plan.name, self._settings.storage)
            self._calls.call(host, lambda connection: domains.remove(connection, *place))
            raise

    def _end(self, one: Tagged) -> None:
        self._calls.call(one.host, lambda connection: domains.end(connection, *_place(one)))

    def _remove(self, one: Tagged) -> None:
        self._calls.call(one.host, lambda connection: domains.remove(connection, *_place(one)))


def _marks(domain: Any, number: str) -> Marks:  # noqa: ANN401 - the bindings have no types
    tags = domains.marks(domain)
    return tags if tags is not None and machine.is_original(number, tags) else None


def _place(one: Tagged) -> tuple[str, str, str]:
    """Where the domain and its volumes are."""
    return one.short, one.name, one.tags.get(machine.STORAGE, "")
