"""The libvirt provider keeps the contract, on libvirtd's own test driver."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import AuthError, ProviderError, TransientError
from slurm_elastic.testing.contract import (
    BulkContract,
    FaultContract,
    LateFailureContract,
    LaunchContract,
    ProtectedContract,
    ScarceContract,
    spec_for,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

from .bed import LibvirtBed


class TestLibvirtLaunches(LaunchContract): ...


class TestLibvirtScarcity(ScarceContract): ...


class TestLibvirtFaults(FaultContract):
    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_reads_fail_as_one_of_the_five(
        self, bed: LibvirtBed, error: type[ProviderError]
    ) -> None:
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


class TestLibvirtStops(StopContract): ...


class TestLibvirtStopFaults(StopFaultContract): ...


class TestLibvirtLateFailures(LateFailureContract): ...


class TestLibvirtProtection(ProtectedContract): ...


@pytest.mark.release
class TestLibvirtBulk(BulkContract): ...
