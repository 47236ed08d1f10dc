"""The flavors that a project may use, as machine types.

OpenStack has no prices. The price is the flavor's property ``slurm_elastic:price`` ($/h), if it is
set. ``pci_passthrough:alias`` (``gpu:2``) and ``resources:VGPU`` count as GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.openstack.catalog import flavor_pages
from slurm_elastic.providers.openstack.errors import translated
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

PRICE = "slurm_elastic:price"
ARCH = "hw:cpu_arch"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def known_types(settings: OpenStackCloud) -> tuple[KnownType, ...]:
    """All flavors. Takes one call or a few, and may raise any ProviderError."""
    with translated(settings.name):
        return tuple(
            _known_type(record) for record in flavor_pages(settings.name, Project(settings).call)
        )


def _known_type(record: Mapping[str, Any]) -> KnownType:
    """The flavor as a type. A name that the configuration cannot hold is rewritten, and the
    flavor's own name kept beside it.
    """
    flavor, extra_specs = str(record["name"]), record.get("extra_specs") or {}
    name = _NOT_IN_NAMES.sub("-", flavor).strip("-.")
    gpus = _gpus(extra_specs)
    return KnownType(
        name=name,
        cpus=int(record["vcpus"]),
        memory=int(record["ram"]),
        price=price_in(str(extra_specs[PRICE])) if PRICE in extra_specs else None,
        gres={"gpu": gpus} if gpus else {},
        arch=str(extra_specs.get(ARCH, "")),
        own={} if name == flavor else {"flavor": flavor},
    )


def _gpus(extra_specs: Mapping[str, Any]) -> int:
    aliases = str(extra_specs.get("pci_passthrough:alias", "")).split(",")
    counts = [alias.partition(":")[2] or "1" for alias in aliases if "gpu" in alias.lower()]
    counts.append(str(extra_specs.get("resources:VGPU", "0")))
    return sum(int(count) for count in counts if count.isdecimal())
