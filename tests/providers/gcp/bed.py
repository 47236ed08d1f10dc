"""The gcp provider's cloud for tests: the emulated Compute Engine."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from patience import eventually

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import SpotType
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.gcp.settings import GcpCloud
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.gce.control import GceControl, GceView
from slurm_elastic.sandbox.gce.world import PROJECT, REGION, GceImage, GcePace, GceType, GceWorld
from slurm_elastic.testing.contract import UUID

NAME = "google"
BULK = "instances.bulkInsert"
ZONES = (f"{REGION}-a", f"{REGION}-b")
KINDS = {
    CapacityError: Fault(kind=FaultKind.CAPACITY),
    QuotaError: Fault(kind=FaultKind.QUOTA),
    AuthError: Fault(kind=FaultKind.AUTH),
    TransientError: Fault(kind=FaultKind.THROTTLE),
}


def world(**more: object) -> GceWorld:
    values: dict[str, object] = {
        "types": {
            "small": GceType(cpus=2, memory=4096),
            "big": GceType(cpus=64, memory=262144),
            "cards": GceType(cpus=8, memory=32768, gpus=1),
        },
        "images": [
            GceImage(name="worker-1", family="worker"),
            GceImage(
                name="worker-2", family="worker", id="5000000000000000002",
                created="2026-11-02T00:00:00.000-07:00",
                labels={"slurm-elastic-os": "debian", "slurm-elastic-os-version": "13"},
            ),
        ],
    }  # fmt: skip
    return GceWorld(**(values | more))


@functools.cache
def private_key() -> str:
    """A key as Google's key files have one; it opens nothing."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def write_key(file: Path, token_url: str) -> None:
    """A key file of a service account whose tokens come from ``token_url``."""
    file.touch(mode=0o600)
    words = {
        "type": "service_account", "project_id": PROJECT, "private_key_id": "1",
        "private_key": private_key(), "client_email": f"elastic@{PROJECT}.iam.gserviceaccount.com",
        "client_id": "1", "token_uri": token_url,
    }  # fmt: skip
    file.write_text(json.dumps(words))


class GcpBed:
    pool = Pool(
        name="gc",
        cloud=NAME,
        nodes=tuple(f"gc{n}" for n in range(1, 1201)),
        cpus=2,
        real_memory=3000,
        instance_types=("small",),
        markets=(Market.SPOT, Market.ON_DEMAND),
    )

    def __init__(self, control: GceControl, directory: Path, **more: object) -> None:
        control.reset(world(**more))
        self.control = control
        self.key = directory / "google.json"
        write_key(self.key, control.token_url)
        self.foreign = 0

    def settings(self, **more: object) -> GcpCloud:
        values: dict[str, object] = {
            "project": PROJECT, "region": REGION, "zones": ZONES, "image": "family/worker",
            "endpoint": self.control.url, "credentials": str(self.key), "subnetwork": "default",
            "types": {"small": SpotType(cpus=2, memory=4096, price=0.1, spot_price=0.03)},
        }  # fmt: skip
        return GcpCloud(name=NAME, location=Location.PUBLIC, **(values | more))

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=uuid)
        )

    def machines(self) -> tuple[GceView, ...]:
        return tuple(m for m in self.control.state().machines if not m.ending)

    def alive(self) -> set[str]:
        return {machine.name for machine in self.machines()}

    def add_foreign(self) -> set[str]:
        return self.crowd(1)

    def crowd(self, count: int) -> set[str]:
        names = {f"theirs-{self.foreign + n}" for n in range(count)}
        self.foreign += count
        self.control.add(sorted(names), ZONES[0])
        return names

    def limit(self, count: int) -> None:
        self.control.capacity(count)

    def fail_late(self, node: str) -> Callable[[], None]:
        def fail() -> None:
            named = {m.node: m.id for m in self.open().instances()}
            self.control.halt([named[node]])

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        self.control.fail(KINDS[error])

    def heal(self) -> None:
        self.control.heal()
        self.control.silence(())

    def silence(self, zone: str) -> None:
        self.control.silence([zone])

    def protect(self, machine: str) -> None:
        self.control.protect(machine, keep=True)

    def unprotect(self, machine: str) -> None:
        self.control.protect(machine, keep=False)

    def lose_answers(self) -> None:
        self.control.fail(Fault(kind=FaultKind.RESET_AFTER, action=BULK))

    def fall_silent(self) -> None:
        self.control.fail(Fault(kind=FaultKind.TIMEOUT_BEFORE, seconds=15))

    def hide_fresh(self, seconds: float) -> None:
        self.control.pace(GcePace(visible_after=seconds))

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def open_reserved(self, reservation: Reservation) -> Provider:
        return self.open(reservations=(reservation,))

    def calls(self, name: str) -> int:
        return self.control.state().calls.get(name, 0)

    def require_valid(self) -> None:
        """Google's own description knows all requests and answers."""
        assert self.control.state().violations == ()


def until_running(bed: GcpBed, count: int) -> None:
    eventually(lambda: sum(m.status == "RUNNING" for m in bed.machines()) == count)
