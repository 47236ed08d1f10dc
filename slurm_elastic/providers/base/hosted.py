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
from typing import Any, Generic, Protocol, TypeVar

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Instance, LaunchSpec, Market, Notice, Offer, Pool
from slurm_elastic.providers.base.hosted_cloud import HostedCloud
from slurm_elastic.providers.base.hosts import Hosts, left
from slurm_elastic.providers.base.offers import typed_offer
from slurm_elastic.providers.base.ownership import AMBIGUOUS, Ownership
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

KEPT = 3600.0
"""Seconds that an ended machine is kept; counted anew by each daemon."""
REMOVED_AT_ONCE = 5
"""Ended machines that one look removes at most, as that takes a while."""


class Hosted(Protocol):
    """A machine as its host tells of it. ``half``: it was made and never started."""

    @property
    def short(self) -> str:
        """Our id of it."""

    @property
    def host(self) -> str:
        """The name of its host."""

    @property
    def node(self) -> str:
        """The node that it was made for."""

    @property
    def generation(self) -> str:
        """The launch that it is of."""

    @property
    def half(self) -> bool:
        """Whether a call that was cut off in between made it."""

    @property
    def ended(self) -> bool:
        """Whether it runs no more, and will not."""


Machine = TypeVar("Machine", bound=Hosted)
Kind = TypeVar("Kind", bound=InstanceType)
Room = tuple[int, str]
"""How many more of a type a host carries, and why no more."""


class HostedProvider(ABC, Generic[Machine, Kind]):
    """One or more hosts; see protocols.Provider for the contract. Thread-safe."""

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
        self._ownership = ownership
        self._hosts = hosts
        self._clock = clock
        self._lock = threading.Lock()
        self._launching = {host: threading.Lock() for host in hosts.names}
        self._ours: dict[str, Machine] = {}
        self._ended: dict[str, float] = {}
        self._unclear: frozenset[str] = frozenset()

    @abstractmethod
    def _rows(self, host: str) -> Sequence[Machine]:
        """All machines there that any cluster of ours has made, the ended ones included."""

    @abstractmethod
    def _room(
        self, host: str, types: Mapping[str, Kind], there: Sequence[Machine]
    ) -> Mapping[str, Room]:
        """By type, the room beside the machines ``there``, which are all of ours."""

    @abstractmethod
    def _owner(self, one: Machine) -> str | None:
        """As ``Ownership.owner``."""

    @abstractmethod
    def _instance(self, one: Machine) -> Instance:
        """The machine as all clouds have it."""

    @abstractmethod
    def _run(self, spec: LaunchSpec, node: str, kind: Kind) -> None:
        """Make the machine and start it, or what of that is left to do; one that cannot be started
        is not left behind.
        """

    @abstractmethod
    def _end(self, one: Machine) -> None:
        """Have it run no more. No error where it does not."""

    @abstractmethod
    def _remove(self, one: Machine) -> None:
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
            return tuple(self._instance(m) for m in found if not m.ended)

    def terminate(self, ids: Sequence[str]) -> None:
        """End them. An id that was never seen with our marks is left alone; where a host cannot
        be asked for one, the others' are ended, and that host's error raised.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return
        with self._hosts.limited():
            unseen = self._unseen(wanted)
            mine = [self._ours[i] for i in wanted if i in self._ours]
            results = each(mine, self._hosts.in_time(self._end_named), self._threads)
        failed = [e for r in results if (e := r.exception())]
        if strangers := [i for i in wanted if i not in self._ours]:
            failed += unseen
            log.warning(
                "not terminated, %s cloud=%s ids=%s",
                "as not all hosts answer" if unseen else "gone or not ours", self.name, strangers,
            )  # fmt: skip
        if failed:
            # Calls that must be repeated are told before failures that will not pass.
            raise next((e for e in failed if isinstance(e, TransientError)), failed[0])

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
        mine = [m for m in self._mine(host, there) if m.generation == spec.generation]
        live = {m.node: m for m in mine if not m.ended}
        gone = {m.node for m in mine if m.ended}
        missing = [n for n in spec.nodes if n not in live and n not in gone]
        name = spec.offer.instance_type
        count, why = self._room(host, {name: kind}, there)[name]
        refusal: ProviderError | None = None
        if count < len(missing):
            refusal = CapacityError(self.name, "NoSlots", f"{host}: {why}")
        if live or (count and missing):
            # One that was made but not started is of a call that was cut off in between.
            halves = [n for n, m in live.items() if m.half]
            refused = self._start(spec, kind, [*halves, *missing[:count]])
            refusal = refused or refusal
        started = {
            m.node: m for m in self._look(host) if m.generation == spec.generation and not m.ended
        }
        machines = [started[n] for n in spec.nodes if n in started]
        if not machines:
            raise refusal or CapacityError(
                self.name, "MachinesGone", f"{len(gone)} machines of this launch have ended"
            )
        if refusal is not None:
            log.info("launch is partial generation=%s error=%s", spec.generation, refusal)
        return tuple(self._instance(m) for m in machines)

    def _start(self, spec: LaunchSpec, kind: Kind, nodes: Sequence[str]) -> ProviderError | None:
        """Machines for these nodes; the first refusal. In doubt it raises."""
        stop = threading.Event()

        def start(item: tuple[int, str]) -> None:
            place, node = item
            if stop.is_set() and place >= self._threads:
                return
            try:
                self._run(spec, node, kind)
            except BaseException:
                stop.set()
                raise

        results = each(list(enumerate(nodes)), self._hosts.in_time(start), self._threads)
        failed = [e for r in results if (e := r.exception())]
        for error in failed:
            if not isinstance(error, ProviderError) or isinstance(error, TransientError):
                raise error
        return next((e for e in failed if isinstance(e, ProviderError)), None)

    # reading and ending

    def _unseen(self, wanted: Sequence[str]) -> Sequence[BaseException]:
        """Look where these ids are, unless they are known; why hosts could not be looked at."""
        if self._ours.keys() >= set(wanted):
            return ()
        hosts = self._hosts.names
        looks = each(hosts, self._hosts.in_time(self._look), len(hosts))
        return [e for look in looks if (e := look.exception())]

    def _look(self, host: str) -> Sequence[Machine]:
        return self._mine(host, self._rows(host))

    def _mine(self, host: str, there: Sequence[Machine]) -> Sequence[Machine]:
        owned = [(self._owner(m), m) for m in there]
        unclear = frozenset(m.short for whose, m in owned if whose == AMBIGUOUS)
        if unclear - self._unclear:
            log.error(
                "machines left alone, any of these clouds may have started them"
                " host=%s clouds=%s ids=%s",
                host, ",".join(sorted(self._ownership.clouds)), sorted(unclear),
            )  # fmt: skip
        self._unclear |= unclear
        mine = [m for whose, m in owned if whose == self.name]
        self._ours.update({m.short: m for m in mine})
        return mine

    def _end_named(self, one: Machine) -> None:
        """A host's words do not always say which machine it is that does not end."""
        try:
            self._end(one)
        except ProviderError as error:
            raise type(error)(self.name, error.code, f"{one.short}: {error.message}") from error

    def _tidy(self, ended: Sequence[Machine]) -> None:
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
