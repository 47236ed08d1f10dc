"""The project's word on the things that a launch needs, before one fails for their lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.cluster import Finding, ImageChoice, Instance, Level, Pool
from slurm_elastic.policies.launch.images import wanted
from slurm_elastic.providers.base.preflight import most, refused, size
from slurm_elastic.providers.openstack.capacity import LIMITS
from slurm_elastic.providers.openstack.catalog import Catalog, FlavorFound, is_uuid
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud

Call = Callable[..., Any]
"""``call(service, method, path)``, translated."""
_UNITS = {"instances": "servers", "cores": "cores", "ram": "MiB of memory"}
_refused = partial(
    refused,
    rights="`slurm-elastic iam render openstack` has the rights that it needs",
    otherwise="correct the name in clouds[] (`openstack ... list` has what there is)",
)


def examine(
    call: Call, settings: OpenStackCloud, catalog: Catalog, pools: Sequence[Pool]
) -> Iterator[Finding]:
    """All findings but those on the quota; a call that is refused is one."""
    yield from _flavors(settings, catalog)
    yield from _images(call, settings, catalog, pools)
    yield from _networks(call, settings, catalog)
    yield from _keypair(call, settings)
    yield from _groups(call, settings)
    yield from _zones(call, settings)


def _flavors(settings: OpenStackCloud, catalog: Catalog) -> Iterator[Finding]:
    try:
        unusable = catalog.unusable()
    except ProviderError as error:
        yield _refused("flavors", error, "the right to list them")
        return
    for name, why in unusable.items():
        kind = settings.types[name]
        yield Finding(
            what=f"flavor {kind.flavor or name}",
            level=Level.WRONG,
            found=why,
            expected=f"a flavor with {kind.cpus} cpus and {kind.memory} MiB at least",
            advice="`openstack flavor list` has those of the project; name one in clouds[].types",
        )
    good = [name for name in settings.types if name not in unusable]
    if good:
        found = f"as configured: {', '.join(good)}"
        yield Finding(what="flavors", level=Level.OK, found=found)


def _images(
    call: Call, settings: OpenStackCloud, catalog: Catalog, pools: Sequence[Pool]
) -> Iterator[Finding]:
    own = [pool for pool in pools if pool.image is not None]
    others = [pool for pool in pools if pool.image is None]
    named: list[tuple[str, ImageChoice | None, Sequence[Pool]]] = [
        (f"image {settings.image}", None, others)
    ]
    named += [(f"image of pool {pool.name}", pool.image, [pool]) for pool in own]
    for what, choice, users in named:
        expected = "an active image that the project may use"
        if choice is not None and choice.id is None:
            expected = f"an image with {wanted(choice)}"
        try:
            record = call("image", "GET", f"/images/{quote(catalog.image(choice))}")
            flavors = [
                flavor
                for pool in users
                for name, flavor in catalog.flavors().items()
                if not pool.instance_types or name in pool.instance_types
            ]
        except ProviderError as error:
            yield _refused(what, error, expected)
        else:
            yield _image(what, record, flavors)


def _image(what: str, record: Mapping[str, Any], flavors: Sequence[FlavorFound]) -> Finding:
    """``flavors``: those of the pools that start from it."""
    status, memory, disk = (
        record.get("status"),
        _whole(record, "min_ram"),
        _whole(record, "min_disk"),
    )
    small = sorted({f.name for f in flavors if f.ram < memory or 0 < f.disk < disk})
    if status != "active":
        return Finding(
            what=what,
            level=Level.WRONG,
            found=str(status),
            expected="active",
            advice="upload it again, or name another one",
        )
    found = f"active, {record.get('name') or 'without a name'} ({record.get('id')})"
    if small:
        return Finding(
            what=what,
            level=Level.WRONG,
            found=f"it asks for {memory} MiB of memory and {disk} GiB of disk",
            expected=f"no more than flavor {', '.join(small)} has: nova refuses such a launch",
            advice="a larger flavor, or lower min_ram and min_disk of the image",
        )
    return Finding(what=what, level=Level.OK, found=found)


def _whole(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    return value if isinstance(value, int) else 0


def _networks(call: Call, settings: OpenStackCloud, catalog: Catalog) -> Iterator[Finding]:
    if not settings.networks or settings.networks[0] in NETWORK_WORDS:
        word = settings.networks[0] if settings.networks else "auto"
        found = f"none are named; nova is told {word!r}"
        yield Finding(what="networks", level=Level.OK, found=found)
        return
    for name in settings.networks:
        what = f"network {name}"
        try:
            if is_uuid(name):
                call("network", "GET", f"/networks/{name}")
            else:
                catalog.network(name)
        except ProviderError as error:
            yield _refused(what, error, "one network that the project may use")
        else:
            yield Finding(what=what, level=Level.OK, found="there")


def _keypair(call: Call, settings: OpenStackCloud) -> Iterator[Finding]:
    if settings.key_name is None:
        return
    what = f"key pair {settings.key_name}"
    try:
        call("compute", "GET", f"/os-keypairs/{quote(settings.key_name, safe='')}")
    except ProviderError as error:
        yield _refused(
            what, error, "a key pair of the very user in clouds.yaml: others' are not seen"
        )
    else:
        yield Finding(what=what, level=Level.OK, found="there")


def _groups(call: Call, settings: OpenStackCloud) -> Iterator[Finding]:
    for name in settings.security_groups:
        what = f"security group {name}"
        key = "id" if is_uuid(name) else "name"
        path = f"/security-groups?{key}={quote(name, safe='')}&fields=id"
        try:
            count = len(call("network", "GET", path)["security_groups"])
        except ProviderError as error:
            yield _refused(what, error, "the right to list security groups")
            continue
        if count == 1:
            yield Finding(what=what, level=Level.OK, found="there")
            continue
        yield Finding(
            what=what,
            level=Level.WRONG,
            found=f"{count} are called so" if count else "not there",
            expected="one of the project",
            advice="name it by its id (`openstack security group list`)",
        )


def _zones(call: Call, settings: OpenStackCloud) -> Iterator[Finding]:
    if not settings.zones:
        return
    try:
        records = call("compute", "GET", "/os-availability-zone")["availabilityZoneInfo"]
    except ProviderError as error:
        yield _refused("zones", error, "the right to list them")
        return
    up = {str(z["zoneName"]): bool(z["zoneState"]["available"]) for z in records}
    for zone in settings.zones:
        good = up.get(zone, False)
        yield Finding(
            what=f"zone {zone}",
            level=Level.OK if good else Level.WRONG,
            found="available" if good else ("not available" if zone in up else "not there"),
            expected="" if good else f"one of {', '.join(z for z, there in up.items() if there)}",
            advice="" if good else "correct clouds[].zones, or ask the cloud's operators",
        )


def quotas(
    settings: OpenStackCloud,
    absolute: Mapping[str, object],
    flavors: Mapping[str, FlavorFound],
    pools: Sequence[Pool],
    machines: Sequence[Instance],
) -> Iterator[Finding]:
    """The part that nova leaves this cloud's pools of the project's quota, beside what they could
    ask for.

    ``absolute`` is of ``GET /limits``; ``machines`` are ours, and what they use is the pools' own.
    """
    for name, limit_key, used_key in LIMITS:
        limit, used = absolute.get(limit_key), absolute.get(used_key)
        if not isinstance(limit, int) or not isinstance(used, int):
            continue
        sizes = {p.name: _needs(name, p, settings, flavors) for p in pools}
        known = [(max(needs), size(p)) for p in pools if (needs := sizes[p.name])]
        if not known:
            continue
        ours = sum(_need(name, flavors[m.instance_type]) for m in machines
                   if m.instance_type in flavors)  # fmt: skip
        least = min(min(needs) for needs in sizes.values() if needs)
        wish = int(most(known, settings.limits.nodes))
        yield _quota(name, limit, max(used - ours, 0), least, wish)


def _needs(
    name: str, pool: Pool, settings: OpenStackCloud, flavors: Mapping[str, FlavorFound]
) -> Sequence[int]:
    types = pool.instance_types or tuple(settings.types)
    return [_need(name, flavors[t]) for t in types if t in flavors]


def _need(name: str, flavor: FlavorFound) -> int:
    return {"instances": 1, "cores": flavor.vcpus, "ram": flavor.ram}[name]


def _quota(name: str, limit: int, others: int, least: int, wish: int) -> Finding:
    what, unit = f"quota of {name}", _UNITS[name]
    if limit < 0:
        return Finding(what=what, level=Level.OK, found="none is set")
    found = f"{limit} {unit}, of which others use {others}; the pools could ask for {wish}"
    if limit < least:
        return Finding(
            what=what,
            level=Level.WRONG,
            found=found,
            expected=f"{least} at least: not one machine can start",
            advice=f"have the cloud's operators raise it (openstack quota set --{name} N PROJECT)",
        )
    if limit - others < wish:
        return Finding(
            what=what,
            level=Level.NOTE,
            found=found,
            expected=f"{others + wish}",
            advice="have it raised, or lower the cloud's limits: jobs beyond it go elsewhere",
        )
    return Finding(what=what, level=Level.OK, found=found)
