"""The gcp provider keeps the contract, against the emulated Compute Engine."""

from __future__ import annotations

import pytest

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
    ZonedContract,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

pytestmark = pytest.mark.usefixtures("guarded")


class TestGoogleLaunches(LaunchContract): ...


class TestGoogleScarcity(ScarceContract): ...


class TestGoogleFaults(FaultContract): ...


class TestGoogleProtection(ProtectedContract): ...


class TestGoogleDelays(DelayedContract): ...


class TestGoogleLateFailures(LateFailureContract): ...


class TestGoogleOffers(OfferContract): ...


class TestGoogleReservations(ReservedContract): ...


class TestGoogleCrowd(CrowdedContract): ...


class TestGoogleZones(ZonedContract): ...


class TestGoogleBulk(BulkContract): ...


class TestGoogleStops(StopContract): ...


class TestGoogleStopFaults(StopFaultContract): ...
