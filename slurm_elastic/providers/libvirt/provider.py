"""Domains on the site's own KVM hosts, by libvirt (9.0 and later)."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from slurm_elastic.base.errors import CapacityError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.hosted import HostedProvider, Room, Tagged, room
from slurm_elastic.providers.base.hosts import seconds_left
from slurm_elastic.providers.base.machine_tags import machine_of
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import raise_first_error
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.user_data import read_user_data
from slurm_elastic.providers.libvirt import domains, machine, preflight
from slurm_elastic.providers.libvirt.hosts import LibvirtHosts, bindings
from slurm_elastic.providers.libvirt.machine import DomainPlan
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtType

log = logging.getLogger(__name__)

Marks = Mapping[str, str] | None
"""A domain's; None of one that is not ours."""


class LibvirtProvider(HostedProvider[LibvirtType]):
    """One or more hosts; see protocols.Provider for the contract. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_marks", "_changed")}

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
        self._recipe = (settings.image, settings.storage, self._text, self._parts)
        self._marks: dict[str, Mapping[tuple[str, bool], Marks]] = {}
        self._changed: defaultdict[str, set[str]] = defaultdict(set)

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:  # noqa: ARG002 - all are alike
        """Version, virtualization, storage, image and network of each host."""
        return preflight.examine(self._settings, self._calls)

    def _ping(self, host: str) -> None:
        self._calls.call(host, lambda connection: connection.getLibVersion())

    def _rows(self, host: str) -> Sequence[Tagged]:
        return self._calls.call(host, lambda connection: list(self._there(connection, host)))

    def _there(self, connection: Any, host: str) -> Iterator[Tagged]:  # noqa: ANN401
        seen: dict[tuple[str, bool], Marks] = {}
        with self._lock:
            known = self._marks.get(host, {})
        for domain, told in connection.getAllDomainStats(bindings().VIR_DOMAIN_STATS_STATE):
            seconds_left()
            number = domain.UUIDString()
            # Marks stay as they are but for one's that was stopped, started or ended since.
            key = number, told["state.state"] == machine.OFF
            fresh = key not in known or self._is_changed(host, number)
            seen[key] = tags = _marks(domain, number) if fresh else known[key]
            if tags is not None:
                now = time.time()
                state = machine.state_of(told["state.state"], told["state.reason"], tags, now)
                found = domains.address(domain)
                one = machine_of(number, tags, self._settings, state, found)
                half = state is InstanceState.PENDING
                yield Tagged(machine=one, name=domain.name(), host=host, unstarted=half, tags=tags)
        with self._lock:
            self._marks[host] = seen
            self._changed[host] &= {number for number, _ in seen}  # the others are gone

    def _note_change(self, one: Tagged) -> None:
        """Read the marks of this machine with each listing from now on."""
        with self._lock:
            self._changed[one.host].add(one.short)

    def _is_changed(self, host: str, number: str) -> bool:
        with self._lock:
            return number in self._changed[host]

    def _room(
        self, host: str, types: Mapping[str, LibvirtType], there: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        halves = {one.short for one in there if one.unstarted}
        size, used = self._calls.call(host, lambda c: domains.capacity(c, halves))
        own = self._settings.hosts[host]
        # The host itself needs some memory: a tenth, unless the settings say otherwise.
        most = (own.cpus or size[0], own.memory or size[1] * 9 // 10)
        return {name: room(kind, most, used) for name, kind in types.items()}

    def _run(self, spec: LaunchSpec, node: str, kind: LibvirtType) -> None:
        host = spec.offer.zone
        plan = DomainPlan(
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

    def recipe(self, pool: Pool) -> str:
        """The image's name: who puts another one there gives it another name."""
        return recipe(pool, *self._recipe)

    def stop(self, ids: Sequence[str]) -> None:
        """By ACPI: the guest shuts down. Its definition is marked before."""
        with self._calls.limited():
            for one in self._named(ids):
                self._note_change(one)
                self._calls.call(one.host, partial(domains.stop, number=one.short))

    def start(self, instance: str) -> None:
        """Where its host has the room: a stopped machine keeps none."""
        with self._calls.limited():
            found = self._named([instance])
            if not found:
                raise InstanceNotFound(self.name, "NotFound", f"there is no {instance}")
            with self._hold_launch_lock(found[0].host):
                self._start_again(found[0])

    def _start_again(self, one: Tagged) -> None:
        there = [other for other in self._list_own(one.host) if other.short == one.short]
        name = one.machine.instance_type
        kind = self._types.get(name)
        if not there or there[0].ended or kind is None:
            raise InstanceNotFound(self.name, "NotFound", f"there is no {one.short}")
        if there[0].machine.state is InstanceState.STOPPED:
            count, why = self._room(one.host, {name: kind}, there)[name]
            if not count:
                raise CapacityError(self.name, "NoSlots", f"{one.host}: {why}")
        self._note_change(one)
        if not self._calls.call(one.host, lambda c: domains.boot(c, one.short)):
            raise InstanceNotFound(self.name, "NotFound", f"there is no {one.short}")

    def _named(self, ids: Sequence[str]) -> Sequence[Tagged]:
        """The machines of ours among them, as they were seen last."""
        wanted = list(dict.fromkeys(ids))
        unseen = self._search_hosts(wanted)
        mine = self._machines_of(wanted)
        if missing := [i for i in wanted if i not in mine]:
            log.warning("not touched, gone or not ours cloud=%s ids=%s", self.name, missing)
            raise_first_error(unseen)
        return list(mine.values())

    def _end(self, one: Tagged) -> None:
        self._note_change(one)
        self._calls.call(one.host, lambda connection: domains.end(connection, *_place(one)))

    def _remove(self, one: Tagged) -> None:
        self._calls.call(one.host, lambda connection: domains.remove(connection, *_place(one)))


def _marks(domain: Any, number: str) -> Marks:  # noqa: ANN401 - the bindings have no types
    tags = domains.marks(domain)
    return tags if tags is not None and machine.is_original(number, tags) else None


def _place(one: Tagged) -> tuple[str, str, str]:
    """Where the domain and its volumes are."""
    return one.short, one.name, one.tags.get(machine.STORAGE, "")
