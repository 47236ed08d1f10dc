"""Oned's word on the things that a launch needs, before one fails for the lack of them."""

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
from slurm_elastic.providers.base.preflight import Look, demand_bounds, quota
from slurm_elastic.providers.opennebula import capacity, images, requests
from slurm_elastic.providers.opennebula.convert import Vm
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud

Call = Callable[..., Any]
"""``call(method, *arguments)``, translated."""
Template = Mapping[str, Any]
TRIED = (6, 10)
"""The oldest release that answers as this client expects (see docs/opennebula.md)."""
_UNITS = {"VMS": "machines", "CPU": "cpus", "MEMORY": "MiB", "RUNNING_VMS": "machines",
          "RUNNING_CPU": "cpus", "RUNNING_MEMORY": "MiB"}  # fmt: skip
"""The quotas that pools are held against; the others are told by each offer's room."""
STUCK_S = 900.0
"""Seconds for which a machine may boot before ``doctor`` names it; hypervisors take seconds."""
LOOK = Look(
    "`slurm-elastic iam render opennebula` has the rights that it needs",
    "correct the number or name in the configuration",
)


def examine(
    call: Call,
    settings: OpenNebulaCloud,
    chosen: images.Images,
    pools: Sequence[Pool],
    machines: Callable[[], Sequence[Vm]],
    now: float,
) -> Iterator[Finding]:
    """All findings; a call that is refused is one. ``machines`` lists ours."""
    yield from LOOK.at("OpenNebula", "its version", lambda: _version(call))
    templates: dict[str, Template] = {}
    for name, kind in settings.types.items():
        what = f"template {kind.template} of type {name}"
        look = partial(_template, call, what, name, kind, templates)
        yield from LOOK.at(what, "a VM template that the account may use", look)
    yield from _disks(call, templates)
    for pool in pools:
        if pool.image is not None:
            what, expected = f"image of pool {pool.name}", f"one image with {wanted(pool.image)}"
            yield from LOOK.at(what, expected, partial(_chosen, call, chosen, what, pool))
    needs = {name: need for name, t in templates.items() if (need := capacity.need(t)) is not None}
    yield from LOOK.at(
        "quotas", "the account's own record",
        lambda: _quotas(call, settings, pools, needs, machines),
    )  # fmt: skip
    yield from LOOK.at(
        "use of quotas", "what the account's machines take", lambda: _stale_quotas(call)
    )
    yield from LOOK.at("machines", "a list", lambda: _stuck(machines(), now))
    yield from LOOK.at("hosts", "a list, if an empty one", lambda: _hosts(call, needs))


def _version(call: Call) -> Iterator[Finding]:
    found = f"version {(version := str(call('system.version')))}"
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) >= TRIED:
        yield Finding.ok("OpenNebula", found)
        return
    expected = "6.10 or later: older ones have not been tried"
    advice = "upgrade, or rehearse a launch before users do"
    yield Finding.note("OpenNebula", found, expected, advice)


def _template(
    call: Call, what: str, name: str, kind: OneTemplate, templates: dict[str, Template]
) -> Iterator[Finding]:
    """One that can be read is put among the ``templates``."""
    record = call("template.info", kind.template)
    template = {**(record.TEMPLATE or {}), **(requests.size(kind) if kind.resize else {})}
    templates[name] = template
    need = capacity.need(template)
    if need is None:
        found = f"{record.NAME}, without CPU and MEMORY in plain numbers"
        advice = "give it both, or set resize: room cannot be looked up without them"
        yield Finding.note(what, found, advice=advice)
    elif need.memory < kind.memory or _vcpus(template) < kind.cpus:
        found = f"{record.NAME}, with {_vcpus(template):g} vcpus and {need.memory:g} MiB"
        expected = f"{kind.cpus} and {kind.memory}, as the settings say of {name}"
        advice = "correct clouds[].types or the template, or set resize"
        yield Finding.wrong(what, found, expected, advice)
    else:
        yield Finding.ok(what, str(record.NAME))


def _vcpus(template: Template) -> float:
    """Oned gives a machine one where the template does not say."""
    try:
        return float(template.get("VCPU") or 1)
    except (TypeError, ValueError):
        return float("inf")  # an expression of the site's own


def _disks(call: Call, templates: Mapping[str, Template]) -> Iterator[Finding]:
    """The images that templates name by id; those named otherwise are looked up by oned."""
    users: dict[int, list[str]] = {}
    for name, template in templates.items():
        for number in requests.image_ids(template):
            users.setdefault(number, []).append(name)
    for number, names in users.items():
        yield from _image(call, f"image {number} of type {', '.join(names)}", number)


