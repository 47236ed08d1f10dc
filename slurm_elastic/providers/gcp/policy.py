"""Builds the custom role with the least rights that the configuration needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from slurm_elastic.config.grants import Grant, GrantUse, Holder
from slurm_elastic.providers.gcp.settings import GcpCloud

_LISTS = ("compute.instances.get", "compute.instances.list", "compute.regions.get")
_ENDS = (*_LISTS, "compute.instances.delete", "compute.zoneOperations.get")
_IMAGES = (
    "compute.images.create", "compute.images.delete", "compute.images.get",
    "compute.images.getFromFamily", "compute.images.list", "compute.images.setLabels",
)  # fmt: skip


def grant(settings: GcpCloud, use: GrantUse, holder: Holder) -> Grant:
    """A role for ``gcloud iam roles create``, as JSON. See ``CloudKind.grant``."""
    rights: Sequence[str] = _ENDS
    if holder is Holder.SERVICES:
        rights = tuple(_services(settings, use))
    elif holder is Holder.IMAGES:
        rights = _IMAGES
    elif holder is Holder.MAKE:
        rights = ()
    role = {
        "title": f"slurm-elastic {holder.value}",
        "description": f"The rights that slurm-elastic uses in cloud {settings.name}.",
        "stage": "GA",
        "includedPermissions": sorted(set(rights)),
    }
    name = f"slurmElastic.{holder.value}"
    return Grant(text=json.dumps(role, indent=2), notes=tuple(_notes(settings, name, holder)))


def _services(settings: GcpCloud, use: GrantUse) -> Iterator[str]:
    yield from _ENDS
    yield from (
        "compute.instances.create", "compute.instances.setLabels", "compute.instances.setMetadata",
        "compute.disks.create", "compute.machineTypes.get", "compute.machineTypes.list",
        "compute.zoneOperations.list", "compute.images.get", "compute.images.getFromFamily",
        "compute.images.useReadOnly", "compute.subnetworks.get", "compute.subnetworks.use",
    )  # fmt: skip
    pools, has_reservations = use.pools, bool(settings.reservations)
    is_stopped = any(pool.stopped for pool in pools)
    right_uses = (
        ("compute.networks.use", settings.subnetwork is None),
        ("compute.advice.capacityHistory", settings.published_prices),
        ("compute.subnetworks.useExternalIp", settings.external_ip),
        ("compute.instances.setTags", bool(settings.network_tags)),
        ("compute.instances.setServiceAccount", settings.service_account is not None),
        ("compute.images.list", any(p.image is not None and p.image.id is None for p in pools)),
        ("compute.resourcePolicies.use", any(p.machine.placement_group for p in pools)),
        ("compute.instances.start", is_stopped),
        ("compute.instances.stop", is_stopped),
        ("compute.reservations.get", has_reservations),
        ("compute.reservations.list", has_reservations),
        ("compute.instances.getSerialPortOutput", use.console),
    )
    yield from (right for right, is_used in right_uses if is_used)


def _notes(settings: GcpCloud, name: str, holder: Holder) -> Iterator[str]:
    if holder is Holder.MAKE:
        yield "provider gcp creates no resources for a site: there is no `init --make` for it"
        return
    yield f"gcloud iam roles create {name} --project {settings.project} --file FILE"
    yield (
        f"gcloud projects add-iam-policy-binding {settings.project} "
        f"--role projects/{settings.project}/roles/{name} --member serviceAccount:ACCOUNT"
    )
    if holder is not Holder.SERVICES:
        return
    if settings.service_account is not None:
        yield (
            f"gcloud iam service-accounts add-iam-policy-binding {settings.service_account} "
            "--role roles/iam.serviceAccountUser --member serviceAccount:ACCOUNT"
        )
    for what, path in (("image", settings.image), ("subnetwork", settings.subnetwork or "")):
        owner = path.split("/")[1] if path.startswith("projects/") else settings.project
        if owner != settings.project:
            yield f"the {what} is in project {owner}: give the account the rights on it there, too"
    yield "this list was never tried on the real service: `doctor` shows what it refuses"
