"""The openstack provider keeps the contract, against the stand-in; tests/realcloud/openstack has
the same suite on a real control plane.
"""

from __future__ import annotations

import pytest
from providers.contract import (
    BulkContract,
    DelayedContract,
    FaultContract,
    LaunchContract,
    ScarceContract,
    spec_for,
)
from providers.openstack.bed import StackBed

from slurm_elastic.errors import AuthError, ProviderError, TransientError

pytestmark = pytest.mark.usefixtures("guarded")


class TestStackLaunches(LaunchContract): ...


class TestStackScarcity(ScarceContract): ...


class TestStackFaults(FaultContract):
    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_reads_fail_as_one_of_the_five(self, bed: StackBed, error: type[ProviderError]) -> None:
        """All but notices, for which nothing is asked: there are none."""
        provider = bed.open()
        machine = provider.launch(spec_for(bed, provider, 1))[0]
        bed.fail(error)
        for call in (provider.instances, provider.check, lambda: provider.terminate([machine.id])):
            with pytest.raises(error):
                call()
        bed.heal()
        assert bed.alive() == {machine.id}
        assert len(provider.instances()) == 1


class TestStackDelays(DelayedContract):
    test_a_machine_that_is_not_listed_yet_can_be_ended = None
    """nova's order tells one id at most: a launch waits for the list to have its machines."""


class TestStackBulk(BulkContract): ...
