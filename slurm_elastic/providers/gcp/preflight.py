"""Examines a project for ``doctor``: image, subnetwork, machine types, quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base import preflight
from slurm_elastic.providers.base.preflight import CheckRunner
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.errors import NOT_THERE, translated
from slurm_elastic.providers.gcp.images import Images
from slurm_elastic.providers.gcp.requests import subnetwork_path
from slurm_elastic.providers.gcp.settings import GcpCloud

_CHECKS = CheckRunner(
    "give the account the rights of `slurm-elastic iam render gcp`",
    "correct it in the cloud's section, or create it in the project",
)
_ALL, _SPOT = "CPUS", "PREEMPTIBLE_CPUS"
"""Quotas of a region in vCPUs. Most families have a quota of their own besides."""


class TypeFound(Struct, frozen=True, kw_only=True):
    """A machine type as Google describes it. ``memory``: MiB."""

    name: str
    cpus: int
    memory: int
    arch: str = ""
    gpus: int = 0


def machine_type(project: Project, zone: str, name: str) -> TypeFound | None:
    """The machine type of a zone; None if the zone has no such type."""
    path = f"zones/{quote(zone)}/machineTypes/{quote(name, safe='')}"
    try:
        record = project.call("GET", path)
    except ProviderError as error:
        if error.code == NOT_THERE:
            return None
        raise
    with translated(project.name):
        return type_of(record)


def type_of(record: Mapping[str, Any]) -> TypeFound:
    """The type of a record."""
    cards = record.get("accelerators") or ()
    return TypeFound(
        name=str(record["name"]),
        cpus=int(record["guestCpus"]),
        memory=int(record["memoryMb"]),
        arch={"ARM64": "arm64", "X86_64": "x86_64"}.get(record.get("architecture") or "", ""),
        gpus=sum(int(card.get("guestAcceleratorCount") or 0) for card in cards),
    )


def examine(
    project: Project, settings: GcpCloud, images: Images, pools: Sequence[Pool]
) -> Iterator[Finding]:
    """Findings about the things that launches of these pools name."""
    for choice in dict.fromkeys(pool.image for pool in pools):
        subject = "image" if choice is None else f"image {choice.id or choice.name or 'by tags'}"
        expected = "an image that the account may use"
        yield from _CHECKS.at(subject, expected, partial(_image, images, choice))
    if settings.subnetwork is not None:
        path = subnetwork_path(settings)
        expected = f"a subnetwork of region {settings.region}"
        yield from _CHECKS.at(
            "subnetwork", expected, lambda: _subnetwork(project, path),
            spared="launches need no right to read it",
        )  # fmt: skip
    yield from _CHECKS.at(
        "types", "types that a zone has", lambda: _types(project, settings, pools)
    )
    yield from _CHECKS.at(
        "quota", "quotas of the region", lambda: _quotas(project, settings, pools)
    )


def _image(images: Images, choice: ImageChoice | None) -> str:
    image = images.of(choice)
    return f"{image['name']} ({image['status']})"


def _subnetwork(project: Project, path: str) -> str:
    record = project.call("GET", path)
    with translated(project.name):
        private = "with" if record.get("privateIpGoogleAccess") else "without"
        return f"{record['ipCidrRange']}, {private} Private Google Access"


def _types(project: Project, settings: GcpCloud, pools: Sequence[Pool]) -> Iterator[Finding]:
    names = dict.fromkeys(n for pool in pools for n in pool.instance_types or settings.types)
    for name in (n for n in names if n in settings.types):
        found = [machine_type(project, zone, name) for zone in settings.zones]
        known = next((kind for kind in found if kind is not None), None)
        kind = settings.types[name]
        if known is None:
            yield Finding.wrong(
                f"type {name}", "no zone has it", "a machine type of Google's",
                f"gcloud compute machine-types list --zones {settings.zones[0]}",
            )  # fmt: skip
        elif known.cpus < kind.cpus or known.memory < kind.memory:
            yield Finding.wrong(
                f"type {name}", f"{known.cpus} vCPUs and {known.memory} MiB",
                f"at least {kind.cpus} CPUs and {kind.memory} MiB, as configured",
                "correct `cpus` and `memory` of the type",
            )  # fmt: skip
        else:
            zones = [z for z, k in zip(settings.zones, found, strict=True) if k is not None]
            yield Finding.ok(f"type {name}", f"in {', '.join(zones)}")


def _quotas(project: Project, settings: GcpCloud, pools: Sequence[Pool]) -> Iterator[Finding]:
    region = project.call("GET", f"regions/{quote(settings.region)}")
    with translated(project.name):
        quotas = {
            str(q["metric"]): (float(q["limit"]), float(q["usage"])) for q in region["quotas"]
        }
    sizes = {name: float(kind.cpus) for name, kind in settings.types.items()}
    for metric, markets in _markets_of_quotas(quotas).items():
        users = [pool for pool in pools if markets & set(pool.markets)]
        if not users or metric not in quotas:
            continue
        limit, used = quotas[metric]
        bounds = preflight.demand_bounds(users, sizes, None)
        # Our own machines are among those that use it, so a doubt here may be too careful.
        yield preflight.quota(
            f"quota {metric}", limit, "vCPUs", used, bounds,
            "ask Google for a higher quota of the region: IAM & Admin, Quotas",
        )  # fmt: skip


def _markets_of_quotas(
    quotas: Mapping[str, tuple[float, float]],
) -> Mapping[str, frozenset[Market]]:
    """The markets whose machines use each quota. A project that never asked for the quota of spot
    machines has a limit of 0, and its spot machines use the quota of all others.
    """
    limit, _ = quotas.get(_SPOT, (0.0, 0.0))
    if not limit:
        return {_ALL: frozenset({Market.ON_DEMAND, Market.SPOT})}
    return {_ALL: frozenset({Market.ON_DEMAND}), _SPOT: frozenset({Market.SPOT})}
