"""Containers on Docker engines (API 1.41 and later), by the docker SDK.

A container's name is made of the cluster, node and generation, and an engine has a name only once:
a launch that is repeated, or carried out twice, meets its own containers. A machine that is ended
is killed and its container kept for a while: it shows that the launch was there, and its log why
it went.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from slurm_elastic.config import Cluster
from slurm_elastic.errors import (
    CapacityError,
    InstanceNotFound,
    ProviderError,
    TransientError,
)
from slurm_elastic.model import Finding, Instance, LaunchSpec, Market, Notice, Offer, Pool
from slurm_elastic.providers.base.ownership import AMBIGUOUS, Ownership, ownership_of
from slurm_elastic.providers.base.parallel import each
from slurm_elastic.providers.docker import convert, preflight, requests
from slurm_elastic.providers.docker.client import Client, left
from slurm_elastic.providers.docker.convert import Container
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.errors import NAME_TAKEN, NOT_RUNNING
from slurm_elastic.providers.docker.settings import DockerCloud, DockerType

log = logging.getLogger(__name__)

KEPT = 3600.0
"""Seconds that an ended container is kept; counted anew by each daemon."""
LISTED_LATE = 10.0
"""Seconds for which a list may show as running what was killed."""
REMOVED_AT_ONCE = 5
"""Ended containers that one look removes at most, as that takes a while."""


class DockerProvider:
    """One or more engines; see protocols.Provider for the contract. Thread-safe."""

    def __init__(
        self,
        settings: DockerCloud,
        cluster: Cluster,
        ownership: Ownership | None = None,
        head: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._ownership = ownership or ownership_of(settings, cluster, None)
        self._head = head
        self._clock = clock
        self._engines = Engines(settings)
        self._lock = threading.Lock()
        self._launching = {host: threading.Lock() for host in settings.hosts}
        self._ours: dict[str, Container] = {}
        self._ended: dict[str, float] = {}
        self._killed: dict[str, float] = {}
        self._unclear: frozenset[str] = frozenset()

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Each type on each host, which is its zone, with the room there. A host that cannot be
        asked is left out; the error is raised where that leaves none.
        """
        markets = [m for m in pool.markets if m is not Market.SPOT]
        hosts = [h for h in self._settings.hosts if not pool.zones or h in pool.zones]
        names = pool.instance_types or tuple(self._settings.types)
        types = {n: self._settings.types[n] for n in names if n in self._settings.types}
        if not (markets and hosts and types):
            return ()
        with self._engines.limited():
            answers = self._engines.answered(hosts, lambda host: (host, self._rooms(host, types)))
        rooms = dict(answers)
        return tuple(
            self._offer(name, kind, host, market, rooms[host][name])
            for name, kind in types.items()
            for host in hosts
            if host in rooms
            for market in markets
        )

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """A container for each node on the offer's host, a few at a time.

        A refusal ends the launch: the machines started so far are the answer.
        """
        if not spec.nodes:
            return ()
        host, kind = spec.offer.zone, self._settings.types.get(spec.offer.instance_type)
        if kind is None or host not in self._settings.hosts:
            text = f"the settings have no {spec.offer.instance_type} on {host}"
            raise ProviderError(self.name, "NoType", text)
        with self._engines.limited(), self._alone(host):
            return self._launch(spec, host, kind)

    def instances(self) -> Sequence[Instance]:
        """The containers with our labels that run or are about to, on all hosts or not at all."""
        with self._engines.limited():
            found = [c for rows in self._engines.everywhere(self._look) for c in rows]
            self._tidy([c for c in found if c.ended])
        return tuple(convert.instance(c, self._settings) for c in found if not c.ended)

    def terminate(self, ids: Sequence[str]) -> None:
        """Kill them. An id that was never seen with our labels is left alone; where a host cannot
        be asked for one, the others' are killed, and that host's error raised.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return
        with self._engines.limited():
            unseen = self._unseen(wanted)
            mine = [self._ours[i] for i in wanted if i in self._ours]
            results = each(mine, self._engines.in_time(self._end), self._settings.threads)
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
        """None: an engine announces no end."""
        return ()

    def check(self) -> None:
        """That each engine answers."""
        with self._engines.limited():
            self._engines.everywhere(lambda host: self._engines.call(host, _version))

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:  # noqa: ARG002 - all are alike
        """Version, image and network of each host."""
        return preflight.examine(self._settings, self._engines)

    # room

    def _rooms(self, host: str, types: Mapping[str, DockerType]) -> Mapping[str, tuple[int, str]]:
        there = self._rows(host)
        cpus, memory = self._size(host)
        return {name: convert.room(kind, cpus, memory, there) for name, kind in types.items()}

    def _size(self, host: str) -> tuple[int, int]:
        """Cpus and MiB that containers may have there."""
        own = self._settings.hosts[host]
        if own.cpus is not None and own.memory is not None:
            return own.cpus, own.memory
        whole = self._engines.call(host, lambda client: client.info())
        return own.cpus or int(whole["NCPU"]), own.memory or int(whole["MemTotal"]) >> 20

    def _offer(
        self, name: str, kind: DockerType, host: str, market: Market, room: tuple[int, str]
    ) -> Offer:
        return Offer(
            cloud=self.name,
            location=self._settings.location,
            instance_type=name,
            zone=host,
            market=market,
            price=kind.price,
            cpus=kind.cpus,
            memory=kind.memory,
            on_demand_price=kind.price,
            free=room[0],
            free_reason=room[1],
        )

    # launching

    def _launch(self, spec: LaunchSpec, host: str, kind: DockerType) -> Sequence[Instance]:
        there = self._rows(host)
        mine = [c for c in self._mine(host, there) if c.generation == spec.generation]
        live = {c.node: c for c in mine if not c.ended}
        gone = {c.node for c in mine if c.ended}
        missing = [n for n in spec.nodes if n not in live and n not in gone]
        count, why = convert.room(kind, *self._size(host), there)
        refusal: ProviderError | None = None
        if count < len(missing):
            refusal = CapacityError(self.name, "NoSlots", f"{host}: {why}")
        if live or (count and missing):
            # One that was made but not started is of a call that was cut off in between.
            halves = [n for n, c in live.items() if c.state == convert.CREATED]
            refused = self._start(spec, host, kind, [*halves, *missing[:count]])
            refusal = refused or refusal
        started = {
            c.node: c
            for c in self._mine(host, self._rows(host))
            if c.generation == spec.generation and not c.ended
        }
        machines = [started[n] for n in spec.nodes if n in started]
        if not machines:
            raise refusal or CapacityError(
                self.name, "MachinesGone", f"{len(gone)} containers of this launch have ended"
            )
        if refusal is not None:
            log.info("launch is partial generation=%s error=%s", spec.generation, refusal)
        return tuple(convert.instance(c, self._settings) for c in machines)

    def _start(
        self, spec: LaunchSpec, host: str, kind: DockerType, nodes: Sequence[str]
    ) -> ProviderError | None:
        """Containers for these nodes; the first refusal. In doubt it raises."""
        stop, threads = threading.Event(), self._settings.threads

        def start(item: tuple[int, str]) -> None:
            place, node = item
            if stop.is_set() and place >= threads:
                return
            machine = requests.Machine(
                settings=self._settings,
                cluster=self._cluster,
                spec=spec,
                node=node,
                kind=kind,
                head=self._head,
            )
            try:
                self._run(host, machine)
            except BaseException:
                stop.set()
                raise

        results = each(list(enumerate(nodes)), self._engines.in_time(start), threads)
        failed = [e for r in results if (e := r.exception())]
        for error in failed:
            if not isinstance(error, ProviderError) or isinstance(error, TransientError):
                raise error
        return next((e for e in failed if isinstance(e, ProviderError)), None)

    def _run(self, host: str, machine: requests.Machine) -> None:
        """Make a container and start it; one that cannot be started is not left behind."""
        number = self._make(host, machine)
        try:
            self._engines.call(host, lambda client: client.start(number))
        except TransientError:
            raise
        except ProviderError:
            self._remove(host, number)
            raise

    def _make(self, host: str, machine: requests.Machine) -> str:
        """Its id; where there is one of that name, that one's, if it is this very machine."""
        try:
            made = self._engines.call(host, lambda client: _created(client, machine))
        except ProviderError as error:
            if error.code != NAME_TAKEN:
                raise
            there = self._engines.call(host, lambda client: client.inspect_container(machine.name))
            labels = there["Config"].get("Labels") or {}
            same = (requests.CLUSTER, requests.GENERATION, requests.NODE)
            if any(labels.get(key) != machine.labels[key] for key in same):
                raise
            return str(there["Id"])
        return str(made["Id"])

    # reading and ending

    def _unseen(self, wanted: Sequence[str]) -> Sequence[BaseException]:
        """Look where these ids are, unless they are known; why hosts could not be looked at."""
        if self._ours.keys() >= set(wanted):
            return ()
        hosts = tuple(self._settings.hosts)
        looks = each(hosts, self._engines.in_time(self._look), len(hosts))
        return [e for look in looks if (e := look.exception())]

    def _look(self, host: str) -> Sequence[Container]:
        return self._mine(host, self._rows(host))

    def _rows(self, host: str) -> Sequence[Container]:
        """All containers with a cluster's label, ours or not, the ended ones included."""
        listed = self._engines.call(host, lambda client: convert.containers(_listed(client), host))
        since = self._clock() - LISTED_LATE
        with self._lock:
            self._killed = {number: when for number, when in self._killed.items() if when > since}
            return convert.without(self._killed, listed)

    def _mine(self, host: str, there: Sequence[Container]) -> Sequence[Container]:
        owned = [(convert.owner(self._ownership, c.labels), c) for c in there]
        unclear = frozenset(c.short for whose, c in owned if whose == AMBIGUOUS)
        if unclear - self._unclear:
            log.error(
                "containers left alone, any of these clouds may have started them"
                " host=%s clouds=%s ids=%s",
                host, ",".join(sorted(self._ownership.clouds)), sorted(unclear),
            )  # fmt: skip
        self._unclear |= unclear
        mine = [c for whose, c in owned if whose == self.name]
        self._ours.update({c.short: c for c in mine})
        return mine

    def _end(self, one: Container) -> None:
        try:
            self._engines.call(one.host, lambda client: client.kill(one.id))
            with self._lock:
                self._killed[one.id] = self._clock()
        except InstanceNotFound:
            log.info("already gone cloud=%s id=%s", self.name, one.short)
        except ProviderError as error:
            if error.code != NOT_RUNNING:
                raise
            self._end_idle(one)

    def _end_idle(self, one: Container) -> None:
        """It has ended already, or was made and never started: then nothing but its removal keeps
        it from being started.
        """
        try:
            there = self._engines.call(one.host, lambda client: client.inspect_container(one.id))
        except InstanceNotFound:
            return
        if there["State"]["Status"] == convert.CREATED:
            self._remove(one.host, one.id)

    def _remove(self, host: str, number: str) -> None:
        try:
            self._engines.call(
                host, lambda client: client.remove_container(number, force=True, v=True)
            )
        except InstanceNotFound:
            log.debug("already removed cloud=%s id=%s", self.name, number)

    def _tidy(self, ended: Sequence[Container]) -> None:
        """Remove what has been kept long enough; what cannot be removed now stays till later."""
        now = self._clock()
        with self._lock:
            self._ended = {c.short: self._ended.get(c.short, now) for c in ended}
            old = [c for c in ended if now - self._ended[c.short] >= KEPT][:REMOVED_AT_ONCE]
        for one in old:
            try:
                self._remove(one.host, one.id)
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


def _version(client: Client) -> object:
    return client.version()


def _listed(client: Client) -> object:
    return client.containers(all=True, filters={"label": requests.CLUSTER})


def _created(client: Client, machine: requests.Machine) -> Mapping[str, Any]:
    settings = machine.settings
    endpoint = client.create_endpoint_config(aliases=[machine.node])
    answer: Mapping[str, Any] = client.create_container(
        settings.image,
        command=list(settings.command) or None,
        hostname=machine.node,
        name=machine.name,
        labels=machine.labels,
        environment=machine.environment,
        host_config=client.create_host_config(**machine.limits),
        networking_config={"EndpointsConfig": {settings.network: endpoint}},
    )
    return answer
