"""The opennebula provider keeps the contract, against the emulated front end."""

from __future__ import annotations

from pathlib import Path

import pytest
from providers.opennebula.bed import OneBed

from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.testing.contract import (
    BulkContract,
    DelayedContract,
    FaultContract,
    LateFailureContract,
    LaunchContract,
    ScarceContract,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture
def bed(control: OneControl, tmp_path: Path) -> OneBed:
    return OneBed(control, tmp_path)


class TestOneLaunches(LaunchContract): ...


class TestOneScarcity(ScarceContract): ...


class TestOneFaults(FaultContract):
    asks_for_notices = False


class TestOneStops(StopContract): ...


class TestOneStopFaults(StopFaultContract): ...


class TestOneLateFailures(LateFailureContract): ...


class TestOneDelays(DelayedContract): ...


@pytest.mark.release
class TestOneBulk(BulkContract): ...
