"""The docker provider keeps the contract, on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_proxy import running_proxy
from providers.contract import FaultContract, LaunchContract, ScarceContract, spec_for

from slurm_elastic.errors import AuthError, ProviderError, TransientError

from .bed import DockerBed
from .engine import Engine

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def bed(docker_engine: Engine, trixie: str, tmp_path: Path) -> Iterator[DockerBed]:
    with running_proxy(tmp_path / "engine.sock", docker_engine.socket) as proxy:
        made = DockerBed(docker_engine, proxy, trixie)
        yield made
        made.close()


class TestDockerLaunches(LaunchContract): ...


class TestDockerScarcity(ScarceContract): ...


class TestDockerFaults(FaultContract):
    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_reads_fail_as_one_of_the_five(
        self, bed: DockerBed, error: type[ProviderError]
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
