"""The opennebula provider keeps the contract, against the emulated front end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_one
from providers.contract import (
    BulkContract,
    DelayedContract,
    FaultContract,
    LaunchContract,
    ScarceContract,
    spec_for,
)
from providers.opennebula.bed import OneBed

from slurm_elastic.errors import AuthError, ProviderError, TransientError
from slurm_elastic.sandbox.one_control import OneControl

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
    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_reads_fail_as_one_of_the_five(self, bed: OneBed, error: type[ProviderError]) -> None:
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


class TestOneDelays(DelayedContract): ...


class TestOneBulk(BulkContract): ...
