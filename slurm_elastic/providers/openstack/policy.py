"""Builds the access rules that limit an application credential to the calls that the configuration
needs.

keystonemiddleware compares service type, method and path (``*`` is one part of the path). It sees
neither body nor query of a request. A request without a matching rule is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from slurm_elastic.config.grants import Grant, GrantUse, Holder
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.base.preflight import demand_bounds
from slurm_elastic.providers.openstack.catalog import is_uuid
from slurm_elastic.providers.openstack.settings import NETWORK_WORDS, OpenStackCloud

COMPUTE, IMAGE, NETWORK, IDENTITY = "compute", "image", "network", "identity"
_ROOTS = {COMPUTE: "/v2.1", IMAGE: "/v2", NETWORK: "/v2.0", IDENTITY: "/v3"}
Rule = tuple[str, str, str]
"""Service type, method, and path below the version."""


def grant(settings: OpenStackCloud, use: GrantUse, holder: Holder) -> Grant:
    """Access rules as JSON. See ``CloudKind.grant``."""
    rules = _images() if holder is Holder.IMAGES else _watchdog()
    if holder is Holder.SERVICES:
        rules = _services(settings, use)
    elif holder is Holder.MAKE:
        rules = _making()
    document = [
        {"service": service, "method": method, "path": f"{_ROOTS[service]}{path}"}
        for service, method, path in sorted(set(rules))
    ]
    command = (
        f"openstack application credential create --access-rules FILE "
        f"slurm-elastic-{holder.value}   # as the project's user"
    )
    notes = [
        command,
        (
            "where an endpoint has a path before its version (http://cloud/compute/v2.1), write "
            "that path before those of its rules"
        ),
        (
            "nova, glance and neutron refuse such credentials unless their [keystone_authtoken] "
            "names their service_type"
        ),
    ]
    if holder is Holder.SERVICES:
        notes += _counts(settings, use.pools)
    return Grant(text=json.dumps(document, indent=2), notes=tuple(notes))


def _watchdog() -> Iterator[Rule]:
    yield COMPUTE, "GET", "/servers/detail"
    yield COMPUTE, "GET", "/servers/*"  # to read why a start failed
    yield COMPUTE, "DELETE", "/servers/*"


def _images() -> Iterator[Rule]:
    """Rules for ``image upload`` and ``image list``."""
    for method in ("DELETE", "GET", "PATCH"):
        yield IMAGE, method, "/images/*"
    for method in ("GET", "POST"):
        yield IMAGE, method, "/images"
    yield IMAGE, "PUT", "/images/*/file"


def _making() -> Iterator[Rule]:
    """Rules for ``init --make`` and ``--unmake``."""
    for kind in ("networks", "subnets", "routers", "security-groups"):
        yield NETWORK, "GET", f"/{kind}"
        yield NETWORK, "POST", f"/{kind}"
        yield NETWORK, "DELETE", f"/{kind}/*"
    yield NETWORK, "GET", "/ports"
    yield NETWORK, "GET", "/security-groups/*"
    yield NETWORK, "POST", "/security-group-rules"
    yield NETWORK, "DELETE", "/security-group-rules/*"
    yield NETWORK, "PUT", "/routers/*/add_router_interface"
    yield NETWORK, "PUT", "/routers/*/remove_router_interface"
    yield COMPUTE, "GET", "/os-keypairs"
    yield COMPUTE, "POST", "/os-keypairs"
    yield COMPUTE, "DELETE", "/os-keypairs/*"
    yield COMPUTE, "GET", "/servers/detail"


def _services(settings: OpenStackCloud, use: GrantUse) -> Iterator[Rule]:
    yield from _watchdog()
    # To read when this credential itself ends. Keystone shows it to its own user alone.
    yield IDENTITY, "GET", "/users/*/application_credentials/*"
    for path in ("/flavors/detail", "/limits", "/servers"):
        yield COMPUTE, "GET", path
    yield COMPUTE, "POST", "/servers"
    if use.console or any(pool.stopped for pool in use.pools):
        yield COMPUTE, "POST", "/servers/*/action"
    if settings.key_name is not None:
        yield COMPUTE, "GET", "/os-keypairs/*"
    if settings.zones:
        yield COMPUTE, "GET", "/os-availability-zone"
    yield IMAGE, "GET", "/images/*"
    if _needs_image_list(settings, use.pools):
        yield IMAGE, "GET", "/images"
    if settings.networks and settings.networks[0] not in NETWORK_WORDS:
        ids = [is_uuid(name) for name in settings.networks]
        if any(ids):
            yield NETWORK, "GET", "/networks/*"
        if not all(ids):
            yield NETWORK, "GET", "/networks"
    if settings.security_groups:
        yield NETWORK, "GET", "/security-groups"


def _needs_image_list(settings: OpenStackCloud, pools: Sequence[Pool]) -> bool:
    """Whether some image is not given by its id. Doctor always reads the general image."""
    names = [pool.image.id if pool.image is not None else settings.image for pool in pools]
    return not all(name and is_uuid(name) for name in (settings.image, *names))


def _counts(settings: OpenStackCloud, pools: Sequence[Pool]) -> Iterator[str]:
    """The quotas that the project needs, as far as the configuration shows them."""
    kinds, options = settings.types, []
    for option, sizes in (
        ("instances", dict.fromkeys(kinds, 1)),
        ("cores", {name: kind.cpus for name, kind in kinds.items()}),
        ("ram", {name: kind.memory for name, kind in kinds.items()}),
    ):
        options.append(f"--{option} {demand_bounds(pools, sizes, settings.limits.nodes)[1]:.0f}")
    yield (
        "rules bound no counts: have an administrator set `openstack quota set "
        f"{' '.join(options)} PROJECT`"
    )
    yield "POST /servers takes any flavor and image: keep those of others private to their projects"
