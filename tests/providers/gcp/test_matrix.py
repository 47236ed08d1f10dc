"""The fault matrix with the gcp provider, against the emulated Compute Engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from providers.gcp.bed import GcpBed

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.gcp.provider import GcpProvider
from slurm_elastic.sandbox.gce.control import GceControl
from slurm_elastic.sandbox.gce.world import GcePace
from slurm_elastic.testing.contract import CLUSTER
from slurm_elastic.testing.matrix import FaultMatrix
from tests.faults.strikes import TIMEOUT, emulated


class MatrixBed(GcpBed):
    name = "gcp"
    pool = Pool(
        name="gc", cloud="google", nodes=("gc1", "gc2"), cpus=2, real_memory=3000,
        instance_types=("small",), markets=(Market.ON_DEMAND,),
    )  # fmt: skip
    ACTIONS: Mapping[str, str] = {
        "launch": "instances.bulkInsert", "list": "instances.list", "terminate": "instances.delete",
    }  # fmt: skip

    def settings(self, **more: object) -> CloudSettings:  # type: ignore[override]
        return super().settings(**({"api_timeout": TIMEOUT} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return GcpProvider(self.settings(), CLUSTER, monotonic=clock)

    def nodes(self) -> Mapping[str, str]:
        return {machine.name: machine.name.rpartition("-")[0] for machine in self.machines()}

    def show(self) -> None:
        self.control.pace(GcePace())

    def strike(self, fault: str, call: str) -> bool:
        made = emulated(fault, call, self.ACTIONS[call])
        if made is not None:
            self.control.fail(made)
        return made is not None

    def standing(self) -> object:
        return self.control.state().faults


class TestGoogleMatrix(FaultMatrix):
    @pytest.fixture
    def new_bed(self, control: GceControl) -> Callable[[Path], MatrixBed]:
        return lambda directory: MatrixBed(control, directory)
