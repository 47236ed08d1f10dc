"""The openstack provider's cloud for tests without a control plane: the stand-in."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import yaml
from providers.openstack.stand_in import PASSWORD, Kind, StandIn

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud
from slurm_elastic.testing.contract import UUID

NAME = "stack"
CREATE = "POST /compute/v2.1/servers"
DELETE = "DELETE /compute/v2.1/servers/*"
LIST = "GET /compute/v2.1/servers*"
QUOTA = "Quota exceeded for instances: Requested 1, but already used 2 of 2 instances"
POLICY = "Policy doesn't allow os_compute_api:servers:index to be performed."


class StackBed:
    pool = Pool(
        name="os",
        cloud=NAME,
        nodes=tuple(f"os{n}" for n in range(1, 1201)),
        cpus=2,
        real_memory=3000,
        instance_types=("small",),
        markets=(Market.RESERVED,),
    )

    def __init__(self, stand_in: StandIn, directory: Path) -> None:
        stand_in.reset()
        self.stand_in = stand_in
        self.file = directory / "clouds.yaml"
        self.login()

    @property
    def world(self):
        return self.stand_in.world

    def login_by_credential(self, secret: str = PASSWORD) -> None:
        auth = {
            "auth_url": f"{self.stand_in.url}/v3",
            "application_credential_id": "ac",
            "application_credential_secret": secret,
        }
        entry = {"auth": auth, "auth_type": "v3applicationcredential", "region_name": "here"}
        self.file.write_text(yaml.safe_dump({"clouds": {"hpc": entry}}))

    def login(self, password: str = PASSWORD, **more: object) -> None:
        auth = {
            "auth_url": f"{self.stand_in.url}/v3",
            "username": "elastic",
            "password": password,
            "project_name": "hpc",
            "user_domain_id": "default",
            "project_domain_id": "default",
        }
        entry = {"auth": auth, "region_name": "here", **more}
        self.file.touch(mode=0o600)
        self.file.write_text(yaml.safe_dump({"clouds": {"hpc": entry}}))

    def settings(self, **more: object) -> OpenStackCloud:
        values: dict[str, object] = {
            "cloud": "hpc",
            "clouds_file": str(self.file),
            "image": "worker",
            "types": {"small": Flavor(cpus=2, memory=4096, price=0.02)},
        }
        return OpenStackCloud(name=NAME, location=Location.ON_PREMISES, **(values | more))

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=uuid)
        )

    def alive(self) -> set[str]:
        with self.stand_in.lock:
            return set(self.world.servers)

    def add_foreign(self) -> set[str]:
        return {self.stand_in.add()}

    def limit(self, count: int) -> None:
        self.world.capacity = count

    def fail_late(self, node: str) -> Callable[[], None]:
        def fail() -> None:
            named = {m.node: m.id for m in self.open().instances()}
            with self.stand_in.lock:
                fault = {"code": 500, "message": "Build of instance aborted", "created": "?"}
                self.world.servers[named[node]] |= {
                    "status": "ERROR", "fault": fault, "OS-SRV-USG:launched_at": None
                }  # fmt: skip

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        if error is CapacityError:
            self.limit(0)
        elif error is QuotaError:
            self.stand_in.refuse(403, QUOTA, CREATE)
        elif error is AuthError:
            self.stand_in.refuse(403, POLICY)
        else:
            self.stand_in.fail(Kind.STATUS, status=503)

    def heal(self) -> None:
        self.stand_in.heal()
        self.limit(10**6)

    def lose_answers(self) -> None:
        self.stand_in.fail(Kind.RESET_AFTER, CREATE)

    def fall_silent(self) -> None:
        self.stand_in.fail(Kind.SILENT_BEFORE)

    def hide_fresh(self, seconds: float) -> None:
        self.world.visible_after = seconds

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
