"""The flavors that a project may use, as types of machines.

OpenStack has no prices; where a flavor's properties have ``slurm_elastic:price`` ($/h), that is it.
``pci_passthrough:alias`` (``gpu:2``) and ``resources:VGPU`` are taken as GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_elastic.config.requirements import KnownType
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.openstack.catalog import flavor_pages
from slurm_elastic.providers.openstack.errors import translated
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

PRICE = "slurm_elastic:price"
ARCH = "hw:cpu_arch"
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def known_types(settings: OpenStackCloud) -> tuple[KnownType, ...]:
    """One or few calls. Any ProviderError."""
    with translated(settings.name):
        return tuple(_known(record) for record in flavor_pages(Project(settings).call))


def _known(record: Mapping[str, Any]) -> KnownType:
    """A name that cannot be written in the configuration is made one; the flavor keeps its own."""
    flavor, more = str(record["name"]), record.get("extra_specs") or {}
    name = _ODD.sub("-", flavor).strip("-.")
    gpus = _gpus(more)
    return KnownType(
        name=name,
        cpus=int(record["vcpus"]),
        memory=int(record["ram"]),
        price=price_in(str(more[PRICE])) if PRICE in more else None,
        gres={"gpu": gpus} if gpus else {},
        arch=str(more.get(ARCH, "")),
        own={} if name == flavor else {"flavor": flavor},
    )


def _gpus(more: Mapping[str, Any]) -> int:
    aliases = str(more.get("pci_passthrough:alias", "")).split(",")
    counts = [alias.partition(":")[2] or "1" for alias in aliases if "gpu" in alias.lower()]
    counts.append(str(more.get("resources:VGPU", "0")))
    return sum(int(count) for count in counts if count.isdecimal())
