"""The openstack provider's cloud for tests: a real control plane, with faults on the way to nova."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from providers.openstack.bed import CREATE, POLICY
from providers.openstack.stand_in import Kind, StandIn

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, QuotaError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud
from slurm_elastic.testing.contract import UUID

from .cloud import FLAVORS
from .plane import ControlPlane

NAME = "stack"
CPUS, MEMORY = FLAVORS["small"]


class PlaneBed:
    """Every test begins with an empty project without quotas, on an empty host."""

    pool = Pool(
        name="os",
        cloud=NAME,
        nodes=tuple(f"os{n}" for n in range(1, 101)),
        cpus=CPUS,
        real_memory=3000,
        instance_types=("small",),
        markets=(Market.RESERVED,),
    )

    def __init__(self, plane: ControlPlane, wire: StandIn, directory: Path) -> None:
        self.plane = plane
        self.admin = plane.admin
        self.wire = wire
        self.file = directory / "clouds.yaml"
        self._uuids: dict[str, str] = {}
        self.login()

    def tidy(self) -> None:
        """Leave nothing behind."""
        self.heal()
        self.plane.hypervisor()
        self.admin.clear()

    def login(self, **changes: object) -> None:
        """Write clouds.yaml; the way to nova is by the wire."""
        words = yaml.safe_load(self.plane.clouds_file.read_text())
        entry: dict[str, Any] = words["clouds"]["site"]
        entry["auth"].update(changes)
        entry["compute_endpoint_override"] = f"{self.wire.url}/compute/v2.1"
        self.file.touch(mode=0o600)
        self.file.write_text(yaml.safe_dump({"clouds": {"site": entry}}))

    def settings(self, **more: object) -> OpenStackCloud:
        values: dict[str, object] = {
            "cloud": "site",
            "clouds_file": str(self.file),
            "image": "worker",
            "networks": ("none",),
            "types": {"small": Flavor(cpus=CPUS, memory=MEMORY, price=0.02)},
            "schedule_timeout": 60.0,
        }
        return OpenStackCloud(name=NAME, location=Location.ON_PREMISES, **(values | more))

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        """The provider of this test's own cluster: nova remembers the servers that earlier clusters
        have started with the same generation.
        """
        own = self._uuids.setdefault(uuid, str(uuid4()))
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=own)
        )

    def alive(self) -> set[str]:
        """Ids of the servers, once all that are being deleted are gone."""
        return self.admin.settled()

    def add_foreign(self) -> set[str]:
        cloud = self.admin.connect()
        try:
            flavor = cloud.compute.find_flavor("small").id
            image = next(iter(cloud.image.images(name="worker"))).id
            made = cloud.compute.create_server(
                name="theirs", flavor_id=flavor, image_id=image, networks="none"
            )
        finally:
            cloud.close()
        return {made.id}

    def limit(self, count: int) -> None:
        self.admin.leave_room(count * MEMORY)

    def fail(self, error: type[ProviderError]) -> None:
        if error is CapacityError:
            self.limit(0)
        elif error is QuotaError:
            self.admin.quota(instances=0)
        elif error is AuthError:
            self.wire.refuse(403, POLICY)
        else:
            self.wire.fail(Kind.STATUS, status=503)

    def heal(self) -> None:
        self.wire.heal()
        self.admin.quota(instances=-1)
        self.admin.empty_host()

    def lose_answers(self) -> None:
        self.wire.fail(Kind.RESET_AFTER, CREATE)

    def fall_silent(self) -> None:
        self.wire.fail(Kind.SILENT_BEFORE)
