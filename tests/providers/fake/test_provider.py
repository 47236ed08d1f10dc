"""The cloud in memory keeps the contract, and does what it is told."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_elastic.base.errors import CapacityError, ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import Instance, InstanceState, Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.fake.provider import FakeAccount, FakeCall, FakeProvider
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.testing.contract import (
    UUID,
    BulkContract,
    DelayedContract,
    FaultContract,
    LateFailureContract,
    LaunchContract,
    OfferContract,
    ProtectedContract,
    ReservedContract,
    ScarceContract,
    first_offer,
    spec_for,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

POOL = Pool(
    name="p",
    cloud="rehearsal",
    nodes=tuple(f"p{n}" for n in range(1, 1201)),
    cpus=2,
    real_memory=3000,
    instance_types=("small",),
    markets=(Market.SPOT, Market.ON_DEMAND),
)


def settings(**more: object) -> FakeCloud:
    return FakeCloud(
        name="rehearsal",
        location=Location.PUBLIC,
        types={"small": InstanceType(cpus=2, memory=4096, price=0.1)},
        **more,
    )


class FakeBed:
    pool = POOL

    def __init__(self) -> None:
        self.account = FakeAccount()
        self.opened: list[FakeProvider] = []
        self.ahead = 0.0
        self.hidden = 0.0

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        provider = FakeProvider(
            settings(api_timeout=timeout, **more),
            Cluster(name="c", uuid=uuid),
            self.account,
            clock=lambda: time.time() + self.ahead,
        )
        provider.visible_after = self.hidden
        self.opened.append(provider)
        return provider

    def open_reserved(self, reservation: Reservation) -> Provider:
        return self.open(reservations=(reservation,))

    def alive(self) -> set[str]:
        return self.account.alive()

    def add_foreign(self) -> set[str]:
        self.account.add_foreign(
            Instance(
                id="pet", cloud="rehearsal", node="", generation="", instance_type="small",
                zone="zone-1", market=Market.ON_DEMAND, price=0.1, state=InstanceState.RUNNING,
                launched=0.0,
            )
        )  # fmt: skip
        return {"pet"}

    def limit(self, count: int) -> None:
        self.account.limits["*"] = count

    def fail(self, error: type[ProviderError]) -> None:
        for provider in self.opened:
            provider.fail_next(error, times=100)

    def heal(self) -> None:
        for provider in self.opened:
            provider.heal()

    def lose_answers(self) -> None:
        for provider in self.opened:
            provider.lose_answer_next(100)

    def fall_silent(self) -> None:
        for provider in self.opened:
            provider.latency = 1000.0

    def fail_late(self, node: str) -> Callable[[], None]:
        def fail() -> None:
            for machine in self.opened[0].instances():
                if machine.node == node:
                    self.opened[0].take(machine.id)

        return fail

    def protect(self, machine: str) -> None:
        self.account.protected.add(machine)

    def unprotect(self, machine: str) -> None:
        self.account.protected.discard(machine)

    def hide_fresh(self, seconds: float) -> None:
        self.hidden = seconds

    def wait(self, seconds: float) -> None:
        self.ahead += seconds


@pytest.fixture
def bed() -> FakeBed:
    return FakeBed()


class TestFakeLaunches(LaunchContract): ...


class TestFakeScarcity(ScarceContract): ...


class TestFakeOffers(OfferContract): ...


class TestFakeReservations(ReservedContract): ...


class TestFakeFaults(FaultContract): ...


class TestFakeStops(StopContract): ...


class TestFakeStopFaults(StopFaultContract): ...


class TestFakeLateFailures(LateFailureContract): ...


class TestFakeDelays(DelayedContract): ...


class TestFakeProtection(ProtectedContract): ...


class TestFakeBulk(BulkContract): ...


def test_it_is_opened_from_its_settings() -> None:
    provider = open_provider(settings(stock=1), Cluster(name="c", uuid=UUID))
    bed = FakeBed()
    assert isinstance(provider, FakeProvider)
    assert len(provider.launch(spec_for(bed, provider, 3))) == 1
    with pytest.raises(CapacityError):
        provider.launch(spec_for(bed, provider, 1, generation="g2"))


def test_a_fault_strikes_only_the_calls_it_is_for(bed: FakeBed) -> None:
    provider = bed.open()
    provider.fail_next(CapacityError, call="launch")
    offer = first_offer(bed, provider)
    assert offer.price == pytest.approx(0.03)
    spec = spec_for(bed, provider, 2)
    with pytest.raises(CapacityError):
        provider.launch(spec)
    assert len(provider.launch(spec)) == 2
    assert [c for c in provider.calls if c.name == "launch"] == [FakeCall("launch", 2)] * 2


def test_stock_is_by_offer_and_prices_can_be_set(bed: FakeBed) -> None:
    provider = bed.open()
    provider.limit("small/zone-1/spot", 3)
    provider.set_price("small", "zone-1", Market.SPOT, 0.5)
    spot, on_demand = provider.offers(POOL)
    assert (spot.market, spot.price, spot.free) == (Market.SPOT, 0.5, 3)
    assert (on_demand.market, on_demand.price, on_demand.free) == (Market.ON_DEMAND, 0.1, None)
    provider.limit("small/zone-1/spot", None)
    assert provider.offers(POOL)[0].free is None


def test_an_interruption_is_noticed_until_the_machine_is_gone(bed: FakeBed) -> None:
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    provider.interrupt(machine.id, deadline=123.0)
    assert [(n.instance, n.deadline) for n in provider.notices()] == [(machine.id, 123.0)]
    provider.take(machine.id)
    assert list(provider.notices()) == []
    assert list(provider.instances()) == []


def test_a_daemon_that_starts_again_gives_no_id_twice() -> None:
    """Without an account that outlives it, as the daemon opens this cloud."""
    ids = []
    for at in (1000.0, 1060.0):
        bed = FakeBed()
        cluster = Cluster(name="c", uuid=UUID)
        provider = FakeProvider(settings(), cluster, clock=lambda at=at: at)
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        ids.append(machine.id)
    assert ids[0] != ids[1]
