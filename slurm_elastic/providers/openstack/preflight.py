"""Checks with the project that the things which a launch needs exist, before a launch fails without
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Instance, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.launch.images import wanted
from slurm_elastic.providers.base.preflight import CheckRunner, demand_bounds, quota
from slurm_elastic.providers.openstack.capacity import LIMITS
from slurm_elastic.providers.openstack.catalog import Catalog, FlavorFound, is_uuid
from slurm_elastic.providers.openstack.requests import own_word
from slurm_elastic.providers.openstack.settings import OpenStackCloud

Call = Callable[..., Any]
"""``call(service, method, path)``, with errors translated."""
_UNITS = {"instances": "servers", "cores": "cores", "ram": "MiB of memory"}
CHECKS = CheckRunner(
    "`slurm-elastic iam render openstack` has the rights that it needs",
    "correct the name in clouds[] (`openstack ... list` has what there is)",
)


def examine(
    call: Call, settings: OpenStackCloud, catalog: Catalog, pools: Sequence[Pool]
) -> Iterator[Finding]:
    """All findings except those about the quota. A refused call is a finding, too."""
    yield from CHECKS.at("flavors", "the right to list them", lambda: _flavors(settings, catalog))
    yield from _images(call, settings, catalog, pools)
    if own_word(settings.networks):
        finding = f"none are named; the request to nova has {own_word(settings.networks)!r}"
        yield Finding.ok("networks", finding)
    else:
        for name in settings.networks:
            yield from CHECKS.at(
                f"network {name}", "one network that the project may use",
                partial(_network, call, catalog, name),
            )  # fmt: skip
    if settings.key_name is not None:
        path = f"/os-keypairs/{quote(settings.key_name, safe='')}"
        yield from CHECKS.at(
            f"key pair {settings.key_name}",
            "a key pair of the very user in clouds.yaml: others' are not seen",
            partial(call, "compute", "GET", path),
        )
    for name in settings.security_groups:
        subject, expected = f"security group {name}", "the right to list security groups"
        yield from CHECKS.at(subject, expected, partial(_group, call, subject, name))
    if settings.zones:
        yield from CHECKS.at("zones", "the right to list them", lambda: _zones(call, settings))


def _flavors(settings: OpenStackCloud, catalog: Catalog) -> Iterator[Finding]:
    unusable = catalog.unusable()
    for name, reason in unusable.items():
        kind = settings.types[name]
        expected = f"a flavor with {kind.cpus} cpus and {kind.memory} MiB at least"
        advice = "`openstack flavor list` has those of the project; name one in clouds[].types"
        yield Finding.wrong(f"flavor {kind.flavor or name}", reason, expected, advice)
    good = [name for name in settings.types if name not in unusable]
    if good:
        yield Finding.ok("flavors", f"as configured: {', '.join(good)}")


def _images(
    call: Call, settings: OpenStackCloud, catalog: Catalog, pools: Sequence[Pool]
) -> Iterator[Finding]:
    choosing_pools = [pool for pool in pools if pool.image is not None]
    default_pools = [pool for pool in pools if pool.image is None]
    checks: list[tuple[str, ImageChoice | None, Sequence[Pool]]] = [
        (f"image {settings.image}", None, default_pools)
    ]
    checks += [(f"image of pool {pool.name}", pool.image, [pool]) for pool in choosing_pools]
    for subject, choice, users in checks:
        expected = "an active image that the project may use"
        if choice is not None and choice.id is None:
            expected = f"an image with {wanted(choice)}"
        yield from CHECKS.at(
            subject, expected, partial(_image, call, catalog, subject, choice, users)
        )


def _image(
    call: Call, catalog: Catalog, subject: str, choice: ImageChoice | None, users: Sequence[Pool]
) -> Iterator[Finding]:
    """The finding about an image. ``users``: the pools that start from it."""
    record = call("image", "GET", f"/images/{quote(catalog.image(choice))}")
    flavors = [
        flavor
        for pool in users
        for name, flavor in catalog.flavors().items()
        if not pool.instance_types or name in pool.instance_types
    ]
    memory, disk = _number(record, "min_ram"), _number(record, "min_disk")
    # A flavor with a disk of 0 gets a disk as large as the image, so it always fits.
    small = sorted({f.name for f in flavors if f.ram < memory or 0 < f.disk < disk})
    if record.get("status") != "active":
        advice = "upload it again, or name another one"
        yield Finding.wrong(subject, str(record.get("status")), "active", advice)
    elif small:
        needs = f"it asks for {memory} MiB of memory and {disk} GiB of disk"
        expected = f"no more than flavor {', '.join(small)} has: nova refuses such a launch"
        advice = "a larger flavor, or lower min_ram and min_disk of the image"
        yield Finding.wrong(subject, needs, expected, advice)
    else:
        name = record.get("name") or "without a name"
        yield Finding.ok(subject, f"active, {name} ({record.get('id')})")


def _number(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    return value if isinstance(value, int) else 0


def _network(call: Call, catalog: Catalog, name: str) -> None:
    if is_uuid(name):
        call("network", "GET", f"/networks/{name}")
    else:
        catalog.network(name)


def _groups(call: Call, name: str, fields: str) -> Sequence[Mapping[str, Any]]:
    key = "id" if is_uuid(name) else "name"
    path = f"/security-groups?{key}={quote(name, safe='')}&fields={fields}"
    return list(call("network", "GET", path)["security_groups"])


def lets_udp_in(call: Call, name: str, port: int) -> bool:
    """Whether a rule of the security group lets UDP to this port in from some network."""
    rules = [rule for group in _groups(call, name, "security_group_rules")
             for rule in group["security_group_rules"]]  # fmt: skip
    return any(
        rule["direction"] == "ingress"
        and not rule.get("remote_group_id")
        and rule.get("protocol") in (None, "any", "udp", "17")
        # Without ports a rule is for all of them.
        and (rule.get("port_range_min") or 0) <= port <= (rule.get("port_range_max") or 65535)
        for rule in rules
    )


def _group(call: Call, subject: str, name: str) -> Iterator[Finding]:
    count = len(_groups(call, name, "id"))
    if count == 1:
        yield Finding.ok(subject, "there")
        return
    finding = f"{count} are called so" if count else "not there"
    advice = "name it by its id (`openstack security group list`)"
    yield Finding.wrong(subject, finding, "one of the project", advice)


def _zones(call: Call, settings: OpenStackCloud) -> Iterator[Finding]:
    records = call("compute", "GET", "/os-availability-zone")["availabilityZoneInfo"]
    available = {str(z["zoneName"]): bool(z["zoneState"]["available"]) for z in records}
    for zone in settings.zones:
        if available.get(zone, False):
            yield Finding.ok(f"zone {zone}", "available")
            continue
        finding = "not available" if zone in available else "not there"
        expected = f"one of {', '.join(z for z, is_available in available.items() if is_available)}"
        advice = "correct clouds[].zones, or ask the cloud's operators"
        yield Finding.wrong(f"zone {zone}", finding, expected, advice)


def quotas(
    settings: OpenStackCloud,
    absolute: Mapping[str, object],
    flavors: Mapping[str, FlavorFound],
    pools: Sequence[Pool],
    machines: Sequence[Instance],
) -> Iterator[Finding]:
    """The rest of the project's quota for this cloud's pools, compared with their demand.

    ``absolute`` is from ``GET /limits``. ``machines`` are ours: their use counts as the pools' own.
    """
    for name, limit_key, used_key in LIMITS:
        limit, used = absolute.get(limit_key), absolute.get(used_key)
        sizes = {t: _need(name, flavors[t]) for t in settings.types if t in flavors}
        least, demand = demand_bounds(pools, sizes, settings.limits.nodes)
        if not isinstance(limit, int) or not isinstance(used, int) or not demand:
            continue
        subject = f"quota of {name}"
        if limit < 0:
            yield Finding.ok(subject, "none is set")
            continue
        own_use = sum(_need(name, flavors[m.instance_type]) for m in machines
                   if m.instance_type in flavors)  # fmt: skip
        advice = f"have the cloud's operators raise it (openstack quota set --{name} N PROJECT)"
        yield quota(subject, limit, _UNITS[name], max(used - own_use, 0), (least, demand), advice)


def _need(name: str, flavor: FlavorFound) -> int:
    return {"instances": 1, "cores": flavor.vcpus, "ram": flavor.ram}[name]
