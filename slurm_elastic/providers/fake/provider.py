"""A cloud in memory, for rehearsals and tests: stock, prices, faults and delays at will.

A ``FakeAccount`` is what would outlive the daemon: several providers (a daemon restarted, another
cluster) may share one. All that goes wrong is asked for; nothing is random, and time is an
argument.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Notice,
    NoticeKind,
    Offer,
    Pool,
)
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.offers import typed_offer
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.fake.settings import FakeCloud


class Call(Struct, frozen=True):
    """One call that reached the cloud: its name and how many nodes or ids it was about."""

    name: str
    size: int = 0


class _Machine(Struct):
    """``owner`` is a cluster's UUID, None of machines that no cluster of ours started; ``taken``
    while nobody has been told that it was taken away.
    """

    instance: Instance
    owner: str | None
    visible_from: float
    taken: bool = False


class FakeAccount:
    """The machines of everybody, the stock and the prices; those ``protected`` cannot be ended.
    Thread-safe through its provider.
    """

    guarded_by: ClassVar[GuardedBy] = {
        # Tests read and set the other attributes while no thread of a provider runs.
        "lock": Guarded("launches"),
    }

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.machines: dict[str, _Machine] = {}
        self.limits: dict[str, int] = {}
        self.prices: dict[tuple[str, str, Market], float] = {}
        self.catalogue: dict[str, float] = {}
        self.notices: dict[str, Notice] = {}
        self.protected: set[str] = set()
        self.launches: dict[tuple[str, str], tuple[str, ...]] = {}
        self._numbers = itertools.count(1)

    def add_foreign(self, instance: Instance, owner: str | None = None) -> None:
        """Have a machine that some other cluster, or no cluster, started."""
        self.machines[instance.id] = _Machine(instance, owner, float("-inf"))

    def alive(self) -> set[str]:
        """The ids of all machines that are not terminated, whoever owns them."""
        return {i for i, m in self.machines.items() if _alive(m)}

    def start(
        self, spec: LaunchSpec, offer: Offer, node: str, owner: str, now: float, visible: float
    ) -> str:
        """Start one machine; its id."""
        number = next(self._numbers)
        instance = Instance(
            id=f"{offer.cloud}-{number:08d}",
            cloud=offer.cloud,
            node=node,
            generation=spec.generation,
            instance_type=offer.instance_type,
            zone=offer.zone,
            market=offer.market,
            price=offer.price,
            state=InstanceState.RUNNING,
            launched=now,
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        )
        self.machines[instance.id] = _Machine(instance, owner, visible)
        return instance.id

    def free(self, one: Offer | Instance, planned: Sequence[Offer] = ()) -> int | None:
        """How many more machines of a kind there are beside those planned; None: any number. Those
        that are stopped take none.
        """
        there = [m.instance for m in self.machines.values() if _runs(m)]
        kinds = [*map(_kind, there), *map(_kind, planned)]
        bounds = [
            count - sum(fnmatchcase(kind, p) for kind in kinds)
            for p, count in self.limits.items()
            if fnmatchcase(_kind(one), p)
        ]
        return max(min(bounds), 0) if bounds else None


class FakeProvider:
    """See protocols.Provider for the contract. ``latency`` and ``visible_after`` are seconds.

    ``alternatives`` as in protocols.Chooser; ``start_limit`` is how many machines it starts yet
    (None: any number); ``tells_free`` whether offers say what the stock has, ``tells_losses``
    whether machines that were taken are listed once more. ``image`` is what fresh machines start
    from.
    """

    def __init__(
        self,
        settings: FakeCloud,
        cluster: Cluster,
        account: FakeAccount | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = settings.name
        self.account = account or FakeAccount()
        self.latency = 0.0
        self.visible_after = 0.0
        self.alternatives = 0
        self.start_limit: int | None = None
        self.tells_free = True
        self.tells_losses = False
        self.image = "image-1"
        self.calls: list[Call] = []
        self._settings = settings
        self._uuid = cluster.uuid or ""
        self._clock = clock
        self._sleep = sleep
        self._faults: list[tuple[str, type[ProviderError]]] = []
        self._answers_to_lose = 0
        self._refusals: dict[str, dict[str, ProviderError]] = {}
        if settings.stock is not None and account is None:
            self.limit("*", settings.stock)

    # steering

    def fail_next(self, error: type[ProviderError], times: int = 1, call: str = "*") -> None:
        """Have the next calls (``launch``, ``offers``, ...; a shell pattern) fail before effect."""
        self._faults += [(call, error)] * times

    def heal(self) -> None:
        """Have nothing fail any more, at once."""
        self._faults.clear()
        self._answers_to_lose = 0
        self.latency = 0.0

    def lose_answer_next(self, times: int = 1) -> None:
        """Have the next launches, stops and starts take effect without an answer."""
        self._answers_to_lose += times

    def limit(self, pattern: str, count: int | None) -> None:
        """Have ``count`` machines in all where ``type/zone/market`` fits; None: no bound."""
        if count is None:
            self.account.limits.pop(pattern, None)
        else:
            self.account.limits[pattern] = count

    def set_price(self, instance_type: str, zone: str, market: Market, price: float) -> None:
        """Set the price of an offer, in $/h."""
        self.account.prices[instance_type, zone, market] = price

    def tell_price(self, instance_type: str, price: float) -> None:
        """Have the cloud's own catalogue tell this price of a type, in $/h."""
        self.account.catalogue[instance_type] = price

    def interrupt(self, instance_id: str, deadline: float) -> None:
        """Warn that a machine will be taken at ``deadline`` (Unix time)."""
        self.account.notices[instance_id] = Notice(
            instance=instance_id,
            kind=NoticeKind.INTERRUPTION,
            seen=self._clock(),
            deadline=deadline,
        )

    def take(self, instance_id: str) -> None:
        """Take a machine away, as a reclaim or a crash does."""
        self._stop(instance_id)
        self.account.machines[instance_id].taken = True

    # the contract

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Prices are the settings', with ``spot_factor`` for spot, unless ``set_price``."""
        with self._called("offers"):
            types = pool.instance_types or tuple(self._settings.types)
            offers = (
                self._offer(name, self._settings.types[name], zone, market)
                for name in types
                if name in self._settings.types
                for zone in self._settings.zones
                if not pool.zones or zone in pool.zones
                for market in pool.markets
            )
            free = self.account.free if self.tells_free else lambda _: None
            return tuple(replace(o, free=free(o)) for o in offers)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """As many as the stock allows; CapacityError where that is none."""
        key = (self._uuid, spec.generation)
        # A machine that was started is not short any more: see the contract on repeated calls.
        spared = (CapacityError, QuotaError) if key in self.account.launches else ()
        with self._called("launch", len(spec.nodes), spared):
            if key not in self.account.launches:
                self.account.launches[key] = self._start(spec)
            self._lose_answer()
            machines = map(self.account.machines.__getitem__, self.account.launches[key])
            alive = [m.instance for m in machines if _alive(m)]
            return launched(self.name, spec, alive) if spec.nodes else ()

    def startable(self) -> int | None:
        """``start_limit``."""
        return self.start_limit

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """The offers of a launch that had too little."""
        return self._refusals.get(generation, {})

    def instances(self) -> Sequence[Instance]:
        """Fresh ones only after ``visible_after`` seconds."""
        with self._called("instances"):
            now = self._clock()
            mine = [m for m in self.account.machines.values() if m.owner == self._uuid]
            shown = [m.instance for m in mine if _alive(m) and m.visible_from <= now]
            taken = [m.instance for m in mine if m.taken and self.tells_losses]
            for machine in mine:
                machine.taken = False
            return (*shown, *taken)

    def terminate(self, ids: Sequence[str]) -> None:
        """At once; all that are not protected."""
        with self._called("terminate", len(ids)):
            kept = [i for i in ids if i in self.account.protected & self.account.alive()]
            for one in ids:
                if one not in kept and self._owns(one):
                    self._stop(one)
            if kept:
                text = f"{', '.join(kept)} may not be terminated"
                raise ProviderError(self.name, "OperationNotPermitted", text)

    def recipe(self, pool: Pool) -> str:
        """By ``image``."""
        with self._called("recipe"):
            return recipe(pool, self.image)

    def stop(self, ids: Sequence[str]) -> None:
        """At once."""
        with self._called("stop", len(ids)):
            for instance_id in ids:
                self._switch(instance_id, InstanceState.STOPPED)
            self._lose_answer()

    def start(self, instance: str) -> None:
        """CapacityError where there is no stock, but for one that runs: that is not short."""
        machine = self.account.machines.get(instance)
        at_work = machine is not None and _runs(machine)
        with self._called("start", 1, (CapacityError, QuotaError) if at_work else ()):
            if machine is None or not self._owns(instance) or not _alive(machine):
                raise InstanceNotFound(self.name, "NotFound", f"there is no {instance}")
            off = machine.instance.state is InstanceState.STOPPED
            if off and self.account.free(machine.instance) == 0:
                raise CapacityError(self.name, "InsufficientCapacity", "no machine to be had")
            if off:
                machine.instance = replace(machine.instance, launched=self._clock())
                self._switch(instance, InstanceState.RUNNING)
            self._lose_answer()

    def notices(self) -> Sequence[Notice]:
        """The notices of ``interrupt``, until the machine is gone."""
        with self._called("notices"):
            return tuple(
                notice
                for instance_id, notice in self.account.notices.items()
                if self._owns(instance_id) and instance_id in self.account.alive()
            )

    def check(self) -> None:
        """Fails only when asked to."""
        with self._called("check"):
            return

    @contextmanager
    def _called(
        self, name: str, size: int = 0, spared: tuple[type[ProviderError], ...] = ()
    ) -> Iterator[None]:
        """The gate of every call: it is recorded, delayed, refused if that was asked for."""
        self.calls.append(Call(name, size))
        if self.latency:
            self._sleep(min(self.latency, self._settings.timeout))
        if self.latency > self._settings.timeout:
            raise TransientError(self.name, "TimedOut", "the cloud did not answer in time")
        with self.account.lock:
            for index, (call, error) in enumerate(self._faults):
                if fnmatchcase(name, call) and not issubclass(error, spared):
                    del self._faults[index]
                    raise error(self.name, f"Fake{error.__name__}", "as it was asked to")
            yield

    def _offer(self, name: str, shape: InstanceType, zone: str, market: Market) -> Offer:
        usual = shape.price * (self._settings.spot_factor if market is Market.SPOT else 1)
        place = (self.name, self._settings.location)
        return replace(
            typed_offer(place, name, shape, zone, market),
            price=self.account.prices.get((name, zone, market), usual),
            reference_price=self.account.catalogue.get(name),
            reference="its catalogue",
        )

    def _start(self, spec: LaunchSpec) -> tuple[str, ...]:
        plan = self._plan(spec)
        if spec.nodes and not plan:
            raise CapacityError(self.name, "InsufficientCapacity", "no machine to be had")
        if self.start_limit is not None:
            self.start_limit = max(self.start_limit - len(plan), 0)
        now = self._clock()
        visible = now + self.visible_after
        return tuple(
            self.account.start(spec, offer, node, self._uuid, now, visible)
            for node, offer in zip(spec.nodes, plan, strict=False)
        )

    def _plan(self, spec: LaunchSpec) -> Sequence[Offer]:
        """An offer for each node, as far as they go."""
        plan: list[Offer] = []
        refused = self._refusals[spec.generation] = {}
        for offer in spec.offers:
            left = len(spec.nodes) - len(plan)
            free = self.account.free(offer, plan)
            plan += [offer] * (left if free is None else min(free, left))
            if spec.alternatives and len(plan) < len(spec.nodes):
                text = f"{free} machines to be had"
                refused[offer.key] = CapacityError(self.name, "InsufficientCapacity", text)
        return plan

    def _lose_answer(self) -> None:
        if self._answers_to_lose:
            self._answers_to_lose -= 1
            raise TransientError(self.name, "ConnectionLost", "the answer was lost")

    def _switch(self, instance_id: str, state: InstanceState) -> None:
        """Spot machines cannot be stopped; what is gone stays so."""
        machine = self.account.machines.get(instance_id)
        if machine is None or not self._owns(instance_id) or not _alive(machine):
            return
        if machine.instance.market is Market.SPOT:
            raise ProviderError(self.name, "UnsupportedOperation", f"{instance_id} is spot")
        machine.instance = replace(machine.instance, state=state)

    def _stop(self, instance_id: str) -> None:
        machine = self.account.machines[instance_id]
        machine.instance = replace(machine.instance, state=InstanceState.TERMINATED)
        self.account.notices.pop(instance_id, None)

    def _owns(self, instance_id: str) -> bool:
        machine = self.account.machines.get(instance_id)
        return machine is not None and machine.owner == self._uuid


def _alive(machine: _Machine) -> bool:
    return machine.instance.state is not InstanceState.TERMINATED


def _runs(machine: _Machine) -> bool:
    return _alive(machine) and machine.instance.state is not InstanceState.STOPPED


def _kind(thing: Offer | Instance) -> str:
    return f"{thing.instance_type}/{thing.zone}/{thing.market}"
