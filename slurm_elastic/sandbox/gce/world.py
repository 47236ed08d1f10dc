"""The resources of an emulated project, and the durations of its operations. No behaviour."""

from __future__ import annotations

from msgspec import Struct, field

PROJECT = "sandbox-project"
REGION = "us-central1"
FIRST_IMAGE = "5000000000000000001"


class GceType(Struct, kw_only=True):
    """A machine type. ``memory``: MiB. ``spot_price``: $/h, 0 if Google publishes none.
    ``currency``: of that price.
    """

    cpus: int
    memory: int
    gpus: int = 0
    spot_price: float = 0.0
    currency: str = "USD"


class GceImage(Struct, kw_only=True):
    """An image. ``id`` is Google's number; ``created`` is a time of RFC 3339."""

    name: str
    id: str = FIRST_IMAGE
    family: str = ""
    created: str = "2026-11-01T00:00:00.000-07:00"
    status: str = "READY"
    labels: dict[str, str] = field(default_factory=dict)


class GcePace(Struct, kw_only=True):
    """Durations (s). ``operation``: until a call is carried out; ``boot``; ``stop``; ``delete``.
    ``visible_after``: for so long lists lack a new machine.
    """

    operation: float = 0.0
    boot: float = 0.0
    stop: float = 0.0
    delete: float = 0.0
    visible_after: float = 0.0


class GceWorld(Struct, kw_only=True):
    """A project in one region. ``capacity``: how many machines Google has room for. ``cpus``: the
    quota of the region in vCPUs. ``preemptible_cpus``: the quota of spot machines alone, only in
    the answer for the region. ``anonymous``: calls need no token.
    """

    project: str = PROJECT
    region: str = REGION
    zones: list[str] = field(default_factory=lambda: [f"{REGION}-{z}" for z in "abc"])
    types: dict[str, GceType] = field(default_factory=dict)
    images: list[GceImage] = field(default_factory=list)
    subnetworks: list[str] = field(default_factory=lambda: ["default"])
    capacity: int = 10**6
    cpus: float = 10**6
    preemptible_cpus: float = 10**6
    pace: GcePace = field(default_factory=GcePace)
    anonymous: bool = False


def sandbox_world() -> GceWorld:
    """Return a project with a few types and one image."""
    return GceWorld(
        types={
            "e2-standard-2": GceType(cpus=2, memory=8192, spot_price=0.0268),
            "n2-standard-2": GceType(cpus=2, memory=8192, spot_price=0.0233),
            "n2-standard-16": GceType(cpus=16, memory=65536, spot_price=0.1864),
        },
        images=[GceImage(name="slurm-node-1", family="slurm-node")],
        pace=GcePace(operation=0.2, boot=1.0, stop=0.5, delete=0.5),
    )
