"""The azure provider keeps the contract, against the emulated resource manager."""

from __future__ import annotations

import pytest
from providers.azure.bed import SIZE, AzureBed

from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.testing.contract import (
    BulkContract,
    CrowdedContract,
    DelayedContract,
    FaultContract,
    LateFailureContract,
    LaunchContract,
    OfferContract,
    ProtectedContract,
    ReservedContract,
    ScarceContract,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture
def bed(bed: AzureBed, monkeypatch: pytest.MonkeyPatch) -> AzureBed:
    def open_reserved(reservation: Reservation) -> object:
        return bed.open(reservations=(reservation,))

    monkeypatch.setattr(bed, "open_reserved", open_reserved, raising=False)
    return bed


class TestAzureLaunches(LaunchContract): ...


class TestAzureScarcity(ScarceContract): ...


class TestAzureFaults(FaultContract):
    asks_for_notices = False


class TestAzureProtection(ProtectedContract): ...


class TestAzureStops(StopContract): ...


class TestAzureStopFaults(StopFaultContract): ...


class TestAzureLateFailures(LateFailureContract): ...


class TestAzureDelays(DelayedContract): ...


class TestAzureOffers(OfferContract): ...


class TestAzureReservations(ReservedContract): ...


class TestAzureCrowd(CrowdedContract): ...


class TestAzureBulk(BulkContract): ...


def test_each_request_of_a_launch_fits_microsofts_models(bed: AzureBed) -> None:
    from slurm_elastic.sandbox.azure import schema

    assert schema.MODELS is not None
    wrong = {"location": "x", "properties": {"vmSizes": 1, "priority": "Sport", "vmId": "7"}}
    assert schema.mistakes(schema.CREATE, wrong) == [
        "/properties/vmSizes: unknown",
        "/properties/priority: 'Sport' is none of Low, Regular, Spot, SpotPlus",
        "/properties/vmId: read-only",
    ]
    provider = bed.open()
    offers = provider.offers(bed.pool)
    assert {(o.instance_type, o.price) for o in offers} == {(SIZE, 0.02), (SIZE, 0.1)}