def _image(call: Call, what: str, number: int) -> Iterator[Finding]:
    def look() -> Iterator[Finding]:
        found = images.image(call("image.info", number))
        # A template may well name a data disk, too: its type does not matter.
        if not found.broken:
            yield Finding.ok(what, found.candidate.name)
            return
        advice = f"look at it (`oneimage show {number}`), or name another one"
        told = f"{found.candidate.name} {found.broken}"
        yield Finding.wrong(what, told, "READY or USED, and not persistent", advice)

    yield from LOOK.at(what, "an image that the account may use", look)


def _chosen(call: Call, chosen: images.Images, what: str, pool: Pool) -> Iterator[Finding]:
    number = chosen.of(pool)
    if number is not None:
        yield from _image(call, what, number)


def _quotas(
    call: Call,
    settings: OpenNebulaCloud,
    pools: Sequence[Pool],
    needs: Mapping[str, capacity.Need],
    machines: Callable[[], Sequence[Vm]],
) -> Iterator[Finding]:
    """The account's own, beside what the pools could ask for; what its other machines use is left
    out. A group's quota can only be met.
    """
    user = call("user.info", -1)
    ours = [k for v in machines() if (k := v.tags.get(TYPE, "")) in needs]
    found = [q for q in capacity.quotas(user) if q.key in _UNITS]
    if not found:
        yield Finding.ok("quotas", "the account has none of its own")
    for one in found:
        parts = {name: capacity.plain_parts(need)[one.key] for name, need in needs.items()}
        yield quota(
            f"quota of {one.key}",
            one.limit,
            _UNITS[one.key],
            max(one.used - sum(parts[name] for name in ours), 0.0),
            demand_bounds(pools, parts, settings.limits.nodes),
            "have an administrator raise it (oneuser quota)",
        )


def _stale_quotas(call: Call) -> Iterator[Finding]:
    """Quotas that count more than the account's machines take: oned that was killed may leave
    them so, and then refuses machines for which there is room.
    """
    before = capacity.quotas(call("user.info", -1))
    user = call("user.info", -1) if before else None
    if user is None:
        return
    records = [r for r in call("vmpool.info", capacity.ALL, -1, -1, -1).VM
               if int(r.UID) == int(user.ID)]  # fmt: skip
    needs = [capacity.need(r.TEMPLATE or {}) for r in records]
    # Read again after the list: a machine that starts or ends in between counts in one of both.
    after = {q.key: q.used for q in capacity.quotas(call("user.info", -1))}
    for one in before:
        if one.key not in ("VMS", "CPU", "MEMORY") or None in needs:
            continue
        there = sum(capacity.plain_parts(need)[one.key] for need in needs if need)
        counted = min(one.used, after.get(one.key, 0.0))
        if counted > there + 1e-6:
            yield Finding.wrong(
                f"use of quota {one.key}",
                f"oned counts {counted:g} {_UNITS[one.key]}, the account's machines take {there:g}",
                "the same: oned refuses machines for which there is room",
                "have an administrator stop oned and run `onedb fsck`",
            )


def _stuck(machines: Sequence[Vm], now: float) -> Iterator[Finding]:
    """Machines that stay in BOOT, as after a kill of oned in the midst of a deployment: oned
    refuses to end them.
    """
    for one in machines:
        since = one.started if one.deployed is None else one.deployed
        if one.boots and now - since > STUCK_S:
            yield Finding.wrong(
                f"machine {one.id}",
                f"in BOOT for {brief(now - since)}, and oned refuses to end it",
                "RUNNING within minutes",
                f"have an administrator run `onevm recover --failure {one.id}`; it is ended then",
            )


def _hosts(call: Call, needs: Mapping[str, capacity.Need]) -> Iterator[Finding]:
    hosts = call("hostpool.info").HOST
    if not hosts:
        found = "not shown to this account: that they are full is only known when a machine waits"
        yield Finding.ok("hosts", found)
    for name, need in needs.items() if hosts else ():
        what = f"hosts for type {name}"
        whole = capacity.host_room(hosts, need, empty=True)
        if not whole:
            found = "none that is up is large enough, even if it were empty"
            advice = "a smaller type, or look at the hosts (`onehost list`)"
            yield Finding.wrong(what, found, "a host that one machine fits on", advice)
            continue
        now = capacity.host_room(hosts, need)
        found = f"room for {now or 0} now, for {whole} if nothing else were there"
        if now:
            yield Finding.ok(what, found)
        else:
            yield Finding.note(what, found, advice="jobs go elsewhere meanwhile, or wait")
