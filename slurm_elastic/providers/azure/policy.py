"""Builds the custom role of the account, with the least actions that the configuration needs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from slurm_elastic.config.grants import Grant, GrantUse, Holder
from slurm_elastic.providers.azure.settings import AzureCloud

_COMPUTE = "Microsoft.Compute"
_NETWORK = "Microsoft.Network"
_VMS = f"{_COMPUTE}/virtualMachines"


def grant(settings: AzureCloud, use: GrantUse, holder: Holder) -> Grant:
    """A custom role as JSON. See ``CloudKind.grant``."""
    if holder in (Holder.IMAGES, Holder.MAKE):
        note = f"slurm-elastic does not do this in Azure yet ({holder.value}), so it needs no right"
        return Grant(text=json.dumps({}, indent=2), notes=(note,))
    actions = _watchdog() if holder is Holder.WATCHDOG else _services(settings, use)
    subscription = f"/subscriptions/{settings.subscription}"
    role = {
        "Name": f"slurm-elastic {holder.value} {use.cluster.name}",
        "IsCustom": True,
        "Description": "Made by slurm-elastic iam render",
        "Actions": sorted(set(actions)),
        "NotActions": [],
        "AssignableScopes": [subscription],
    }
    return Grant(text=json.dumps(role, indent=2), notes=tuple(_notes(settings, holder)))


def _watchdog() -> Iterator[str]:
    for action in ("read", "delete", "instanceView/read"):
        yield f"{_VMS}/{action}"


def _services(settings: AzureCloud, use: GrantUse) -> Iterator[str]:
    yield from _watchdog()
    yield f"{_VMS}/write"
    if any(pool.stopped for pool in use.pools):
        yield f"{_VMS}/deallocate/action"
        yield f"{_VMS}/start/action"
    for kind in (f"{_COMPUTE}/disks", f"{_NETWORK}/networkInterfaces"):
        for action in ("read", "write", "delete"):
            yield f"{kind}/{action}"
    yield f"{_NETWORK}/networkInterfaces/join/action"
    yield f"{_NETWORK}/virtualNetworks/subnets/read"
    yield f"{_NETWORK}/virtualNetworks/subnets/join/action"
    yield f"{_COMPUTE}/galleries/images/versions/read"
    # An image without ``/versions/N`` means its newest version.
    yield f"{_COMPUTE}/galleries/images/read"
    yield f"{_COMPUTE}/images/read"
    for kind in (
        "skus",
        "locations/usages",
        "locations/publishers/artifacttypes/offers/skus/versions",
    ):
        yield f"{_COMPUTE}/{kind}/read"
    yield "Microsoft.Authorization/locks/read"
    if settings.security_group:
        yield f"{_NETWORK}/networkSecurityGroups/join/action"
    if settings.machine_identity:
        yield "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
    if any(pool.machine.root_disk and pool.machine.root_disk.kms_key for pool in use.pools):
        yield f"{_COMPUTE}/diskEncryptionSets/read"


def _notes(settings: AzureCloud, holder: Holder) -> Iterator[str]:
    yield "az role definition create --role-definition FILE"
    yield (
        f"az role assignment create --assignee CLIENT_ID --role NAME --scope {settings.group_path}"
    )
    if holder is Holder.SERVICES:
        yield (
            "assign it on the subnet, the image and the subscription's sizes and quotas as well; "
            "rights to read those can also come from the role Reader"
        )
        if settings.machine_identity:
            yield (
                f"the identity of the machines needs only {_VMS}/delete on the group, to end its "
                "own machine; whoever is root on a machine can then delete each of them, and so "
                "could each job if jobs reached the metadata service (join.metadata_for_jobs)"
            )
    yield "a role bounds no counts: the quota of the subscription does"
