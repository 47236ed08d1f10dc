"""The clouds of the fault matrix: each bed says how its API answers when it goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from docker_proxy import Fault as EngineFault
from docker_proxy import running_proxy
from emulated import running_ec2, running_one
from libvirt_hosts import FROM_QEMU, Daemon
from libvirt_hosts import Fault as HostFault
from libvirt_hosts import running_proxy as host_proxy
from providers.aws.bed import AwsBed
from providers.libvirt.bed import KINDS as LIBVIRT_KINDS
from providers.libvirt.bed import LibvirtBed
from providers.local import bed as local_bed
from providers.local.bed import LocalBed
from providers.opennebula.bed import FAST, INSTANTIATE, NAME, OneBed
from providers.openstack.bed import CREATE, DELETE, LIST, POLICY, QUOTA, StackBed
from providers.openstack.stand_in import Kind, StandIn
from realcloud.docker.bed import KINDS as REFUSALS
from realcloud.docker.bed import DockerBed
from realcloud.docker.engine import Engine

from slurm_elastic.base.errors import AuthError, QuotaError, TransientError
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.machine.local.records import read_records
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.aws.settings import Strategy
from slurm_elastic.providers.base.tags import NODES
from slurm_elastic.providers.docker import requests
from slurm_elastic.providers.docker.settings import DockerType
from slurm_elastic.providers.libvirt.machine import tags_in
from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider
from slurm_elastic.providers.openstack.convert import servers
from slurm_elastic.providers.openstack.provider import OpenStackProvider
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.testing.contract import CLUSTER, UUID
from slurm_elastic.testing.matrix import FOR_GOOD, times
from tests.faults.fake_bed import Fake
from tests.faults.strikes import TIMEOUT, emulated


class Aws(AwsBed):
    name = "aws"
    pool = Pool(
        name="pub", cloud="aws", nodes=("pub1", "pub2"), cpus=2, real_memory=3000,
        instance_types=("c5.large",), markets=(Market.ON_DEMAND,),
    )  # fmt: skip
    ACTIONS = ("launch", ("RunInstances", "CreateFleet")), ("list", ("DescribeInstances",)), (
        "terminate", ("TerminateInstances",),
    )  # fmt: skip

    def settings(self, **more: object) -> CloudSettings:
        return super().settings(**({"api_timeout": TIMEOUT, "zones": ("us-east-1a",)} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return super().open(UUID, TIMEOUT)

    def nodes(self) -> Mapping[str, str]:
        machines = self.control.state().machines
        return {m.id: m.node for m in machines if m.state != "terminated"}

    def show(self) -> None:
        self.hide_fresh(0.0)

    def strike(self, fault: str, call: str) -> bool:
        for action in dict(self.ACTIONS)[call]:
            made = emulated(fault, call, action)
            if made is None:
                return False
            self.control.fail(made)
        return True

    def standing(self) -> object:
        return self.control.state().faults


class AwsFleet(Aws):
    """Launches by CreateFleet."""

    def settings(self, **more: object) -> CloudSettings:
        return super().settings(**({"strategy": Strategy.FLEET} | more))


class One(OneBed):
    name = "opennebula"
    ACTIONS = {"launch": INSTANTIATE, "list": "one.vmpool.*", "terminate": "one.vm.action"}  # noqa: RUF012

    def settings(self, **more: object) -> CloudSettings:
        return super().settings(**({"api_timeout": TIMEOUT} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return OpenNebulaProvider(self.settings(), CLUSTER, monotonic=clock)

    def nodes(self) -> Mapping[str, str]:
        alive = self.alive()
        named = {f"{NAME}-{m.id}": m.node for m in self.control.state().machines}
        return {machine: node for machine, node in named.items() if machine in alive}

    def show(self) -> None:
        self.control.pace(FAST)

    def made(self) -> int:
        return len(self.control.state().machines)

    def strike(self, fault: str, call: str) -> bool:
        made = emulated(fault, call, self.ACTIONS[call])
        if made is not None:
            self.control.fail(made)
        return made is not None

    def fail_after(self) -> None:
        """The next launch takes effect and is answered with an error of the server."""
        self.control.fail(Fault(kind=FaultKind.INTERNAL_AFTER, action=INSTANTIATE, count=1))

    def standing(self) -> object:
        return self.control.state().faults


class Stack(StackBed):
    name = "openstack"
    ended_when_listed = True
    ON = {"launch": CREATE, "list": LIST, "terminate": DELETE}  # noqa: RUF012
    WIRE = {  # noqa: RUF012
        "reset before": Kind.RESET_BEFORE,
        "reset after": Kind.RESET_AFTER,
        "time-out": Kind.SILENT_AFTER,
        "wrong data": Kind.NOT_JSON,
        "slow answer": Kind.SLOW,
    }

    def settings(self, **more: object) -> CloudSettings:
        return super().settings(**({"api_timeout": TIMEOUT, "schedule_timeout": 1.0} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return OpenStackProvider(self.settings(), CLUSTER, monotonic=clock)

    def nodes(self) -> Mapping[str, str]:
        with self.stand_in.lock:
            return {one.id: one.node for one in servers(self.world.servers.values())}

    def show(self) -> None:
        with self.stand_in.lock:
            self.hide_fresh(0.0)
            for server in self.world.servers.values():
                server["visible"] = 0.0

    def made(self) -> int:
        with self.stand_in.lock:
            return len(self.world.servers | self.world.deleted)

    def fail_after(self) -> None:
        """The next launch takes effect and is answered with an error of the server."""
        self.stand_in.fail(Kind.STATUS_AFTER, CREATE, 1)

    def strike(self, fault: str, call: str) -> bool:
        on = self.ON[call]
        if fault in FOR_GOOD and call != "launch":
            return False
        match fault:
            case "capacity":
                self.limit(0)
            case "quota":
                self.stand_in.refuse(403, QUOTA, on)
            case "auth":
                self.stand_in.refuse(403, POLICY, on, times(fault, call))
            case "throttle" | "internal":
                status = 503 if fault == "throttle" else 500
                self.stand_in.fail(Kind.STATUS, on, times(fault, call), status=status)
            case _:
                self.stand_in.fail(self.WIRE[fault], on, times(fault, call))
        return True

    def standing(self) -> object:
        return [(fault.kind, fault.count) for fault in self.world.faults]


class Local(LocalBed):
    name = "local"
    pool = Pool(
        name="p", cloud="here", nodes=("n1", "n2"), cpus=2, real_memory=900,
        instance_types=("slurmd",), markets=(Market.RESERVED,),
    )  # fmt: skip
    WORDS = {  # noqa: RUF012
        "auth": "NotPermitted",
        "internal": "InternalError",
        "reset before": "dropped",
        "reset after": "lost",
        "time-out": "silent",
        "slow answer": "late",
        "wrong data": "page",
    }

    def settings(self) -> CloudSettings:
        return local_bed.settings(self.socket, api_timeout=TIMEOUT)

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return super().open(UUID, TIMEOUT)

    def nodes(self) -> Mapping[str, str]:
        alive = self.alive()
        return {r.id: r.node for r in read_records(self._place / "machines") if r.id in alive}

    def strike(self, fault: str, call: str) -> bool:
        if fault == "capacity" and call == "launch":
            super().strike("InsufficientCapacity", "launch", 10**6)  # type: ignore[arg-type]
            return True
        if fault not in self.WORDS:
            return False
        super().strike(self.WORDS[fault], call, times(fault, call))  # type: ignore[arg-type,call-arg]
        return True

    def standing(self) -> object:
        return tuple(self._struck)


class Docker(DockerBed):
    """A real engine; what goes wrong does so on the way to it, but for a host without slots."""

    name = "docker"
    pool = Pool(
        name="box", cloud="boxes", nodes=("bx1", "bx2"), cpus=1, real_memory=600,
        instance_types=("small",), markets=(Market.RESERVED,),
    )  # fmt: skip
    ANSWER_IN = 15.0
    """Seconds: containers of a busy machine take some."""
    REQUESTS = {  # noqa: RUF012
        "launch": ("^POST .*/containers/create", "^POST .*/start$"),
        "list": ("^GET .*/containers/json",),
        "terminate": ("^POST .*/kill",),
    }
    WIRE = {  # noqa: RUF012
        "throttle": EngineFault(status=429, message="too many requests"),
        "internal": EngineFault(status=500, message="context deadline exceeded"),
        "reset before": EngineFault(drop=True),
        "reset after": EngineFault(drop=True, after=True),
        "time-out": EngineFault(silent=True, after=True),
        "slow answer": EngineFault(delay=0.2),
        "wrong data": EngineFault(status=200, body=b"<html>log in</html>", after=True),
        "auth": REFUSALS[AuthError],
        "quota": REFUSALS[QuotaError],
    }

    def __init__(self, engine: Engine, image: str, place: Path) -> None:
        self._stack = ExitStack()
        proxy = self._stack.enter_context(running_proxy(place / "engine.sock", engine.socket))
        super().__init__(engine, proxy, image)
        self._neighbour: Any = None

    def close(self) -> None:
        super().close()
        self._stack.close()

    def settings(self, **more: object) -> CloudSettings:  # type: ignore[override]
        types = {"small": DockerType(cpus=1, memory=1024, price=0.02)}
        return super().settings(**({"api_timeout": self.ANSWER_IN, "types": types} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return super().open(UUID, self.ANSWER_IN)

    def alive(self) -> set[str]:
        return super().alive() - ({self._neighbour.id[:12]} if self._neighbour else set())

    def nodes(self) -> Mapping[str, str]:
        alive = self.alive()
        found = {c.id[:12]: c.labels.get(requests.NODE, "") for c in self.containers()}
        return {machine: node for machine, node in found.items() if machine in alive}

    def strike(self, fault: str, call: str) -> bool:
        if fault in FOR_GOOD and call != "launch":
            return False
        if fault == "capacity":
            self._fill()
            return True
        count = None if fault in FOR_GOOD else times(fault, call)
        self.proxy.fail(
            *(replace(self.WIRE[fault], match=match, times=count) for match in self.REQUESTS[call])
        )
        return True

    def _fill(self) -> None:
        """Another cluster's container takes all slots of the host."""
        self._neighbour = self.client.containers.run(
            self.image, ["sleep", "infinity"], detach=True, init=True, network=self.id,
            labels={requests.CLUSTER: "another", requests.CPUS: str(self.slots)},
        )  # fmt: skip

    def heal(self) -> None:
        super().heal()
        if self._neighbour is not None:
            self._neighbour.remove(force=True, v=True)
            self._neighbour = None

    def standing(self) -> object:
        return tuple(self.proxy.faults)


