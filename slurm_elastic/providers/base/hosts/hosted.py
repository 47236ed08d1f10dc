"""Machines on hosts of the site on which only slurm-elastic places machines. Each host is a zone.

A subclass lists, starts and ends the machines (``HostedProvider``'s abstract methods). A machine's
name on its host contains the cluster, node and generation. So a repeated launch finds the machines
of the first one. An ended machine stays on its host for a while. It proves that this launch has
already had its machine for the node.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    LaunchSpec,
    Market,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.model.hypervisor import HostState, HostView, SwitchRules
from slurm_elastic.providers.base.hosts.claims import Claim
from slurm_elastic.providers.base.hosts.host_rows import (
    HostRows,
    Removals,
    RowsById,
    Tagged,
    live,
    place_of,
)
from slurm_elastic.providers.base.hosts.host_switch import HostSwitch, failed_boots
from slurm_elastic.providers.base.hosts.hosted_cloud import HostedCloud
from slurm_elastic.providers.base.hosts.hosts import Hosts, seconds_left
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.offers import typed_offer
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error, until_refused

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=InstanceType)
Room = tuple[int, str]
"""How many more machines of a type fit on a host, and the reason why not more."""


class HostedProvider(ABC, Generic[Kind]):
    """A provider of machines on one or more hosts. The contract is in protocols.Provider.
    Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_launching": "to launch on one host",
    }

    can_move: ClassVar[bool] = False
    """Whether people can move a running machine to another host. Then one host's word about a
    machine proves nothing while another host may run it.
    """

    def __init__(
        self,
        settings: HostedCloud,
        types: Mapping[str, Kind],
        cluster: Cluster,
        ownership: Ownership,
        hosts: Hosts[Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self._place = (settings.name, settings.location)
        self._types = types
        self._threads = settings.threads
        self._cluster = cluster
        self._ownership = Ours(settings.name, ownership)
        self._hosts = hosts
        self._clock = clock
        self._launching = {host: threading.Lock() for host in hosts.names}
        self._known_rows = HostRows()
        self._removals = Removals(settings.name, clock)
        self._switch: HostSwitch | None = None

    @abstractmethod
    def _rows(self, host: str) -> Sequence[Tagged]:
        """All machines on the host that any cluster of ours has made, ended ones included."""

    @abstractmethod
    def _all_ids(self, host: str) -> set[str]:
        """The ids of all machines on the host, also of other owners' machines."""

    @abstractmethod
    def _room(
        self, host: str, types: Mapping[str, Kind], present: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        """How many more machines of each type fit beside ``present``, which are all of our machines
        on the host.
        """

    @abstractmethod
    def _run(self, spec: LaunchSpec, node: str, kind: Kind) -> None:
        """Create and start the machine. If an earlier call was interrupted, do only the missing
        steps. Remove the machine again if it cannot be started.
        """

    @abstractmethod
    def _end(self, machine: Tagged) -> None:
        """Power the machine off for good. No error if it does not run."""

    @abstractmethod
    def _remove(self, machine: Tagged) -> None:
        """Remove every trace of the machine. No error if there is none."""

    @abstractmethod
    def _ping(self, host: str) -> None:
        """Raise a ProviderError unless the host answers."""

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Each type on each host with the room there. A host that does not answer is left out; its
        error is raised only if no host answers.
        """
        markets = [m for m in pool.markets if m is not Market.SPOT]
        hosts = [h for h in self._present_hosts() if not pool.zones or h in pool.zones]
        # A pool without ``instance_types`` takes every type.
        names = pool.instance_types or tuple(self._types)
        types = {n: self._types[n] for n in names if n in self._types}
        if not (markets and hosts and types):
            return ()
        with self._hosts.limited():
            answers = self._hosts.answered(
                hosts, lambda host: (host, self._count_room(host, types))
            )
        rooms = dict(answers)
        return tuple(
            typed_offer(self._place, name, kind, host, market, rooms[host][name])
            for name, kind in types.items()
            for host in hosts
            if host in rooms
            for market in markets
        )

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Start a machine for each node on the offer's host, a few at a time.

        A refusal ends the launch; the answer is then the machines started before it.
        """
        if not spec.nodes:
            return ()
        host, kind = spec.offer.zone, self._types.get(spec.offer.instance_type)
        if kind is None or host not in self._hosts.names:
            text = f"the settings have no {spec.offer.instance_type} on {host}"
            raise ProviderError(self.name, "NoType", text)
        with self._hosts.limited(), self._hold_launch_lock(host):
            # Inside the lock, so that the host is not shut down between this line and the launch.
            if host not in self._present_hosts():
                raise CapacityError(self.name, "HostOff", f"{host} is switched off")
            return self._launch(spec, host, kind)

    def instances(self) -> Sequence[Instance]:
        """Our machines on all hosts that run or are about to. An error if one host does not answer:
        an incomplete listing would make live machines look lost.
        """
        with self._hosts.limited():
            return live(self._list_everywhere())

    def tidy(self) -> Sequence[Instance]:
        """Remove machines that ended long ago from their hosts. See protocols.Tidying."""
        with self._hosts.limited():
            rows_by_id = self._list_everywhere()
            self._removals.remove_old(rows_by_id, self._remove)
            return live(rows_by_id)

    @property
    def trouble(self) -> str:
        """See protocols.Reporting."""
        return self._removals.trouble()

    def _list_everywhere(self) -> RowsById:
        listed = self._hosts.everywhere(self._list_own, self._present_hosts())
        return group_by([row for rows in listed for row in rows], lambda row: row.short)

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """End these machines where they run. An id that was never listed with our tags is looked up
        on all hosts and left alone. If a host does not answer, the machines of the other hosts are
        ended, and then that host's error is raised.
        """
        requested = list(dict.fromkeys(ids))
        if not requested:
            return {}
        with self._hosts.limited():
            search_errors = self._search_hosts(requested)
            rows = self._known_rows.of(requested)
            # A machine that no answer lists may run on a host without an answer. So the caller must
            # call again.
            unclear = [
                i for i in requested
                if search_errors and not any(row.runs_here for row in rows.get(i, ()))
            ]  # fmt: skip
            ending = {i: rows[i] for i in rows if i not in unclear}
            results = each(
                list(ending.values()), self._hosts.in_time(self._end_everywhere), self._threads
            )
            raise_first_error([*failures(results), *(search_errors if unclear else ())])
            answers = {i: result.result() for i, result in zip(ending, results, strict=True)}
            return answers | self._look_up([i for i in requested if i not in rows])

    def _look_up(self, ids: Sequence[str]) -> dict[str, EndAnswer]:
        """Whether any host has these machines, whose tags are not ours."""
        if not ids:
            return {}
        present = set[str]().union(*self._hosts.everywhere(self._all_ids, self._present_hosts()))
        return {i: EndAnswer.NOT_OURS if i in present else EndAnswer.GONE for i in ids}

    def notices(self) -> Sequence[Notice]:
        """Always empty: a host announces no end."""
        return ()

    def check(self) -> None:
        """Raise a ProviderError unless each host answers."""
        with self._hosts.limited():
            self._hosts.everywhere(self._ping, self._present_hosts())

    # hosts whose power we switch

    def switch_hosts_by(self, switch: HostSwitch) -> None:
        """Let hosts be switched off and on."""
        self._switch = switch

    @property
    def switch_rules(self) -> SwitchRules | None:
        """See ``hypervisor.SwitchesHosts``."""
        return None if self._switch is None else self._switch.rules

    def host_views(self) -> Sequence[HostView]:
        """See ``hypervisor.SwitchesHosts``."""
        if self._switch is None:
            return []
        hosts = self._switch.names
        with self._hosts.limited():
            for host, claim in self._left_off().items():
                self._switch.take_back(host, claim, partial(self._answers, host))
            away = self._away()
            return [self._view(host, away.get(host)) for host in hosts]

    def switch_host_off(self, host: str) -> bool:
        """See ``hypervisor.SwitchesHosts``."""
        if self._switch is None or host in self._away():
            return False
        with self._hosts.limited(), self._hold_launch_lock(host):
            # Asked again inside the lock: a machine may have started since the decision.
            return not self._occupants(host) and self._switch.shut_down(host)

    def switch_host_on(self, host: str) -> bool:
        """See ``hypervisor.SwitchesHosts``."""
        return self._switch is not None and self._switch.switch_on(host)

    def _occupants(self, host: str) -> int:
        """How many machines the host has, including stopped machines and machines of
        other people.
        """
        raise ProviderError(self.name, "NotSwitched", f"{host} cannot be switched")

    def _view(self, host: str, claim: Claim | None) -> HostView:
        if claim is not None and self._switch is not None:
            state = self._switch.state(host, claim, lambda: self._answers(host))
            return HostView(host=host, state=state, failed_boots=failed_boots(claim, state))
        try:
            return HostView(host=host, state=HostState.ON, occupants=self._occupants(host))
        except ProviderError as error:
            log.warning("host not read cloud=%s host=%s error=%s", self.name, host, error)
            return HostView(host=host, state=HostState.UNKNOWN)

    def _answers(self, host: str) -> bool:
        try:
            self._ping(host)
        except ProviderError:
            return False
        return True

    def _left_off(self) -> Mapping[str, Claim]:
        """The hosts that are away and that only a person can switch on."""
        left_off = self._switch.left_off() if self._switch is not None else {}
        return {host: claim for host, claim in left_off.items() if host in self._hosts.names}

    def _away(self) -> Mapping[str, Claim]:
        return self._switch.away() if self._switch is not None else {}

    def _present_hosts(self) -> Sequence[str]:
        """All hosts except the hosts that we have switched off, which had no machine at
        that time.
        """
        away = self._away()
        return [host for host in self._hosts.names if host not in away]

    def _count_room(self, host: str, types: Mapping[str, Kind]) -> Mapping[str, Room]:
        return self._room(host, types, self._rows(host))

    # launching

    def _launch(self, spec: LaunchSpec, host: str, kind: Kind) -> Sequence[Instance]:
        present = self._rows(host)
        launch_machines = [
            m for m in self._own_machines(host, present) if m.machine.generation == spec.generation
        ]
        live = {m.node: m for m in launch_machines if not m.ended}
        ended_nodes = {m.node for m in launch_machines if m.ended}
        # A node whose machine of this launch has ended gets no second one: repeating a launch must
        # never start more than its first call did.
        missing = [n for n in spec.nodes if n not in live and n not in ended_nodes]
        name = spec.offer.instance_type
        count, reason = self._room(host, {name: kind}, present)[name]
        refusal: ProviderError | None = None
        if count < len(missing):
            refusal = CapacityError(self.name, "NoSlots", f"{host}: {reason}")
        # A machine that was created but not started is from a call that was interrupted between the
        # two. It has its room already, so it does not count against ``count``.
        unstarted_nodes = [n for n, m in live.items() if m.unstarted]
        nodes = [*unstarted_nodes, *missing[:count]]

        def run(node: str) -> None:
            self._run(spec, node, kind)

        call_refusal = until_refused(nodes, self._hosts.in_time(run), self._threads)[1]
        refusal = call_refusal or refusal
        # Ask the host again instead of collecting results. Machines that an earlier call has
        # started belong to the answer, and a new machine may have ended already.
        present_machines = [
            m.machine for m in self._list_own(host) if not m.ended and m.node in spec.nodes
        ]
        machines = [
            machine for machine in present_machines if machine.generation == spec.generation
        ]
        return launched(self.name, spec, machines, refusal)

    # reading and ending

    def _search_hosts(self, ids: Sequence[str]) -> Sequence[BaseException]:
        """List all hosts, unless all these ids are known and cannot have moved since. Returns the
        errors of hosts that do not answer.
        """
        hosts = self._present_hosts()
        may_have_moved = self.can_move and len(hosts) > 1
        if not may_have_moved and self._known_rows.of(ids).keys() >= set(ids):
            return ()
        return failures(each(hosts, self._hosts.in_time(self._list_own), len(hosts)))

    def _list_own(self, host: str) -> Sequence[Tagged]:
        return self._own_machines(host, self._rows(host))

    def _own_machines(self, host: str, present: Sequence[Tagged]) -> Sequence[Tagged]:
        own_machines = self._ownership.among(present, lambda m: m.tags, lambda m: m.short)
        self._known_rows.note(host, own_machines)
        return own_machines

    def _machines_of(self, ids: Sequence[str]) -> dict[str, Tagged]:
        """Our machines among these ids, as they were last listed."""
        return {i: place_of(rows) for i, rows in self._known_rows.of(ids).items()}

    def _end_everywhere(self, rows: Sequence[Tagged]) -> EndAnswer:
        """End a machine on each host that runs it. An error gets the machine's id, as the host's
        text does not always contain it.
        """
        place = place_of(rows)
        try:
            self._require_known_host(place)
            for row in [row for row in rows if row.runs_here] or [place]:
                self._end(row)
            for row in rows:
                if row.moved:
                    self._note_end_elsewhere(row)
        except ProviderError as error:
            raise type(error)(self.name, error.code, f"{place.short}: {error.message}") from error
        return EndAnswer.GONE if place.ended else EndAnswer.ENDED

    def _require_known_host(self, machine: Tagged) -> None:
        if machine.moved:
            text = f"it was moved from {machine.host} to a host that the settings do not name: "
            text += f"name that host, or end it there and undefine it on {machine.host}"
            raise ProviderError(self.name, "Moved", text)

    def _note_end_elsewhere(self, machine: Tagged) -> None:
        """Note on the host that a machine was moved from that it has ended."""

    @contextmanager
    def _hold_launch_lock(self, host: str) -> Iterator[None]:
        """Run launches on one host one after the other, because each counts the free room."""
        lock = self._launching[host]
        if not lock.acquire(timeout=seconds_left()):
            # TransientError, because nothing was refused: the same launch can be repeated.
            raise TransientError(self.name, "Busy", f"{host}: another launch takes long")
        try:
            yield
        finally:
            lock.release()


def room(kind: InstanceType, size: tuple[int, int], used: tuple[int, int]) -> Room:
    """How many more machines of a type fit on a host of this size (CPUs, MiB) beside those
    in use.
    """
    (cpus, memory), (used_cpus, used_memory) = size, used
    by_cpus, by_memory = (cpus - used_cpus) // kind.cpus, (memory - used_memory) // kind.memory
    # Negative if the settings give a host fewer resources than its machines use.
    if by_cpus <= by_memory:
        return max(0, by_cpus), f"{used_cpus} of {cpus} cpus are given out"
    return max(0, by_memory), f"{used_memory} of {memory} MiB are given out"
