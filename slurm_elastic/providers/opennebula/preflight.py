"""Oned's word on the things that a launch needs, before one fails for the lack of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.cluster import Finding, Level, Limits, Pool
from slurm_elastic.policies.launch.images import wanted
from slurm_elastic.providers.base.preflight import most, refused, size
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
_refused = partial(
    refused,
    rights="`slurm-elastic iam render opennebula` has the rights that it needs",
    otherwise="correct the number or name in the configuration",
)


def examine(
    call: Call,
    settings: OpenNebulaCloud,
    chosen: images.Images,
    pools: Sequence[Pool],
    machines: Callable[[], Sequence[Vm]],
) -> Iterator[Finding]:
    """All findings; a call that is refused is one. ``machines`` lists ours."""
    yield _version(call)
    templates: dict[str, Template] = {}
    for name, kind in settings.types.items():
        found, template = _template(call, name, kind)
        yield found
        if template is not None:
            templates[name] = template
    yield from _disks(call, templates)
    yield from _chosen(call, chosen, pools)
    needs = {name: need for name, t in templates.items() if (need := capacity.need(t)) is not None}
    yield from _quotas(call, settings, pools, needs, machines)
    yield from _hosts(call, needs)


def _version(call: Call) -> Finding:
    what = "OpenNebula"
    try:
        version = str(call("system.version"))
    except ProviderError as error:
        return _refused(what, error, "its version")
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers >= TRIED:
        return Finding(what=what, level=Level.OK, found=f"version {version}")
    return Finding(
        what=what,
        level=Level.NOTE,
        found=f"version {version}",
        expected="6.10 or later: older ones have not been tried",
        advice="upgrade, or rehearse a launch before users do",
    )


def _template(call: Call, name: str, kind: OneTemplate) -> tuple[Finding, Template | None]:
    what = f"template {kind.template} of type {name}"
    try:
        record = call("template.info", kind.template)
    except ProviderError as error:
        return _refused(what, error, "a VM template that the account may use"), None
    template = {**(record.TEMPLATE or {}), **(requests.size(kind) if kind.resize else {})}
    need = capacity.need(template)
    if need is None:
        finding = Finding(
            what=what,
            level=Level.NOTE,
            found=f"{record.NAME}, without CPU and MEMORY in plain numbers",
            advice="give it both, or set resize: room cannot be looked up without them",
        )
    elif _lacks(template, need, kind):
        finding = Finding(
            what=what,
            level=Level.WRONG,
            found=f"{record.NAME}, with {_vcpus(template):g} vcpus and {need.memory:g} MiB",
            expected=f"{kind.cpus} and {kind.memory}, as the settings say of {name}",
            advice="correct clouds[].types or the template, or set resize",
        )
    else:
        finding = Finding(what=what, level=Level.OK, found=str(record.NAME))
    return finding, template


def _lacks(template: Template, need: capacity.Need, kind: OneTemplate) -> bool:
    return need.memory < kind.memory or _vcpus(template) < kind.cpus


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
        yield _image(call, f"image {number} of type {', '.join(names)}", number)


def _image(call: Call, what: str, number: int) -> Finding:
    try:
        found = images.image(call("image.info", number))
    except ProviderError as error:
        return _refused(what, error, "an image that the account may use")
    # A template may well name a data disk, too: its type does not matter.
    if found.broken:
        return Finding(
            what=what,
            level=Level.WRONG,
            found=f"{found.candidate.name} {found.broken}",
            expected="READY or USED, and not persistent",
            advice=f"look at it (`oneimage show {number}`), or name another one",
        )
    return Finding(what=what, level=Level.OK, found=found.candidate.name)


def _chosen(call: Call, chosen: images.Images, pools: Sequence[Pool]) -> Iterator[Finding]:
    for pool in pools:
        if pool.image is None:
            continue
        what = f"image of pool {pool.name}"
        try:
            number = chosen.of(pool)
        except ProviderError as error:
            yield _refused(what, error, f"one image with {wanted(pool.image)}")
            continue
        if number is not None:
            yield _image(call, what, number)


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
    try:
        user = call("user.info", -1)
        ours = [needs[k] for v in machines() if (k := v.tags.get(requests.TYPE, "")) in needs]
    except ProviderError as error:
        yield _refused("quotas", error, "the account's own record")
        return
    found = [q for q in capacity.quotas(user) if q.key in _UNITS]
    if not found:
        yield Finding(what="quotas", level=Level.OK, found="the account has none of its own")
    for quota in found:
        yield _quota(quota, pools, needs, sum(_part(quota.key, n) for n in ours), settings.limits)


def _part(key: str, need: capacity.Need) -> float:
    return capacity.plain_parts(need)[key]


def _quota(
    quota: capacity.Quota,
    pools: Sequence[Pool],
    needs: Mapping[str, capacity.Need],
    ours: float,
    limits: Limits,
) -> Finding:
    by_pool = [
        ([_part(quota.key, needs[t]) for t in p.instance_types or needs if t in needs], size(p))
        for p in pools
    ]
    wish = most([(max(parts), count) for parts, count in by_pool if parts], limits.nodes)
    least = min((min(parts) for parts, _ in by_pool if parts), default=0.0)
    others = max(quota.used - ours, 0.0)
    what, unit = f"quota of {quota.key}", _UNITS[quota.key]
    found = (
        f"{quota.limit:g} {unit}, of which other machines of the account use {others:g}; "
        f"the pools could ask for {wish:g}"
    )
    if quota.limit < least:
        return Finding(
            what=what,
            level=Level.WRONG,
            found=found,
            expected=f"{least:g} at least: not one machine can start",
            advice="have an administrator raise it (oneuser quota)",
        )
    if quota.limit - others < wish:
        return Finding(
            what=what,
            level=Level.NOTE,
            found=found,
            expected=f"{others + wish:g}",
            advice="have it raised, or lower the cloud's limits: jobs beyond it go elsewhere",
        )
    return Finding(what=what, level=Level.OK, found=found)


def _hosts(call: Call, needs: Mapping[str, capacity.Need]) -> Iterator[Finding]:
    try:
        hosts = call("hostpool.info").HOST
    except ProviderError as error:
        yield _refused("hosts", error, "a list, if an empty one")
        return
    if not hosts:
        found = "not shown to this account: that they are full is only known when a machine waits"
        yield Finding(what="hosts", level=Level.OK, found=found)
        return
    for name, need in needs.items():
        now, whole = capacity.host_room(hosts, need), capacity.whole_hosts(hosts, need)
        yield _room(name, now or 0, whole or 0)


def _room(name: str, now: int, whole: int) -> Finding:
    what = f"hosts for type {name}"
    if not whole:
        return Finding(
            what=what,
            level=Level.WRONG,
            found="none that is up is large enough, even if it were empty",
            expected="a host that one machine fits on",
            advice="a smaller type, or look at the hosts (`onehost list`)",
        )
    found = f"room for {now} now, for {whole} if nothing else were there"
    if now:
        return Finding(what=what, level=Level.OK, found=found)
    return Finding(
        what=what, level=Level.NOTE, found=found, advice="jobs go elsewhere meanwhile, or wait"
    )
