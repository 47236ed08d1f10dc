"""Checks with Azure that the things which a launch needs exist, before a launch fails without
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.azure.client import COMPUTE, GALLERIES, NETWORK, SIZES, ArmApi
from slurm_elastic.providers.azure.errors import translated
from slurm_elastic.providers.azure.requests import image_of
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.preflight import CheckRunner, demand_bounds, quota
from slurm_elastic.providers.base.tags import CLUSTER

LOCKS = "2020-05-01"
CHECKS = CheckRunner(
    "`slurm-elastic iam render azure` has the rights that it needs",
    "correct the key in clouds[]",
)
_SPOT_QUOTA = "lowPriorityCores"
_QUOTA_ADVICE = "ask for more in the portal: Subscriptions, Usage + quotas"


def examine(api: ArmApi, settings: AzureCloud, pools: Sequence[Pool]) -> Iterator[Finding]:
    """All findings. A refused call is a finding, too."""
    group = f"resource group {settings.resource_group}"
    yield from CHECKS.at(
        group,
        "a group that we may read",
        lambda: _parsed(settings, _group(api, settings, group)),
    )
    yield from CHECKS.at(
        "locks",
        "no lock",
        lambda: _parsed(settings, _locks(api, settings)),
        "the role lacks locks/read; see the page",
    )
    for image in dict.fromkeys((settings.image, *(image_of(settings, pool) for pool in pools))):
        yield from CHECKS.at(
            f"image {image}",
            "an image that we may use",
            partial(_parsed, settings, _image(api, settings, image)),
        )
    yield from CHECKS.at(
        "subnet",
        "a subnet that we may use",
        lambda: _parsed(settings, _subnet(api, settings)),
    )
    yield from CHECKS.at(
        "sizes",
        "the right to list them",
        lambda: _parsed(settings, _sizes(api, settings, pools)),
    )


def _parsed(settings: AzureCloud, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings. An answer that makes no sense is one of our errors."""
    with translated(settings.name, "GET", settings.group_path):
        yield from findings


def _group(api: ArmApi, settings: AzureCloud, subject: str) -> Iterator[Finding]:
    """Whether the group has machines of others, which would share its limits and its locks."""
    path = f"{settings.group_path}/providers/Microsoft.Compute/virtualMachines"
    foreign = [str(vm["name"]) for vm in api.listed(path, COMPUTE)
               if CLUSTER not in (vm.get("tags") or {})]  # fmt: skip
    if not foreign:
        yield Finding.ok(subject, "it has no machines of others")
        return
    advice = "they are never touched; move them, or choose another group"
    found = f"machines without our tags: {', '.join(sorted(foreign)[:3])}"
    yield Finding.note(subject, found, "a group for slurm-elastic alone", advice)


def _locks(api: ArmApi, settings: AzureCloud) -> Iterator[Finding]:
    path = f"{settings.group_path}/providers/Microsoft.Authorization/locks"
    levels = {
        str(lock["name"]): str(lock["properties"]["level"]) for lock in api.listed(path, LOCKS)
    }
    if not levels:
        yield Finding.ok("locks", "none")
    for name, level in levels.items():
        advice = "remove it: no machine could be ended, and each would cost for ever"
        yield Finding.wrong(f"lock {name}", level, "no lock on the group", advice)


def _image(api: ArmApi, settings: AzureCloud, image: str) -> Iterator[Finding]:
    subject = f"image {image}"
    if image.startswith("/"):
        version = GALLERIES if "/galleries/" in image.lower() else COMPUTE
        api.call("GET", image, version)
        yield Finding.ok(subject, "there")
        return
    publisher, offer, sku, version = image.split(":")
    path = (
        f"/subscriptions/{settings.subscription}/providers/Microsoft.Compute/locations/"
        f"{settings.region}/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{sku}"
        "/versions"
    )
    content = api.call("GET", path if version == "latest" else f"{path}/{version}", COMPUTE).content
    if content:
        yield Finding.ok(subject, "there")
        return
    advice = "`az vm image list --all --offer OFFER` has the images of an offer"
    yield Finding.wrong(subject, "the sku has no version", "one version at least", advice)


