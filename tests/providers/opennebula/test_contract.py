"""The opennebula provider keeps the contract, against the emulated front end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_one
from providers.opennebula.bed import OneBed

from slurm_elastic.sandbox.one_control import OneControl
from slurm_elastic.testing.contract import (
    BulkContract,
    DelayedContract,
    FaultContract,
    LaunchContract,
    ScarceContract,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneControl]:
    with running_one(tmp_path_factory.mktemp("one")) as running:
        yield running


@pytest.fixture
def bed(control: OneControl, tmp_path: Path) -> OneBed:
    return OneBed(control, tmp_path)


class TestOneLaunches(LaunchContract): ...


class TestOneScarcity(ScarceContract): ...


class TestOneFaults(FaultContract):
    asks_for_notices = False


class TestOneStops(StopContract): ...


class TestOneStopFaults(StopFaultContract): ...


class TestOneDelays(DelayedContract): ...


class TestOneBulk(BulkContract): ...
