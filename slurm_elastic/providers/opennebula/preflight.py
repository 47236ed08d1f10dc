"""Checks with oned that the things which a launch needs exist, before a launch fails
without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from slurm_elastic.base.units import brief
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.launch.images import wanted
from slurm_elastic.providers.base.machine_tags import TYPE
from slurm_elastic.providers.base.preflight import CheckRunner, demand_bounds, quota
from slurm_elastic.providers.opennebula import capacity, images, requests
from slurm_elastic.providers.opennebula.convert import VmFields
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud

Call = Callable[..., Any]
"""``call(method, *arguments)``, with errors translated."""
Template = Mapping[str, Any]
OLDEST_TESTED = (6, 10)
"""The oldest release that gives the answers which this client expects (see docs/opennebula.md)."""
_UNITS = {"VMS": "machines", "CPU": "cpus", "MEMORY": "MiB", "RUNNING_VMS": "machines",
          "RUNNING_CPU": "cpus", "RUNNING_MEMORY": "MiB"}  # fmt: skip
"""These quotas are compared with the demand of pools. The others show in each offer's room."""
STUCK_S = 900.0
"""A machine that boots for so long is reported by ``doctor``. Hypervisors take seconds."""
CHECKS = CheckRunner(
    "`slurm-elastic iam render opennebula` has the rights that it needs",
    "correct the number or name in the configuration",
)


def examine(
    call: Call,
    settings: OpenNebulaCloud,
    chosen: images.OneImageList,
    pools: Sequence[Pool],
    machines: Callable[[], Sequence[VmFields]],
    now: float,
) -> Iterator[Finding]:
    """All findings. A refused call is a finding, too. ``machines`` lists our machines."""
    yield from CHECKS.at("OpenNebula", "its version", lambda: _version(call))
    templates: dict[str, Template] = {}
    for name, kind in settings.types.items():
        subject = f"template {kind.template} of type {name}"
        look = partial(_template, call, subject, name, kind, templates)
        yield from CHECKS.at(subject, "a VM template that the account may use", look)
    yield from _disks(call, templates)
    for pool in pools:
        if pool.image is not None:
            subject, expected = f"image of pool {pool.name}", f"one image with {wanted(pool.image)}"
            yield from CHECKS.at(subject, expected, partial(_chosen, call, chosen, subject, pool))
    needs = {name: need for name, t in templates.items() if (need := capacity.need(t)) is not None}
    yield from CHECKS.at(
        "quotas", "the account's own record",
        lambda: _quotas(call, settings, pools, needs, machines),
    )  # fmt: skip
    yield from CHECKS.at(
        "use of quotas", "what the account's machines take", lambda: _stale_quotas(call)
    )
    yield from CHECKS.at("machines", "a list", lambda: _stuck(machines(), now))
    yield from CHECKS.at("hosts", "a list, if an empty one", lambda: _hosts(call, needs))


def _version(call: Call) -> Iterator[Finding]:
    finding = f"version {(version := str(call('system.version')))}"
    # As numbers: as text 6.10 would be before 6.4.
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) >= OLDEST_TESTED:
        yield Finding.ok("OpenNebula", finding)
        return
    expected = "6.10 or later: older ones have not been tried"
    advice = "upgrade, or rehearse a launch before users do"
    yield Finding.note("OpenNebula", finding, expected, advice)


def _template(
    call: Call, subject: str, name: str, kind: OneTemplate, templates: dict[str, Template]
) -> Iterator[Finding]:
    """Findings about one template. A readable template is added to ``templates``."""
    record = call("template.info", kind.template)
    template = {**(record.TEMPLATE or {}), **(requests.size(kind) if kind.resize else {})}
    templates[name] = template
    yield from _tokens(subject, template)
    need = capacity.need(template)
    if need is None:
        finding = f"{record.NAME}, without CPU and MEMORY in plain numbers"
        advice = "give it both, or set resize: room cannot be looked up without them"
        yield Finding.note(subject, finding, advice=advice)
    elif need.memory < kind.memory or _vcpus(template) < kind.cpus:
        finding = f"{record.NAME}, with {_vcpus(template):g} vcpus and {need.memory:g} MiB"
        expected = f"{kind.cpus} and {kind.memory}, as the settings say of {name}"
        advice = "correct clouds[].types or the template, or set resize"
        yield Finding.wrong(subject, finding, expected, advice)
    else:
        yield Finding.ok(subject, str(record.NAME))


def _tokens(subject: str, template: Template) -> Iterator[Finding]:
    """Whether machines of the template would get a token of OneGate."""
    wish = str((template.get("CONTEXT") or {}).get("TOKEN") or "NO").upper()
    if wish != "NO":
        yield Finding.note(
            f"context of {subject}",
            f"TOKEN={wish}",
            "no TOKEN: by OneGate a job could end or change its machine",
            "take it out of the template: slurm-elastic starts machines with TOKEN=NO",
        )


def _vcpus(template: Template) -> float:
    """The vCPUs of a template; oned uses 1 if the template does not say."""
    try:
        return float(template.get("VCPU") or 1)
    except (TypeError, ValueError):
        return float("inf")  # a site's own expression: it may be anything


