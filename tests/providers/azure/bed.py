"""The azure provider's cloud for tests: the emulated resource manager."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import yaml

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, QuotaError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import SpotType
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.providers.azure.provider import AzureProvider
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.sandbox.azure import serve, world
from slurm_elastic.sandbox.azure.serve import EmulatedAzure
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import UUID

NAME = "az"
SIZE = "Standard_D2s_v5"
SUBNET = (
    f"/subscriptions/{serve.SUBSCRIPTION}/resourceGroups/net/providers/Microsoft.Network"
    "/virtualNetworks/hpc/subnets/nodes"
)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBnf6dmvPAJGGEPMrsyQcEHNwzp4XYxwCYp5nJwyCG1l admin"
KINDS = {
    CapacityError: FaultKind.CAPACITY,
    QuotaError: FaultKind.QUOTA,
    AuthError: FaultKind.AUTH,
}


class AzureBed:
    pool = Pool(
        name="azp",
        cloud=NAME,
        nodes=tuple(f"az{n}" for n in range(1, 1201)),
        cpus=2,
        real_memory=3000,
        instance_types=(SIZE,),
        markets=(Market.SPOT, Market.ON_DEMAND),
    )

    def __init__(self, emulator: EmulatedAzure, directory: Path) -> None:
        emulator.reset()
        self.emulator = emulator
        self.file = directory / "azure.yaml"
        self.login()

    @property
    def world(self) -> world.World:
        return self.emulator.world

    def login(self, **values: str) -> None:
        login = {"tenant": serve.TENANT, "client_id": serve.CLIENT, "client_secret": serve.SECRET}
        self.file.touch(mode=0o600)
        self.file.write_text(yaml.safe_dump(values or login))

    def settings(self, **more: object) -> AzureCloud:
        values: dict[str, object] = {
            "subscription": serve.SUBSCRIPTION,
            "resource_group": serve.GROUP,
            "region": "westeurope",
            "image": "debian:debian-12:12-gen2:latest",
            "subnet": SUBNET,
            "ssh_public_key": KEY,
            "types": {SIZE: SpotType(cpus=2, memory=4096, price=0.1, spot_price=0.02)},
            "credentials": str(self.file),
            "endpoint": self.emulator.url,
            "login_endpoint": self.emulator.url,
            "launch_wait": 0.2,
        }
        return AzureCloud(name=NAME, location=Location.PUBLIC, **(values | more))

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> AzureProvider:
        cluster = Cluster(name="site", uuid=uuid)
        settings = self.settings(api_timeout=timeout, **more)
        return AzureProvider(settings, cluster, poll_every_s=0.05)

    def alive(self) -> set[str]:
        with self.emulator.lock:
            return {vm.name for vm in self.world.vms.values()}

    def add_foreign(self) -> set[str]:
        return self.crowd(1)

    def crowd(self, count: int) -> set[str]:
        with self.emulator.lock:
            names = {f"theirs-{len(self.world.vms)}-{n}" for n in range(count)}
            for name in names:
                world.add(self.world, name, {"properties": {}, "location": "westeurope"})
            return names

    def limit(self, count: int) -> None:
        self.world.capacity = count

    def fail_late(self, node: str) -> Callable[[], None]:
        def fail() -> None:
            named = {m.node: m.id for m in self.open().instances()}
            with self.emulator.lock:
                vm = self.world.vms[named[node]]
                vm.state, vm.power = "Failed", ""
                vm.failure = ("AllocationFailed", "Allocation failed. We do not have capacity.")

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        kind = KINDS.get(error, FaultKind.INTERNAL)
        self.emulator.faults.add(Fault(kind=kind))

    def heal(self) -> None:
        self.emulator.heal()
        self.limit(10**6)

    def lose_answers(self) -> None:
        self.emulator.faults.add(Fault(kind=FaultKind.RESET_AFTER, action=world.CREATE))

    def fall_silent(self) -> None:
        self.emulator.faults.add(Fault(kind=FaultKind.TIMEOUT_BEFORE, seconds=30))

    def protect(self, machine: str) -> None:
        self.world.protected.add(machine)

    def unprotect(self, machine: str) -> None:
        self.world.protected.discard(machine)

    def hide_fresh(self, seconds: float) -> None:
        self.world.visible_after = seconds

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
