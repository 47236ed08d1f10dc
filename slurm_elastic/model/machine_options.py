"""The hardware around a pool's machines, beyond their type: disks, network, placement. A cloud's
settings list the options that it has (``machine_keys``).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

MIB_PER_GIB = 1024

DiskSize = Annotated[int, Meta(ge=MIB_PER_GIB, extra={"unit": "size"})]
"""MiB. No cloud sells less than 1 GiB."""
Positive = Annotated[int, Meta(ge=1)]


class Disk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network disk of a machine. It ends with its machine. None leaves the choice to the cloud
    and the image.
    """

    size: DiskSize | None = None
    """Change it when images, scratch files or containers need more room than the image's disk."""
    type: str | None = None
    """Change it when another kind of disk is faster or cheaper for the jobs."""
    iops: Positive | None = None
    """Change it when jobs wait for many small reads and writes."""
    throughput: Positive | None = None
    """Change it when jobs wait for large reads and writes (MiB/s)."""
    encrypted: bool | None = None
    """Change it when the site's rules ask for encrypted disks and the account does not encrypt by
    default.
    """
    kms_key: str | None = None
    """Change it when disks must be encrypted by a key of your own."""


class MachineOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``disk_price``: what the disks of one machine cost ($/h). It is added to the price of its
    type.
    """

    root_disk: Disk | None = None
    """Change it when machines need a larger or faster system disk than the image's."""
    disks: Annotated[tuple[Disk, ...], Meta(max_length=11)] = ()
    """Change it when machines need further disks; the image must format and mount them."""
    disk_price: Annotated[float, Meta(ge=0)] = 0.0
    """Change it when the disks of a machine should count in prices, caps and budgets."""
    rdma: bool = False
    """Change it when MPI or NCCL jobs of several nodes should use the fast network (EFA)."""
    placement_group: str | None = None
    """Change it when machines should stand close together (`cluster`), or by the rule of a group
    that you have made.
    """
    metadata_hops: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Change it when containers on the machines need the metadata service, which is one hop
    further away for them.
    """
    subnets: dict[str, str] = field(default_factory=dict)
    """Change it when this pool's machines belong in other subnets than the cloud's."""


NO_OPTIONS = MachineOptions()
"""The machines are as their type and image make them."""
CLUSTER_GROUP = "cluster"
"""The ``placement_group`` that slurm-elasticd makes itself."""


def gibibytes(size: int) -> int:
    """A disk's size in GiB, as clouds count it."""
    return -(-size // MIB_PER_GIB)