def _disks(call: Call, templates: Mapping[str, Template]) -> Iterator[Finding]:
    """Findings about the images that templates name by id. oned itself resolves images given by
    name.
    """
    users: dict[int, list[str]] = {}
    for name, template in templates.items():
        for number in requests.image_ids(template):
            users.setdefault(number, []).append(name)
    for number, names in users.items():
        yield from _image(call, f"image {number} of type {', '.join(names)}", number)


def _image(call: Call, subject: str, number: int) -> Iterator[Finding]:
    def look() -> Iterator[Finding]:
        parsed = images.image(call("image.info", number))
        # The image may be a data disk of the template, so its type does not matter.
        if not parsed.broken:
            yield Finding.ok(subject, parsed.candidate.name)
            return
        advice = f"look at it (`oneimage show {number}`), or name another one"
        finding = f"{parsed.candidate.name} {parsed.broken}"
        yield Finding.wrong(subject, finding, "READY or USED, and not persistent", advice)

    yield from CHECKS.at(subject, "an image that the account may use", look)


def _chosen(call: Call, chosen: images.OneImageList, subject: str, pool: Pool) -> Iterator[Finding]:
    number = chosen.of(pool)
    if number is not None:
        yield from _image(call, subject, number)


def _quotas(
    call: Call,
    settings: OpenNebulaCloud,
    pools: Sequence[Pool],
    needs: Mapping[str, capacity.Need],
    machines: Callable[[], Sequence[VmFields]],
) -> Iterator[Finding]:
    """The account's own quotas, compared with the demand of the pools. The use of the account's
    other machines counts. A group's quota shows only when a launch meets it.
    """
    user = call("user.info", -1)
    own_types = [k for v in machines() if (k := v.tags.get(TYPE, "")) in needs]
    quotas_found = [q for q in capacity.quotas(user) if q.key in _UNITS]
    if not quotas_found:
        yield Finding.ok("quotas", "the account has none of its own")
    for account_quota in quotas_found:
        shares = {
            name: capacity.plain_parts(need)[account_quota.key] for name, need in needs.items()
        }
        yield quota(
            f"quota of {account_quota.key}",
            account_quota.limit,
            _UNITS[account_quota.key],
            max(account_quota.used - sum(shares[name] for name in own_types), 0.0),
            demand_bounds(pools, shares, settings.limits.nodes),
            "have an administrator raise it (oneuser quota)",
        )


def _stale_quotas(call: Call) -> Iterator[Finding]:
    """Quotas that count more than the account's machines use. A killed oned may leave them so. It
    then refuses machines although there is room.
    """
    before = capacity.quotas(call("user.info", -1))
    user = call("user.info", -1) if before else None
    if user is None:
        return
    records = [r for r in call("vmpool.info", capacity.ALL, -1, -1, -1).VM
               if int(r.UID) == int(user.ID)]  # fmt: skip
    needs = [capacity.need(r.TEMPLATE or {}) for r in records]
    # The quotas are read before and after the listing, and the smaller value is used. So a machine
    # that starts or ends in between causes no finding.
    after = {q.key: q.used for q in capacity.quotas(call("user.info", -1))}
    for used_quota in before:
        if used_quota.key not in ("VMS", "CPU", "MEMORY") or None in needs:
            continue
        in_use = sum(capacity.plain_parts(need)[used_quota.key] for need in needs if need)
        counted = min(used_quota.used, after.get(used_quota.key, 0.0))
        # CPU is a float in oned.
        if counted > in_use + 1e-6:
            yield Finding.wrong(
                f"use of quota {used_quota.key}",
                f"oned counts {counted:g} {_UNITS[used_quota.key]}, "
                f"the account's machines take {in_use:g}",
                "the same: oned refuses machines for which there is room",
                "have an administrator stop oned and run `onedb fsck`",
            )


def _stuck(machines: Sequence[VmFields], now: float) -> Iterator[Finding]:
    """Machines that stay in BOOT, for example because oned was killed during a deployment. oned
    refuses to end them.
    """
    for machine in machines:
        boot_began = machine.started if machine.deployed is None else machine.deployed
        if machine.boots and now - boot_began > STUCK_S:
            yield Finding.wrong(
                f"machine {machine.id}",
                f"in BOOT for {brief(now - boot_began)}, and oned refuses to end it",
                "RUNNING within minutes",
                f"have an administrator run `onevm recover --failure {machine.id}`; "
                "it is ended then",
            )


def _hosts(call: Call, needs: Mapping[str, capacity.Need]) -> Iterator[Finding]:
    hosts = call("hostpool.info").HOST
    if not hosts:
        finding = "not shown to this account: that they are full is only known when a machine waits"
        yield Finding.ok("hosts", finding)
    for name, need in needs.items() if hosts else ():
        subject = f"hosts for type {name}"
        empty_room = capacity.host_room(hosts, need, empty=True)
        if not empty_room:
            finding = "no running host is large enough, even if it were empty"
            advice = "a smaller type, or look at the hosts (`onehost list`)"
            yield Finding.wrong(subject, finding, "a host that one machine fits on", advice)
            continue
        free_room = capacity.host_room(hosts, need)
        finding = f"room for {free_room or 0} now, for {empty_room} if nothing else were there"
        if free_room:
            yield Finding.ok(subject, finding)
        else:
            yield Finding.note(subject, finding, advice="until then jobs go elsewhere or wait")