def _subnet(api: ArmApi, settings: AzureCloud) -> Iterator[Finding]:
    properties = api.call("GET", settings.subnet, NETWORK).content.get("properties") or {}
    prefixes = properties.get("addressPrefixes") or [properties.get("addressPrefix")]
    yield Finding.ok("subnet", f"there, {', '.join(str(prefix) for prefix in prefixes)}")


def _sizes(api: ArmApi, settings: AzureCloud, pools: Sequence[Pool]) -> Iterator[Finding]:
    path = f"/subscriptions/{settings.subscription}/providers/Microsoft.Compute/skus"
    query = {"$filter": f"location eq '{settings.region}'"}
    records = list(api.listed(path, SIZES, query))
    known = {str(r["name"]): r for r in records if r.get("resourceType") == "virtualMachines"}
    for name in settings.types:
        if name not in known:
            advice = "`az vm list-skus` has the sizes of the region"
            yield Finding.wrong(f"size {name}", "not in the region", "a size of it", advice)
        elif reasons := _restrictions(known[name], settings):
            advice = "ask Azure for access to it, or use another size or zone"
            yield Finding.wrong(f"size {name}", reasons, "no restriction", advice)
        else:
            yield _capabilities(name, known[name], settings)
    yield from _quotas(api, settings, pools, known)


def _restrictions(record: Mapping[str, Any], settings: AzureCloud) -> str:
    """Why the subscription may not use the size in the region or in all configured zones."""
    for restriction in record.get("restrictions") or ():
        reason = str(restriction.get("reasonCode"))
        if restriction.get("type") == "Location":
            return reason
        zones = set((restriction.get("restrictionInfo") or {}).get("zones") or ())
        if settings.zones and zones >= set(settings.zones):
            return f"{reason} in zones {', '.join(sorted(zones))}"
    return ""


def _capabilities(name: str, record: Mapping[str, Any], settings: AzureCloud) -> Finding:
    values = {str(c["name"]): str(c["value"]) for c in record.get("capabilities") or ()}
    kind, subject = settings.types[name], f"size {name}"
    cpus, memory = _vcpus(values), float(values.get("MemoryGB") or 0) * 1024
    if cpus and kind.cpus > cpus:
        return Finding.wrong(subject, f"{cpus} vCPUs", f"{kind.cpus}", "correct clouds[].types")
    if memory and kind.memory > memory:
        expected = f"{kind.memory} MiB"
        return Finding.wrong(subject, f"{memory:.0f} MiB", expected, "correct clouds[].types")
    return Finding.ok(subject, f"{cpus} vCPUs, {memory:.0f} MiB")


def _vcpus(values: Mapping[str, str]) -> int:
    text = values.get("vCPUs", "")
    return int(text) if text.isdecimal() else 0


def _quotas(
    api: ArmApi, settings: AzureCloud, pools: Sequence[Pool], known: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """The cores that the subscription may use in the region: in total, by family, and as spot."""
    path = (
        f"/subscriptions/{settings.subscription}/providers/Microsoft.Compute/locations/"
        f"{settings.region}/usages"
    )
    families = {name: str(known[name].get("family")) for name in settings.types if name in known}
    spot_pools = [pool for pool in pools if Market.SPOT in pool.markets]
    steady_pools = [pool for pool in pools if set(pool.markets) - {Market.SPOT}]
    for usage in api.listed(path, COMPUTE):
        name = str(usage["name"]["value"])
        is_spot = name == _SPOT_QUOTA
        if not (is_spot or name == "cores" or name in families.values()):
            continue
        cpus = {
            type_: float(kind.cpus)
            for type_, kind in settings.types.items()
            if is_spot or name in ("cores", families.get(type_))
        }
        users = spot_pools if is_spot else steady_pools
        bounds = demand_bounds(users, cpus, settings.limits.nodes)
        if bounds[1]:
            subject = f"quota of {usage['name'].get('localizedValue') or name}"
            # The use of our own machines counts as others', so the finding is on the safe side.
            used, limit = float(usage["currentValue"]), float(usage["limit"])
            yield quota(subject, limit, "cores", used, bounds, _QUOTA_ADVICE)
