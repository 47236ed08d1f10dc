"""Machines on hosts of the site's own, where nobody but us places them: each host is a zone.

A cloud says how it lists, starts and ends them (``HostedProvider``'s abstract methods). A machine's
name on its host is made of the cluster, node and generation, so a launch that is repeated, or
carried out twice, meets its own machines. One that has ended is kept there for a while: it shows
that the launch was there.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.providers.base.hosted_cloud import HostedCloud
from slurm_elastic.providers.base.hosts import Hosts, left
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.offers import typed_offer
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, require, until_refused

log = logging.getLogger(__name__)

KEPT = 3600.0
"""Seconds that an ended machine is kept; counted anew by each daemon."""
REMOVED_AT_ONCE = 5
"""Ended machines that one look removes at most, as that takes a while."""


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
    def ended(self) -> bool:
        """Whether it runs no more, and will not."""
        return self.machine.state is InstanceState.TERMINATED


Kind = TypeVar("Kind", bound=InstanceType)
Room = tuple[int, str]
"""How many more of a type a host carries, and why no more."""


class HostedProvider(ABC, Generic[Kind]):
    """One or more hosts; see protocols.Provider for the contract. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_ours", "_ended"),
        "_launching": "to launch on one host",
    }

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
        self._known = Ours(settings.name, ownership)
        self._hosts = hosts
        self._clock = clock
        self._lock = threading.Lock()
        self._launching = {host: threading.Lock() for host in hosts.names}
        self._ours: dict[str, Tagged] = {}
        self._ended: dict[str, float] = {}

    @abstractmethod
    def _rows(self, host: str) -> Sequence[Tagged]:
        """All machines there that any cluster of ours has made, the ended ones included."""

    @abstractmethod
    def _room(
        self, host: str, types: Mapping[str, Kind], there: Sequence[Tagged]
    ) -> Mapping[str, Room]:
        """By type, the room beside the machines ``there``, which are all of ours."""

    @abstractmethod
    def _run(self, spec: LaunchSpec, node: str, kind: Kind) -> None:
        """Make the machine and start it, or what of that is left to do; one that cannot be started
        is not left behind.
        """

    @abstractmethod
    def _end(self, one: Tagged) -> None:
        """Have it run no more. No error where it does not."""

    @abstractmethod
    def _remove(self, one: Tagged) -> None:
        """Have nothing of it left. No error where nothing is."""

    @abstractmethod
    def _ping(self, host: str) -> None:
        """That it answers."""

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Each type on each host, which is its zone, with the room there. A host that cannot be
        asked is left out; the error is raised where that leaves none.
        """
        markets = [m for m in pool.markets if m is not Market.SPOT]
        hosts = [h for h in self._hosts.names if not pool.zones or h in pool.zones]
        names = pool.instance_types or tuple(self._types)
        types = {n: self._types[n] for n in names if n in self._types}
        if not (markets and hosts and types):
            return ()
        with self._hosts.limited():
            answers = self._hosts.answered(hosts, lambda host: (host, self._rooms(host, types)))
        rooms = dict(answers)
        return tuple(
            typed_offer(self._place, name, kind, host, market, rooms[host][name])
            for name, kind in types.items()
            for host in hosts
            if host in rooms
            for market in markets
        )

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """A machine for each node on the offer's host, a few at a time.

        A refusal ends the launch: the machines started so far are the answer.
        """
        if not spec.nodes:
            return ()
        host, kind = spec.offer.zone, self._types.get(spec.offer.instance_type)
        if kind is None or host not in self._hosts.names:
            text = f"the settings have no {spec.offer.instance_type} on {host}"
            raise ProviderError(self.name, "NoType", text)
        with self._hosts.limited(), self._alone(host):
            return self._launch(spec, host, kind)

    def instances(self) -> Sequence[Instance]:
        """The machines with our marks that run or are about to, on all hosts or not at all."""
        with self._hosts.limited():
            found = [m for rows in self._hosts.everywhere(self._look) for m in rows]
            self._tidy([m for m in found if m.ended])
            return tuple(m.machine for m in found if not m.ended)

    def terminate(self, ids: Sequence[str]) -> None:
        """End them. An id that was never seen with our marks is left alone; where a host cannot
        be asked for one, the others' are ended, and that host's error raised.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return
        with self._hosts.limited():
            unseen = self._unseen(wanted)
            mine = self._seen(wanted)
            results = each(list(mine.values()), self._hosts.in_time(self._end_named), self._threads)
        failed = failures(results)
        if strangers := [i for i in wanted if i not in mine]:
            failed += unseen
            log.warning(
                "not terminated, %s cloud=%s ids=%s",
                "as not all hosts answer" if unseen else "gone or not ours", self.name, strangers,
            )  # fmt: skip
        require(failed)

    def notices(self) -> Sequence[Notice]:
        """None: a host announces no end."""
        return ()

    def check(self) -> None:
        """That each host answers."""
        with self._hosts.limited():
            self._hosts.everywhere(self._ping)

    def _rooms(self, host: str, types: Mapping[str, Kind]) -> Mapping[str, Room]:
        return self._room(host, types, self._rows(host))

    # launching

    def _launch(self, spec: LaunchSpec, host: str, kind: Kind) -> Sequence[Instance]:
        there = self._rows(host)
        mine = [m for m in self._mine(there) if m.machine.generation == spec.generation]
        live = {m.node: m for m in mine if not m.ended}
        gone = {m.node for m in mine if m.ended}
        missing = [n for n in spec.nodes if n not in live and n not in gone]
        name = spec.offer.instance_type
        count, why = self._room(host, {name: kind}, there)[name]
        refusal: ProviderError | None = None
        if count < len(missing):
            refusal = CapacityError(self.name, "NoSlots", f"{host}: {why}")
        # One that was made but not started is of a call that was cut off in between.
        halves = [n for n, m in live.items() if m.half]
        nodes = [*halves, *missing[:count]]

        def run(node: str) -> None:
            self._run(spec, node, kind)

        refused = until_refused(nodes, self._hosts.in_time(run), self._threads)[1]
        refusal = refused or refusal
        standing = [m.machine for m in self._look(host) if not m.ended and m.node in spec.nodes]
        machines = [one for one in standing if one.generation == spec.generation]
        return launched(self.name, spec, machines, refusal)

    # reading and ending

    def _unseen(self, wanted: Sequence[str]) -> Sequence[BaseException]:
        """Look where these ids are, unless they are known; why hosts could not be looked at."""
        if self._seen(wanted).keys() >= set(wanted):
            return ()
        hosts = self._hosts.names
        return failures(each(hosts, self._hosts.in_time(self._look), len(hosts)))

    def _look(self, host: str) -> Sequence[Tagged]:
        return self._mine(self._rows(host))

    def _mine(self, there: Sequence[Tagged]) -> Sequence[Tagged]:
        mine = self._known.among(there, lambda m: m.tags, lambda m: m.short)
        with self._lock:
            self._ours.update({m.short: m for m in mine})
        return mine

    def _seen(self, wanted: Sequence[str]) -> dict[str, Tagged]:
        """The machines of ours among these ids, as they were seen last."""
        with self._lock:
            return {name: self._ours[name] for name in wanted if name in self._ours}

    def _end_named(self, one: Tagged) -> None:
        """A host's words do not always say which machine it is that does not end."""
        try:
            self._end(one)
        except ProviderError as error:
            raise type(error)(self.name, error.code, f"{one.short}: {error.message}") from error

    def _tidy(self, ended: Sequence[Tagged]) -> None:
        """Remove what has been kept long enough; what cannot be removed now stays till later."""
        now = self._clock()
        with self._lock:
            self._ended = {m.short: self._ended.get(m.short, now) for m in ended}
            old = [m for m in ended if now - self._ended[m.short] >= KEPT][:REMOVED_AT_ONCE]
        for one in old:
            try:
                self._remove(one)
            except ProviderError as error:
                log.info("not removed yet cloud=%s id=%s error=%s", self.name, one.short, error)
            else:
                with self._lock:
                    self._ours.pop(one.short, None)

    @contextmanager
    def _alone(self, host: str) -> Iterator[None]:
        """Launches on one host come one after the other, as each counts what room there is."""
        lock = self._launching[host]
        if not lock.acquire(timeout=left()):
            raise TransientError(self.name, "Busy", f"{host}: another launch takes long")
        try:
            yield
        finally:
            lock.release()


def room(kind: InstanceType, size: tuple[int, int], used: tuple[int, int]) -> Room:
    """How many more of a type a host of that size (cpus, MiB) carries beside what is used."""
    (cpus, memory), (used_cpus, used_memory) = size, used
    by_cpus, by_memory = (cpus - used_cpus) // kind.cpus, (memory - used_memory) // kind.memory
    if by_cpus <= by_memory:
        return max(0, by_cpus), f"{used_cpus} of {cpus} cpus are given out"
    return max(0, by_memory), f"{used_memory} of {memory} MiB are given out"
