"""The openstack provider keeps the contract, against the stand-in; tests/realcloud/openstack has
the same suite on a real control plane.
"""

from __future__ import annotations

import pytest

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


class TestStackLaunches(LaunchContract): ...


class TestStackScarcity(ScarceContract): ...


class TestStackFaults(FaultContract):
    asks_for_notices = False


class TestStackStops(StopContract): ...


class TestStackStopFaults(StopFaultContract): ...


class TestStackLateFailures(LateFailureContract): ...


class TestStackDelays(DelayedContract):
    test_a_machine_that_is_not_listed_yet_can_be_ended = None
    """nova's order tells one id at most: a launch waits for the list to have its machines."""


class TestStackBulk(BulkContract): ...
