"""The parts of an emulated OpenNebula apart from machines: accounts, templates, hosts, networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from slurm_elastic.sandbox.nebula.vm_template import Template, Value

ADMIN = "oneadmin"
ELASTIC = "elastic"
"""The account that slurm-elastic uses in a sandbox."""


class OneUser(Struct, kw_only=True):
    """An account. ``quota`` by name (VMS, CPU, MEMORY, RUNNING_VMS ...): -1 for the default, -2 for
    no limit. ``leases`` by network id, ``runs`` (RVMS) by image id. ``stale``: amounts that a quota
    counts although no machine uses them.
    """

    id: int
    name: str
    password: str
    gid: int = 1
    group: str = "users"
    quota: dict[str, float] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    stale: dict[str, float] = field(default_factory=dict)


class OneHost(Struct, kw_only=True):
    """A host in oned's units: ``cpu`` in hundredths of a CPU, ``memory`` in KiB; ``state`` 2:
    up.
    """

    id: int
    name: str
    cpu: int = 800
    memory: int = 16 * 1024 * 1024
    state: int = 2


class Net(Struct, kw_only=True):
    """A network with one range of addresses."""

    id: int
    name: str
    first: str = "10.0.0.10"
    size: int = 900


class VmTemplate(Struct, kw_only=True):
    """A VM template. ``everybody``: all users may use it, else only its owner."""

    id: int
    name: str
    template: dict[str, list[str | dict[str, str]]]
    uid: int = 0
    everybody: bool = True

    @property
    def values(self) -> Template:
        """A copy of the template, which the caller may change."""
        return {key: list[Value](values) for key, values in self.template.items()}


class EmulatedImage(Struct, kw_only=True):
    """An image. ``created`` is Unix time; ``state`` and ``type`` are oned's numbers (1 is READY, 0
    is OS); ``size`` is in MiB. ``everybody``: all users may use it, else only its owner. The file
    at ``path`` of a LOCKED (4) image is read until ``due`` (Unix time).
    """

    id: int
    name: str
    uid: int = 0
    everybody: bool = True
    type: int = 0
    state: int = 1
    persistent: bool = False
    created: int = 1795145306
    size: int = 1024
    path: str = "disk.img"
    due: float = 0.0
    template: dict[str, str] = field(default_factory=dict)


class OnePace(Struct, kw_only=True):
    """Durations in seconds: how long a machine waits for the scheduler, boots and shuts down, and
    how long a new machine is missing from lists (``visible_after``).

    Machines whose names match ``broken`` (a shell pattern) fail to boot. Scheduler cycles are
    ``schedule`` apart. A cycle places at most ``dispatch`` machines, and ``per_host`` on each host
    (oned 6.x by default: 30 and 1; None: no limit).
    """

    schedule: float = 0.3
    boot: float = 0.3
    shutdown: float = 0.2
    visible_after: float = 0.0
    broken: str = ""
    dispatch: int | None = None
    per_host: int | None = None


class OneWorld(Struct, kw_only=True):
    """The whole cloud without machines. ``datastores``: the ids of image datastores; ``groups``:
    quotas by group id; ``hidden_groups``: groups that members may not read.
    """

    users: list[OneUser]
    templates: list[VmTemplate]
    hosts: list[OneHost] = field(
        default_factory=lambda: [OneHost(id=n, name=f"node0{n}") for n in range(3)]
    )
    nets: list[Net] = field(default_factory=lambda: [Net(id=0, name="lan")])
    groups: dict[int, dict[str, float]] = field(default_factory=dict)
    hidden_groups: set[int] = field(default_factory=set)
    images: list[EmulatedImage] = field(
        default_factory=lambda: [EmulatedImage(id=0, name="debian12")]
    )
    datastores: set[int] = field(default_factory=lambda: {1, 100})
    pace: OnePace = field(default_factory=OnePace)
    version: str = "6.10.5"


def vm_template(
    number: int, name: str, cpus: float, memory: int, net: int | None = 0
) -> VmTemplate:
    """Return a template with a disk, a network card and a CONTEXT."""
    values: dict[str, list[str | dict[str, str]]] = {
        "CONTEXT": [{"NETWORK": "YES", "SSH_PUBLIC_KEY": "$USER[SSH_PUBLIC_KEY]"}],
        "CPU": [f"{cpus:g}"],
        "DISK": [{"IMAGE_ID": "0"}],
        "MEMORY": [str(memory)],
        "VCPU": [str(max(int(cpus), 1))],
    }
    if net is not None:
        values["NIC"] = [{"NETWORK_ID": str(net)}]
    return VmTemplate(id=number, name=name, template=values)


def sandbox_world(clouds: Iterable[Mapping[str, Any]], password: str) -> OneWorld:
    """Return the world for the configured clouds of a sandbox, with a template for each type."""
    kinds = {
        int(kind["template"]): (name, kind)
        for cloud in clouds
        for name, kind in cloud["types"].items()
    }
    return OneWorld(
        users=[
            OneUser(id=0, name=ADMIN, password=password, gid=0, group=ADMIN),
            OneUser(id=2, name=ELASTIC, password=password),
        ],
        templates=[
            vm_template(number, name, kind["cpus"], kind["memory"])
            for number, (name, kind) in kinds.items()
        ],
        hosts=[OneHost(id=n, name=f"node{n:02}", cpu=6400, memory=2**30) for n in range(4)],
        pace=OnePace(schedule=0.5, boot=0.5, shutdown=0.5),
    )
