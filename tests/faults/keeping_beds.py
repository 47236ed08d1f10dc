"""The emulated clouds with a pool that keeps stopped machines, and a hand on what changes for one:
its price, its image, its age, and whether its cloud starts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from emulated import running_ec2, running_one
from libvirt_hosts import FROM_QEMU
from libvirt_hosts import Fault as HostFault
from msgspec.structs import replace
from patience import eventually
from providers.opennebula.bed import NAME as ONE
from providers.opennebula.bed import world
from providers.openstack.bed import POLICY
from providers.openstack.stand_in import StandIn

from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.tags import NODES
from slurm_elastic.providers.libvirt.machine import STOPPED, tags_in
from slurm_elastic.providers.libvirt.settings import LibvirtType
from slurm_elastic.providers.opennebula.settings import OneTemplate
from slurm_elastic.providers.openstack.settings import Flavor
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.cloud import BOOT_FAILURE, POWEROFF
from slurm_elastic.sandbox.nebula.control import Place
from slurm_elastic.sandbox.nebula.world import EmulatedImage, OnePace
from tests.faults.beds import Aws, Libvirt, One, Stack

IMAGES = ImageChoice(name="worker-*")
CHEAP, DEAR = 0.1, 0.2
DISK = 0.001
ACTION = "POST /compute/v2.1/servers/*/action"


def keeping(pool: Pool, *types: str) -> Pool:
    """The pool of a bed, which keeps its machines stopped; the first type is the cheaper one."""
    return replace(pool, stopped=2, stopped_price=DISK, instance_types=types, image=IMAGES)


class KeepingAws(Aws):
    pool = keeping(Aws.pool, "c5.large", "m5.large")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prices = {"c5.large": CHEAP, "m5.large": DEAR}
        self.new_image("worker-1")

    def settings(self, **more: object) -> CloudSettings:
        types = {n: InstanceType(cpus=2, memory=4096, price=p) for n, p in self.prices.items()}
        return super().settings(**({"types": types} | more))

    def off(self) -> dict[str, str]:
        return {m.id: m.node for m in self.control.state().machines if m.state == "stopped"}

    def alive(self) -> set[str]:
        return super().alive() - self.off().keys()

    def there(self) -> set[str]:
        return super().alive()

    def nodes(self) -> Mapping[str, str]:
        alive = self.alive()
        return {machine: node for machine, node in super().nodes().items() if machine in alive}

    def new_image(self, name: str) -> None:
        """The newest by its date, which has whole seconds."""
        there = self.client.describe_images()["Images"]
        newest = max((one["CreationDate"] for one in there), default="")
        eventually(lambda: time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()) > newest)
        self.client.register_image(Name=name, RootDeviceName="/dev/sda1")

    def break_down(self, machine: str) -> None:
        """EC2 takes a start, and has it stopped again, as where its disk's key is not usable."""
        self.client.stop_instances(InstanceIds=[machine])

    def refuse_start(self) -> None:
        """EC2 has no host for one that was stopped; a fresh one is asked for later."""
        self.control.fail(Fault(kind=FaultKind.CAPACITY, action="StartInstances", count=1))


class KeepingStack(Stack):
    pool = keeping(Stack.pool, "small", "other")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prices = {"small": CHEAP, "other": DEAR}
        self.new_image("worker-1")

    def settings(self, **more: object) -> CloudSettings:
        types = {
            name: Flavor(cpus=2, memory=4096, price=price, flavor="small")
            for name, price in self.prices.items()
        }
        return super().settings(**({"types": types} | more))

    def off(self) -> dict[str, str]:
        return {i: n for i, n in super().nodes().items() if self.status(i) == "SHUTOFF"}

    def status(self, server: str) -> str:
        with self.stand_in.lock:
            return str(self.world.servers[server]["status"])

    def alive(self) -> set[str]:
        return {i for i in super().alive() if self.status(i) in ("ACTIVE", "BUILD")}

    def there(self) -> set[str]:
        return super().alive()

    def nodes(self) -> Mapping[str, str]:
        alive = self.alive()
        return {machine: node for machine, node in super().nodes().items() if machine in alive}

    def new_image(self, name: str) -> None:
        with self.stand_in.lock:
            self.world.images.insert(
                0,
                {
                    "id": f"{len(self.world.images):08}-aaaa-4bbb-8ccc-222222222222",
                    "name": name,
                    "status": "active",
                    "created_at": f"2026-01-{1 + len(self.world.images):02}T00:00:00Z",
                },
            )

    def break_down(self, machine: str) -> None:
        """nova takes a start, and its hypervisor cannot carry it out."""
        with self.stand_in.lock:
            self.world.servers[machine] |= {"status": "ERROR", "OS-EXT-STS:power_state": 4}

    def refuse_start(self) -> None:
        self.stand_in.refuse(403, POLICY, ACTION, 1)