class Libvirt(LibvirtBed):
    """Machines on libvirtd's test driver; a launch defines a domain and starts it."""

    name = "libvirt"
    pool = Pool(
        name="vm", cloud="lab", nodes=("vm1", "vm2"), cpus=1, real_memory=16,
        instance_types=("small",), markets=(Market.RESERVED,),
    )  # fmt: skip
    REQUESTS = {"launch": ("define", "create"), "list": ("stats",), "terminate": ("destroy",)}  # noqa: RUF012
    WIRE = {  # noqa: RUF012
        "throttle": HostFault(error=(87, FROM_QEMU, "resource busy: too many requests")),
        "internal": HostFault(error=LIBVIRT_KINDS[TransientError]),
        "reset before": HostFault(drop=True),
        "reset after": HostFault(drop=True, after=True),
        "time-out": HostFault(silent=True, after=True),
        "slow answer": HostFault(delay=0.2),
        "wrong data": HostFault(garbage=True, after=True),
        "auth": HostFault(error=LIBVIRT_KINDS[AuthError]),
        "quota": HostFault(error=LIBVIRT_KINDS[QuotaError]),
    }

    def __init__(self, daemon: Daemon, place: Path) -> None:
        self._stack = ExitStack()
        proxy = self._stack.enter_context(host_proxy(place / "libvirt-sock", daemon.socket))
        super().__init__(daemon, proxy, "test", place)
        self.slots = 10
        self._neighbours: set[str] = set()

    def close(self) -> None:
        super().close()
        self._stack.close()

    def settings(self, **more: object) -> CloudSettings:  # type: ignore[override]
        return super().settings(**({"api_timeout": TIMEOUT} | more))

    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        return super().open(UUID, TIMEOUT)

    def nodes(self) -> Mapping[str, str]:
        found = {number: tags_in(self.marks(number)) for number in self.alive()}
        return {number: tags.get(NODES, "") for number, tags in found.items()}

    def strike(self, fault: str, call: str) -> bool:
        if fault in FOR_GOOD and call != "launch":
            return False
        if fault == "capacity":
            self._fill()
            return True
        count = None if fault in FOR_GOOD else times(fault, call)
        self.proxy.fail(
            *(
                replace(self.WIRE[fault], procedures=(word,), times=count)
                for word in self.REQUESTS[call]
            )
        )
        return True

    def _fill(self) -> None:
        """The site's own domain takes all that is left of the host."""
        self._neighbours = self.add_foreign(self.slots)
        self.others |= self._neighbours

    def heal(self) -> None:
        super().heal()
        for number in self._neighbours:
            self.hand.lookupByUUIDString(number).destroy()
            self.others.remove(number)
        self._neighbours = set()

    def standing(self) -> object:
        return tuple(self.proxy.faults)


@contextmanager
def all_beds(directory: Path) -> Iterator[dict[str, Callable[[Path], object]]]:
    """How a fresh cloud of each kind is made in a directory; emulators run until the end."""
    for name in ("aws", "one"):
        (directory / name).mkdir()
    with ExitStack() as stack:
        ec2: Ec2Control = stack.enter_context(running_ec2(directory / "aws"))
        one: OneControl = stack.enter_context(running_one(directory / "one"))
        stand_in: StandIn = stack.enter_context(StandIn().serving())
        yield {
            "fake": lambda _: Fake(),
            "local": Local,
            "aws": lambda _: Aws(ec2),
            "aws fleet": lambda _: AwsFleet(ec2),
            "opennebula": lambda place: One(one, place, user="elastic"),
            "openstack": lambda place: Stack(stand_in, place),
        }
