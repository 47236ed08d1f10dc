"""Domains on the site's own KVM hosts, by libvirt (9.0 and later)."""

from __future__ import annotations

import logging
import threading
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
from slurm_elastic.providers.base.hosts.host_rows import Tagged
from slurm_elastic.providers.base.hosts.hosted import HostedProvider, Room, room
from slurm_elastic.providers.base.hosts.hosts import seconds_left
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
"""The marks of a domain; None if it is not ours."""


class LibvirtProvider(HostedProvider[LibvirtType]):
    """One or more hosts. The contract is in protocols.Provider. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_marks", "_changed")}
    can_move = True

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
        self._recipe = (settings.image, settings.storage_pool, self._text, self._parts)
        self._lock = threading.Lock()
        self._marks: dict[str, Mapping[tuple[str, bool], Marks]] = {}
        self._changed: defaultdict[str, set[str]] = defaultdict(set)

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:  # noqa: ARG002 - all are alike
        """Findings about version, virtualization, storage, image and network of each host."""
        return preflight.examine(self._settings, self._calls, self._away())

    def _occupants(self, host: str) -> int:
        """See ``hosted.HostedProvider``. Ended and moved machines of ours do not count."""
        elsewhere = {machine.short for machine in self._rows(host) if not machine.runs_here}
        return len(self._all_ids(host) - elsewhere)

    def _all_ids(self, host: str) -> set[str]:
        return self._calls.call(host, domains.all_numbers)

    def _ping(self, host: str) -> None:
        self._calls.call(host, lambda connection: connection.getLibVersion())

    def _rows(self, host: str) -> Sequence[Tagged]:
        return self._calls.call(host, lambda connection: list(self._list_domains(connection, host)))

    def _list_domains(self, connection: Any, host: str) -> Iterator[Tagged]:  # noqa: ANN401
        seen_marks: dict[tuple[str, bool], Marks] = {}
        with self._lock:
            known_marks = self._marks.get(host, {})
        for domain, stats in connection.getAllDomainStats(bindings().VIR_DOMAIN_STATS_STATE):
            seconds_left()
            domain_id = domain.UUIDString()
            # Marks change only if a machine is stopped, started or ended, so they are read once and
            # after each such change. Reading them takes a call for each domain.
            key = domain_id, stats["state.state"] == machine.OFF
            # The key contains whether the domain is off, so a change made by another process is
            # also noticed.
            must_read = key not in known_marks or self._is_changed(host, domain_id)
            seen_marks[key] = tags = _marks(domain, domain_id) if must_read else known_marks[key]
            if tags is not None:
                how = stats["state.state"], stats["state.reason"], tags
                state = machine.state_of(*how, time.time())
                found_address = domains.address(domain, self._settings.address_ranges)
                instance = machine_of(domain_id, tags, self._settings, state, found_address)
                is_unstarted = state is InstanceState.PENDING
                yield Tagged(
                    machine=instance,
                    name=domain.name(),
                    host=host,
                    unstarted=is_unstarted,
                    tags=tags,
                    moved=machine.is_moved(*how),
                )
        with self._lock:
            self._marks[host] = seen_marks
            self._changed[host] &= {
                domain_id for domain_id, _ in seen_marks
            }  # other domains are gone

    def _note_change(self, machine: Tagged) -> None:
        """From now on read this machine's marks with each listing."""
        with self._lock:
            self._changed[machine.host].add(machine.short)

    def _is_changed(self, host: str, number: str) -> bool:
        with self._lock:
            return number in self._changed[host]

    def _room(
        self, host: str, types: Mapping[str, LibvirtType], present: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        unstarted = {machine.short for machine in present if machine.unstarted}
        size, used = self._calls.call(host, lambda c: domains.capacity(c, unstarted))
        host_settings = self._settings.hosts[host]
        # The host itself needs some memory: a tenth, unless the settings say otherwise.
        limits = (host_settings.cpus or size[0], host_settings.memory or size[1] * 9 // 10)
        return {name: room(kind, limits, used) for name, kind in types.items()}

    def _run(self, spec: LaunchSpec, node: str, kind: LibvirtType) -> None:
        host = spec.offer.zone
        plan = DomainPlan(
            settings=self._settings, cluster=self._cluster, spec=spec, node=node, kind=kind,
            text=self._text, parts=self._parts,
        )  # fmt: skip
        try:
            self._calls.call(host, lambda connection: domains.start(connection, plan))
        # It may have started, so it must stay.
        except TransientError:
            raise
        except ProviderError:
            place = (plan.id, plan.name, self._settings.storage_pool)
            self._calls.call(host, lambda connection: domains.remove(connection, *place))
            raise

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine. It contains the image's name only: a new image must get a
        new name.
        """
        return recipe(pool, *self._recipe)

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop machines by ACPI, which shuts the guest down. The domain is marked before."""
        with self._calls.limited():
            machines = self._known_machines(ids)
            for machine in machines:
                self._note_change(machine)
                self._calls.call(machine.host, partial(domains.stop, number=machine.short))
        known_ids = {machine.short for machine in machines}
        return [i for i in ids if i not in known_ids]

    def start(self, instance: str) -> None:
        """Start a stopped machine if its host has room. A stopped machine reserves none."""
        with self._calls.limited():
            machines = self._known_machines([instance])
            if not machines:
                raise InstanceNotFound(self.name, "NotFound", f"there is no {instance}")
            with self._hold_launch_lock(machines[0].host):
                self._start_again(machines[0])

    def _start_again(self, stopped: Tagged) -> None:
        listed = [
            candidate
            for candidate in self._list_own(stopped.host)
            if candidate.short == stopped.short
        ]
        name = stopped.machine.instance_type
        kind = self._types.get(name)
        if not listed or listed[0].ended or kind is None:
            raise InstanceNotFound(self.name, "NotFound", f"there is no {stopped.short}")
        if listed[0].machine.state is InstanceState.STOPPED:
            count, reason = self._room(stopped.host, {name: kind}, listed)[name]
            if not count:
                raise CapacityError(self.name, "NoSlots", f"{stopped.host}: {reason}")
        self._note_change(stopped)
        if not self._calls.call(stopped.host, lambda c: domains.boot(c, stopped.short)):
            raise InstanceNotFound(self.name, "NotFound", f"there is no {stopped.short}")

    def _known_machines(self, ids: Sequence[str]) -> Sequence[Tagged]:
        """Our machines among these ids, as they were last listed."""
        requested = list(dict.fromkeys(ids))
        search_errors = self._search_hosts(requested)
        own_machines = self._machines_of(requested)
        if missing := [i for i in requested if i not in own_machines]:
            log.warning(
                "machines not touched, gone or not ours cloud=%s ids=%s", self.name, missing
            )
            raise_first_error(search_errors)
        for own_machine in own_machines.values():
            self._require_known_host(own_machine)
        return list(own_machines.values())

    def _end(self, machine: Tagged) -> None:
        self._note_change(machine)
        self._calls.call(machine.host, lambda connection: domains.end(connection, *_place(machine)))

    def _note_end_elsewhere(self, machine: Tagged) -> None:
        self._note_change(machine)
        self._calls.call(machine.host, lambda c: domains.note_end_elsewhere(c, machine.short))

    def _remove(self, machine: Tagged) -> None:
        self._calls.call(
            machine.host, lambda connection: domains.remove(connection, *_place(machine))
        )


def _marks(domain: Any, number: str) -> Marks:  # noqa: ANN401 - the bindings have no types
    tags = domains.marks(domain)
    return tags if tags is not None and machine.is_original(number, tags) else None


def _place(tagged: Tagged) -> tuple[str, str, str]:
    """The ids of the domain and its volumes."""
    return tagged.short, tagged.name, tagged.tags.get(machine.STORAGE, "")