class KeepingOne(One):
    pool = keeping(One.pool, "small", "other")

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.prices = {"small": CHEAP, "other": DEAR}
        self.control.pace(OnePace(schedule=0.01, boot=0.01, shutdown=0.01))
        self._images = world().images
        self.new_image("worker-1")

    def settings(self, **more: object) -> CloudSettings:
        types = {
            name: OneTemplate(cpus=2, memory=4096, template=0, price=price)
            for name, price in self.prices.items()
        }
        return super().settings(**({"types": types} | more))

    def off(self) -> dict[str, str]:
        return {
            f"{ONE}-{m.id}": m.node for m in self.control.state().machines if m.state == POWEROFF
        }

    def alive(self) -> set[str]:
        machines = self.control.state().machines
        broken = {f"{ONE}-{m.id}" for m in machines if m.lcm == BOOT_FAILURE}
        return super().alive() - self.off().keys() - broken

    def there(self) -> set[str]:
        return super().alive()

    def nodes(self) -> Mapping[str, str]:
        alive = self.alive()
        return {machine: node for machine, node in super().nodes().items() if machine in alive}

    def new_image(self, name: str) -> None:
        number = len(self._images)
        self._images.append(EmulatedImage(id=number, name=name, created=100 * number))
        self.control.images(self._images)

    def break_down(self, machine: str) -> None:
        """oned takes a start, and its driver cannot carry it out: BOOT_FAILURE."""
        number = int(machine.rpartition("-")[2])
        (one,) = [m for m in self.control.state().machines if m.id == number]
        tags = dict(one.tags)
        self.control.place(
            Place(
                id=number, name=one.name, uid=one.uid, lcm=BOOT_FAILURE, user_template=tags, host=0
            )
        )

    def refuse_start(self) -> None:
        self.control.fail(Fault(kind=FaultKind.AUTH, action="one.vm.action", count=1))


class KeepingLibvirt(Libvirt):
    """Its image is named in the cloud's settings."""

    pool = replace(keeping(Libvirt.pool, "small", "other"), image=None)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.prices = {"small": CHEAP, "other": DEAR}
        self.new_image("worker-1")

    def settings(self, **more: object) -> CloudSettings:  # type: ignore[override]
        types = {
            name: LibvirtType(cpus=1, memory=16, price=price) for name, price in self.prices.items()
        }
        return super().settings(**({"types": types, "image": self.image} | more))

    def off(self) -> dict[str, str]:
        """Domains that are marked as stopped on purpose; ended ones leave a definition, too."""
        told = {i: tags_in(self.marks(i)) for i in self.domains().keys() - self.alive()}
        return {i: tags.get(NODES, "") for i, tags in told.items() if STOPPED in tags}

    def there(self) -> set[str]:
        return self.alive() | self.off().keys()

    def new_image(self, name: str) -> None:
        self.image = name
        self.storage.createXML(
            f"<volume><name>{name}</name><capacity unit='MiB'>1</capacity>"
            "<target><format type='qcow2'/></target></volume>"
        )

    def break_down(self, machine: str) -> None:
        """qemu runs, and dies of what its guest does."""
        self.domains()[machine].destroy()

    def refuse_start(self) -> None:
        """As where its disk cannot be opened any more."""
        refused = (38, FROM_QEMU, "Cannot access storage file: Permission denied")
        self.proxy.fail(HostFault(procedures=("create",), error=refused, times=1))


@contextmanager
def keeping_beds(directory: Path) -> Iterator[dict[str, Callable[[Path], Any]]]:
    """How a fresh cloud of each kind is made in a directory; emulators run until the end."""
    for name in ("aws", "one"):
        (directory / name).mkdir()
    with ExitStack() as stack:
        ec2 = stack.enter_context(running_ec2(directory / "aws"))
        one = stack.enter_context(running_one(directory / "one"))
        stand_in = stack.enter_context(StandIn().serving())
        yield {
            "aws": lambda _: KeepingAws(ec2),
            "openstack": lambda place: KeepingStack(stand_in, place),
            "opennebula": lambda place: KeepingOne(one, place, user="elastic"),
        }
