"""Compares the resources that a site needs in a cloud with the existing ones. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from slurm_elastic.config.site_place import ResourceGroup
from slurm_elastic.model.site_resources import FoundResource, Properties, SiteResource, is_duplicate


class Verb(StrEnum):
    """What a step does with its resource.

    ``leave``: the resource is ours, and stays because of the step's reason. ``refuse``: nothing can
    be created because a foreign resource is in the way.
    """

    CREATE = "create"
    KEEP = "keep"
    REMOVE = "remove"
    LEAVE = "leave"
    REFUSE = "refuse"


class Step(Struct, frozen=True, kw_only=True):
    """One line of a plan. ``needed`` is set for ``create``, ``existing`` for all other verbs."""

    verb: Verb
    key: str
    shown: str
    reason: str
    needed: SiteResource | None = None
    existing: FoundResource | None = None


CHANGING = (Verb.CREATE, Verb.REMOVE)
GROUPS: Mapping[ResourceGroup, Collection[str]] = {
    ResourceGroup.NETWORK: (
        "vpc", "internet gateway", "gateway attachment", "route table", "route",
        "route table association", "subnet", "public addresses", "network", "router",
        "router interface",
    ),
    ResourceGroup.SECURITY_GROUP: ("security group", "closed egress", "security group rule"),
    ResourceGroup.KEY_PAIR: ("key pair",),
    ResourceGroup.LAUNCH_TEMPLATE: ("launch template",),
    ResourceGroup.ROLE: ("role", "role policy", "instance profile", "role of the instance profile"),
    ResourceGroup.CREDENTIAL: ("application credential",),
}  # fmt: skip
"""The kinds of resources of each group, in all clouds."""
_RIGHTS = "role policy"
MAX_RIGHTS = 10_000
"""The characters of all rights of a role together. IAM takes 10,240; ids are a little longer than
the references in their place.
"""


def plan_make(
    needed: Sequence[SiteResource], existing: Sequence[FoundResource]
) -> tuple[Step, ...]:
    """The steps after which all ``needed`` resources exist. ``needed`` is in the order in which
    they can be created.
    """
    found_by_key = {resource.key: resource for resource in existing}
    steps = [_step_to(resource, found_by_key.get(resource.key)) for resource in needed]
    superfluous = list(_superfluous(existing, {resource.key for resource in needed}))
    in_the_way = [step for step in superfluous if _is_in_the_way(step, steps)]
    return (*in_the_way, *steps, *(step for step in superfluous if step not in in_the_way))


def _is_in_the_way(step: Step, others: Sequence[Step]) -> bool:
    """Whether a role's old rights must be removed before its new ones are there. The services are
    without rights for a moment then, so this is only done if both have no room, and the new rights
    alone have.
    """
    if step.verb is not Verb.REMOVE or step.existing is None or step.existing.kind != _RIGHTS:
        return False
    old_length = _length(step.existing.properties)
    new = [s.needed for s in others if s.verb is Verb.CREATE and s.needed is not None]
    new_lengths = [_length(r.properties) for r in new if r.kind == _RIGHTS]
    return any(n <= MAX_RIGHTS < n + old_length for n in new_lengths)


def _length(properties: Properties) -> int:
    return len(json.dumps(properties.get("policy"), separators=(",", ":")))


def _step_to(needed: SiteResource, existing: FoundResource | None) -> Step:
    if needed.named:
        shown = f"{needed.kind} {needed.named}"
        reason = "the configuration names it, and init did not make it"
        return Step(verb=Verb.KEEP, key=needed.key, shown=shown, reason=reason)
    if existing is None:
        shown = f"{needed.kind} {needed.name}".strip()
        return Step(
            verb=Verb.CREATE, key=needed.key, shown=shown, reason=needed.purpose, needed=needed
        )
    if not existing.is_ours:
        reason = (
            "a resource with this name is there, and init did not make it: name it in the "
            "configuration, or rename it"
        )
        return _about(Verb.REFUSE, existing, reason)
    if existing.change:
        return _about(Verb.LEAVE, existing, f"somebody changed it: {existing.change}")
    if existing.digest != needed.digest:
        reason = (
            "the configuration needs other settings now; change it by hand, or use --unmake "
            "and --make"
        )
        return _about(Verb.LEAVE, existing, reason)
    return _about(Verb.KEEP, existing, "as init made it")


def _superfluous(existing: Sequence[FoundResource], needed_keys: Collection[str]) -> Iterator[Step]:
    """Resources of ours that nothing needs. Only second resources of a kind and outdated parts,
    such as rights of an earlier configuration, are removed. A network may have another use now.
    """
    kept_keys = _kept_keys(existing)
    for resource in reversed(existing):
        if not resource.is_ours or resource.key in needed_keys:
            continue
        # A rule, or rights; a subnet is more than a setting of its network.
        is_setting = resource.part_of and (resource.goes_along or not resource.made_digest)
        if is_setting:
            if resource.part_of in needed_keys and not resource.change:
                yield _about(Verb.REMOVE, resource, "the configuration no longer needs it")
        elif is_duplicate(resource.key) and resource.key not in kept_keys:
            reason = "a second one, from a call whose answer was lost"
            yield _about(Verb.REMOVE, resource, reason)
        else:
            reason = "the configuration no longer needs it; --unmake removes it"
            yield _about(Verb.KEEP, resource, reason)


def plan_unmake(
    existing: Sequence[FoundResource], left_out: Collection[ResourceGroup] = ()
) -> tuple[Step, ...]:
    """The steps, in order, that remove the resources of ours. ``existing`` is in the order in which
    they were created. ``left_out``: the groups that stay.
    """
    ours = [resource for resource in existing if resource.is_ours]
    left_kinds = {kind for group in left_out for kind in GROUPS[group]}
    kept_keys = _kept_keys(ours, left_kinds)
    steps: list[Step] = []
    for resource in reversed(ours):
        reason = _why_kept(resource)
        if resource.goes_along and not reason:
            continue
        if resource.key in kept_keys:
            reason = reason or kept_keys[resource.key]
            steps.append(_about(Verb.LEAVE, resource, reason))
        else:
            steps.append(_about(Verb.REMOVE, resource, "init made it"))
    return tuple(steps)


def _why_kept(resource: FoundResource) -> str:
    if resource.users:
        return f"in use by {', '.join(resource.users)}"
    return f"somebody changed it: {resource.change}" if resource.change else ""


def _kept_keys(
    existing: Sequence[FoundResource], left_kinds: Collection[str] = ()
) -> dict[str, str]:
    """The keys of the resources that stay, each with the reason: used or changed resources,
    resources of ``left_kinds``, all that they need, and all their parts. A network of a running
    machine must keep its routes.
    """
    kept = {resource.key: _why_kept(resource) for resource in existing if _why_kept(resource)}
    left_keys = (resource.key for resource in existing if resource.kind in left_kinds)
    kept = dict.fromkeys(left_keys, "--without leaves it") | kept
    count = -1
    while count != len(kept):  # until nothing more is added
        count = len(kept)
        for resource in existing:
            if resource.part_of in kept:
                kept.setdefault(resource.key, f"it belongs to {resource.part_of}, which stays")
            if resource.key in kept:
                for key in resource.needed_keys:
                    kept.setdefault(key, f"{resource.kind} {resource.id} needs it")
    return kept


def _about(verb: Verb, existing: FoundResource, reason: str) -> Step:
    shown = f"{existing.kind} {existing.id}"
    return Step(verb=verb, key=existing.key, shown=shown, reason=reason, existing=existing)
