"""Each fault of each call of the azure provider, with the daemon over a Slurm in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from providers.azure.bed import NAME, SIZE, AzureBed

from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.azure.provider import AzureProvider
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.named import node_of
from slurm_elastic.sandbox.azure.serve import EmulatedAzure
from slurm_elastic.testing.contract import CLUSTER
from slurm_elastic.testing.matrix import FaultMatrix
from tests.faults.strikes import TIMEOUT, emulated

ACTIONS = {"launch": "create", "list": "list", "terminate": "delete"}


class MatrixBed(AzureBed):
    name = "azure"
    pool = Pool(
        name="azm",
        cloud=NAME,
        nodes=("azm1", "azm2"),
        cpus=2,
        real_memory=3000,
        instance_types=(SIZE,),
        markets=(Market.ON_DEMAND,),
    )

    def settings(self, **more: object) -> AzureCloud:
        return super().settings(**({"api_timeout": TIMEOUT} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return AzureProvider(self.settings(), CLUSTER, monotonic=clock, poll_every_s=0.05)

    def nodes(self) -> Mapping[str, str]:
        return {name: node_of(name) for name in self.alive()}

    def show(self) -> None:
        self.hide_fresh(0.0)

    def strike(self, fault: str, call: str) -> bool:
        made = emulated(fault, call, ACTIONS[call])
        if made is not None:
            self.emulator.faults.add(made)
        return made is not None

    def standing(self) -> object:
        return self.emulator.faults.standing()


@pytest.fixture
def new_bed(
    emulator: EmulatedAzure, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], MatrixBed]:
    # A fault strikes two calls. With more threads it would be chance whether both calls are of one
    # launch, or each call makes a launch of its own partial.
    monkeypatch.setattr(AzureCloud, "threads", 1)
    return lambda directory: MatrixBed(emulator, directory)


class TestAzureMatrix(FaultMatrix): ...
