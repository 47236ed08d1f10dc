"""A cloud in memory for rehearsals and tests, with stock, prices, faults and delays as requested.

A ``FakeAccount`` holds what would outlive the daemon. Several providers (a restarted daemon,
another cluster) may share one. Nothing fails unless it was requested, nothing is random, and time
is an argument.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Notice,
    NoticeKind,
    Offer,
    Pool,
)
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.offers import paid_offer, reserved_offers, typed_offer
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.fake.settings import FakeCloud


class FakeCall(Struct, frozen=True):
    """One call that reached the cloud: its name, and the number of its nodes or ids."""

    name: str
    size: int = 0


class _Machine(Struct):
    """A machine of any owner.

    ``owner``: the UUID of its cluster, or None if no cluster of ours started it. ``taken``: the
    machine was taken away, and no listing has reported that yet.
    """

    instance: Instance
    owner: str | None
    visible_from: float
    taken: bool = False


class FakeAccount:
    """All machines, the stock and the prices. Machines in ``protected`` cannot be ended.
    Thread-safe through its provider. ``first_number``: of the first machine's id.
    """

    guarded_by: ClassVar[GuardedBy] = {
        # Tests read and set the other attributes while no thread of a provider runs.
        "lock": Guarded("launches"),
    }

    def __init__(self, first_number: int = 1) -> None:
        self.lock = threading.RLock()
        self.machines: dict[str, _Machine] = {}
        self.limits: dict[str, int] = {}
        self.prices: dict[tuple[str, str, Market], float] = {}
        self.catalogue: dict[str, float] = {}
        self.notices: dict[str, Notice] = {}
        self.protected: set[str] = set()
        self.image = "image-1"
        self.launches: dict[tuple[str, str], tuple[str, ...]] = {}
        self._numbers = itertools.count(first_number)

    def add_foreign(self, instance: Instance, owner: str | None = None) -> None:
        """Add a machine that another cluster, or no cluster, started."""
        self.machines[instance.id] = _Machine(instance, owner, float("-inf"))

    def alive(self) -> set[str]:
        """The ids of all machines of any owner that are not terminated."""
        return {i for i, m in self.machines.items() if _alive(m)}

    def start(
        self, spec: LaunchSpec, offer: Offer, node: str, owner: str, now: float, visible_from: float
    ) -> str:
        """Start one machine and return its id."""
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
            image=self.image,
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            reservation=offer.held.name if offer.held else "",
        )
        self.machines[instance.id] = _Machine(instance, owner, visible_from)
        return instance.id

    def free(self, thing: Offer | Instance, planned: Sequence[Offer] = ()) -> int | None:
        """How many more machines of a kind are in stock beside the planned ones; None: no limit.
        Stopped machines do not count.
        """
        running = [m.instance for m in self.machines.values() if _runs(m)]
        kinds = [*map(_kind, running), *map(_kind, planned)]
        bounds = [
            count - sum(fnmatchcase(kind, pattern) for kind in kinds)
            for pattern, count in self.limits.items()
            if fnmatchcase(_kind(thing), pattern)
        ]
        return max(min(bounds), 0) if bounds else None


class FakeProvider:
    """A provider of machines in memory. The contract is in protocols.Provider. ``latency`` and
    ``visible_after`` are seconds.

    ``alternatives``: see protocols.Chooser. ``start_limit``: how many more machines it starts
    (None: any number). ``tells_free``: whether offers show the stock. ``tells_losses``: whether
    machines that were taken are listed once more. ``image``: the image of fresh machines.
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
        # The account of a restarted daemon is a new one. The ledger takes an id only once, so the
        # numbers continue at the time of the start.
        self.account = account or FakeAccount(int(clock()))
        self.latency = 0.0
        self.visible_after = 0.0
        self.alternatives = 0
        self.start_limit: int | None = None
        self.tells_free = True
        self.tells_losses = False
        self.calls: list[FakeCall] = []
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
        """Let the next calls (``launch``, ``offers``, ...; a shell pattern) fail before they take
        effect.
        """
        self._faults += [(call, error)] * times

    def heal(self) -> None:
        """Cancel all requested faults and delays."""
        self._faults.clear()
        self._answers_to_lose = 0
        self.latency = 0.0

    def lose_answer_next(self, times: int = 1) -> None:
        """Let the next launches, stops and starts take effect without an answer."""
        self._answers_to_lose += times

    def limit(self, pattern: str, count: int | None) -> None:
        """Limit the machines whose ``type/zone/market`` matches the pattern to ``count``; None: no
        limit.
        """
        if count is None:
            self.account.limits.pop(pattern, None)
        else:
            self.account.limits[pattern] = count

    def set_price(self, instance_type: str, zone: str, market: Market, price: float) -> None:
        """Set the price of an offer ($/h)."""
        self.account.prices[instance_type, zone, market] = price

    def tell_price(self, instance_type: str, price: float) -> None:
        """Set the price of a type in the cloud's own catalogue ($/h)."""
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
        """The offers at the settings' prices, times ``spot_factor`` for spot, unless ``set_price``
        was called.
        """
        with self._called("offers"):
            types = pool.instance_types or tuple(self._settings.types)
            zones = [z for z in self._settings.zones if not pool.zones or z in pool.zones]
            is_public = self._settings.location is Location.PUBLIC
            markets = [m for m in pool.markets if m is not Market.RESERVED or not is_public]
            sold = (
                paid_offer(
                    self._offer(name, self._settings.types[name], zone, market),
                    self._settings,
                    pool,
                )
                for name in types
                if name in self._settings.types
                for zone in zones
                for market in markets
            )
            reserved = reserved_offers(self._settings, pool, zones) if is_public else ()
            free = self.account.free if self.tells_free else lambda _: None
            return tuple(replace(o, free=free(o)) for o in (*reserved, *sold))

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Start as many machines as the stock allows. CapacityError if the stock is empty."""
        key = (self._uuid, spec.generation)
        # A repeated call must not fail for a lack of machines that the first one started (see the
        # contract).
        exempt = (CapacityError, QuotaError) if key in self.account.launches else ()
        with self._called("launch", len(spec.nodes), exempt):
            if key not in self.account.launches:
                self.account.launches[key] = self._start(spec)
            self._lose_answer()
            machines = map(self.account.machines.__getitem__, self.account.launches[key])
            alive = [m.instance for m in machines if _alive(m)]
            return launched(self.name, spec, alive) if spec.nodes else ()

    def startable(self) -> int | None:
        """Return ``start_limit``, which the test has set."""
        return self.start_limit

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """The offers of a launch that had too few machines, each with its error."""
        return self._refusals.get(generation, {})

    def instances(self) -> Sequence[Instance]:
        """The cluster's machines. Fresh ones are listed only after ``visible_after`` seconds."""
        with self._called("instances"):
            now = self._clock()
            own_machines = [m for m in self.account.machines.values() if m.owner == self._uuid]
            visible = [m.instance for m in own_machines if _alive(m) and m.visible_from <= now]
            lost = [m.instance for m in own_machines if m.taken and self.tells_losses]
            for machine in own_machines:
                machine.taken = False
            return (*visible, *lost)

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """End the machines at once, except protected ones."""
        with self._called("terminate", len(ids)):
            protected = [i for i in ids if i in self.account.protected & self.account.alive()]
            answers = {i: self._answer_to_end(i) for i in ids}
            for machine_id, answer in answers.items():
                if machine_id not in protected and answer is EndAnswer.ENDED:
                    self._stop(machine_id)
            if protected:
                text = f"{', '.join(protected)} may not be terminated"
                raise ProviderError(self.name, "OperationNotPermitted", text)
            return answers

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """The machines that have ended, or were never there, however they are listed."""
        with self._called("gone"):
            return [i for i in ids if self._answer_to_end(i) is EndAnswer.GONE]

    def _answer_to_end(self, machine_id: str) -> EndAnswer:
        machine = self.account.machines.get(machine_id)
        if machine is None or not _alive(machine):
            return EndAnswer.GONE
        return EndAnswer.ENDED if self._owns(machine_id) else EndAnswer.NOT_OURS

    @property
    def image(self) -> str:
        """The image of fresh machines of all pools."""
        return self.account.image

    @image.setter
    def image(self, image: str) -> None:
        self.account.image = image

    def image_for(self, pool: Pool) -> str:  # noqa: ARG002 - all pools have the same
        """The image that a new machine would start from."""
        return self.image

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine, which depends on ``image``."""
        with self._called("recipe"):
            return recipe(pool, self.image)

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop the machines at once."""
        with self._called("stop", len(ids)):
            left_alone = [i for i in ids if not self._switch(i, InstanceState.STOPPED)]
            self._lose_answer()
            return left_alone

    def start(self, instance: str) -> None:
        """Start a stopped machine. CapacityError if the stock is empty, unless the machine runs
        already.
        """
        machine = self.account.machines.get(instance)
        is_running = machine is not None and _runs(machine)
        with self._called("start", 1, (CapacityError, QuotaError) if is_running else ()):
            if machine is None or not self._owns(instance) or not _alive(machine):
                raise InstanceNotFound(self.name, "NotFound", f"there is no {instance}")
            is_stopped = machine.instance.state is InstanceState.STOPPED
            if is_stopped and self.account.free(machine.instance) == 0:
                raise CapacityError(self.name, "InsufficientCapacity", "no machine available")
            if is_stopped:
                machine.instance = replace(machine.instance, launched=self._clock())
                self._switch(instance, InstanceState.RUNNING)
            self._lose_answer()

    def notices(self) -> Sequence[Notice]:
        """The notices of ``interrupt``, until their machine is gone."""
        with self._called("notices"):
            return tuple(
                notice
                for instance_id, notice in self.account.notices.items()
                if self._owns(instance_id) and instance_id in self.account.alive()
            )

    def check(self) -> None:
        """Fails only if that was requested."""
        with self._called("check"):
            return

    @contextmanager
    def _called(
        self, name: str, size: int = 0, exempt: tuple[type[ProviderError], ...] = ()
    ) -> Iterator[None]:
        """Wrap a call: record and delay it, and let it fail if that was requested. ``exempt``:
        errors that this call cannot raise.
        """
        self.calls.append(FakeCall(name, size))
        if self.latency:
            self._sleep(min(self.latency, self._settings.api_timeout))
        if self.latency > self._settings.api_timeout:
            raise TransientError(self.name, "TimedOut", "the cloud did not answer in time")
        with self.account.lock:
            for index, (call, error) in enumerate(self._faults):
                if fnmatchcase(name, call) and not issubclass(error, exempt):
                    # Each requested fault is used once.
                    del self._faults[index]
                    raise error(self.name, f"Fake{error.__name__}", "as it was asked to")
            yield

    def _offer(self, name: str, shape: InstanceType, zone: str, market: Market) -> Offer:
        usual_price = shape.price * (self._settings.spot_factor if market is Market.SPOT else 1)
        place = (self.name, self._settings.location)
        return replace(
            typed_offer(place, name, shape, zone, market),
            price=self.account.prices.get((name, zone, market), usual_price),
            reference_price=self.account.catalogue.get(name),
            reference="its catalogue",
        )

    def _start(self, spec: LaunchSpec) -> tuple[str, ...]:
        plan = self._plan(spec)
        if spec.nodes and not plan:
            raise CapacityError(self.name, "InsufficientCapacity", "no machine available")
        if self.start_limit is not None:
            self.start_limit = max(self.start_limit - len(plan), 0)
        now = self._clock()
        visible_from = now + self.visible_after
        return tuple(
            self.account.start(spec, offer, node, self._uuid, now, visible_from)
            for node, offer in zip(spec.nodes, plan, strict=False)
        )

    def _plan(self, spec: LaunchSpec) -> Sequence[Offer]:
        """An offer for each node, as far as the stock goes."""
        plan: list[Offer] = []
        refused = self._refusals[spec.generation] = {}
        for offer in spec.offers:
            missing = len(spec.nodes) - len(plan)
            free = self.account.free(offer, plan)
            plan += [offer] * (missing if free is None else min(free, missing))
            if spec.alternatives and len(plan) < len(spec.nodes):
                text = f"{free} machines available"
                refused[offer.key] = CapacityError(self.name, "InsufficientCapacity", text)
        return plan

    def _lose_answer(self) -> None:
        if self._answers_to_lose:
            self._answers_to_lose -= 1
            raise TransientError(self.name, "ConnectionLost", "the answer was lost")

    def _switch(self, instance_id: str, state: InstanceState) -> bool:
        """Change a machine's state. Spot machines cannot be stopped; ended machines stay ended.
        Returns False if the machine is gone or not ours.
        """
        machine = self.account.machines.get(instance_id)
        if machine is None or not self._owns(instance_id) or not _alive(machine):
            return False
        if machine.instance.market is Market.SPOT:
            raise ProviderError(self.name, "UnsupportedOperation", f"{instance_id} is spot")
        machine.instance = replace(machine.instance, state=state)
        return True

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
