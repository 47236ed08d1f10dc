"""The aws provider's cloud for tests: the emulated EC2."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import boto3
import pytest

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.settings import AwsCloud, Strategy
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import UUID

REGION = "us-east-1"
KINDS = {
    CapacityError: FaultKind.CAPACITY,
    QuotaError: FaultKind.QUOTA,
    AuthError: FaultKind.AUTH,
    TransientError: FaultKind.THROTTLE,
}


class AwsBed:
    action = "RunInstances"
    pool = Pool(
        name="pub",
        cloud="aws",
        nodes=tuple(f"pub{n}" for n in range(1, 1201)),
        cpus=2,
        real_memory=3000,
        instance_types=("c5.large",),
        markets=(Market.SPOT, Market.ON_DEMAND),
    )

    def __init__(self, control: Ec2Control) -> None:
        control.reset()
        self.control = control
        self.client = boto3.client("ec2", region_name=REGION, endpoint_url=control.url)

    def settings(self, **more: object) -> AwsCloud:
        values: dict[str, object] = {
            "zones": ("us-east-1a", "us-east-1b"),
            "types": {"c5.large": InstanceType(cpus=2, memory=4096, price=0.085)},
            "image": "ami-12345678",
        }
        return AwsCloud(
            name="aws",
            location=Location.PUBLIC,
            region=REGION,
            endpoint=self.control.url,
            **(values | more),
        )

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=uuid)
        )

    def alive(self) -> set[str]:
        return {m.id for m in self.control.state().machines if m.state != "terminated"}

    def add_foreign(self) -> set[str]:
        answer = self.client.run_instances(
            ImageId="ami-1", InstanceType="c5.large", MinCount=1, MaxCount=1
        )
        return {i["InstanceId"] for i in answer["Instances"]}

    def open_reserved(self, reservation: Reservation) -> Provider:
        return self.open(reservations=(reservation,))

    def crowd(self, count: int) -> set[str]:
        answer = self.client.run_instances(
            ImageId="ami-1", InstanceType="c5.large", MinCount=count, MaxCount=count
        )
        return {i["InstanceId"] for i in answer["Instances"]}

    def limit(self, count: int) -> None:
        self.control.stock("*/*/*", count)

    def fail_late(self, node: str) -> Callable[[], None]:
        """EC2 itself ends a machine that it cannot start after all."""

        def fail() -> None:
            found = [m.id for m in self.open().instances() if m.node == node]
            self.client.terminate_instances(InstanceIds=found)

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        self.control.fail(Fault(kind=KINDS[error]))

    def heal(self) -> None:
        self.control.heal()

    def lose_answers(self) -> None:
        self.control.fail(Fault(kind=FaultKind.RESET_AFTER, action=self.action))

    def fall_silent(self) -> None:
        self.control.fail(Fault(kind=FaultKind.TIMEOUT_BEFORE, seconds=15))

    def protect(self, machine: str, *, on: bool = True) -> None:
        self.client.modify_instance_attribute(
            InstanceId=machine, DisableApiTermination={"Value": on}
        )

    def unprotect(self, machine: str) -> None:
        self.protect(machine, on=False)

    def hide_fresh(self, seconds: float) -> None:
        self.control.hide_fresh(seconds)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def calls(self, action: str) -> int:
        return self.control.state().calls.get(action, 0)


class FleetBed(AwsBed):
    """Launches by CreateFleet."""

    action = "CreateFleet"

    def settings(self, **more: object) -> AwsCloud:
        return super().settings(**({"strategy": Strategy.FLEET} | more))


def between(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Callable[[], Any], str, Any], Any]
) -> None:
    """Requests of ours are answered by ``answer``, whose first argument asks EC2 indeed."""
    real = AwsApi.send

    def send(api: AwsApi, operation: str, request: Mapping[str, object], machines: int = 1) -> Any:
        return answer(lambda: real(api, operation, request, machines), operation, request)

    monkeypatch.setattr(AwsApi, "send", send)
