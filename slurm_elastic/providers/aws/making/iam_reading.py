"""Finds the role of the services in IAM, its rights and its instance profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_elastic.model.site_resources import ACCOUNT, FoundResource, with_references
from slurm_elastic.providers.aws.making.calls import DIGEST_TAG, Calls, Marks, tags_in
from slurm_elastic.providers.aws.making.machine_use import OF_OUR_MACHINES
from slurm_elastic.providers.aws.making.needed import (
    POLICY_PREFIX,
    policy_key,
    policy_name_of,
    policy_properties,
)

Users = Mapping[str, tuple[str, ...]]


def find_role(
    calls: Calls, marks: Marks, name: str, references: Mapping[str, str], users: Users
) -> Iterator[FoundResource]:
    """The role with its rights, then the instance profile with its role."""
    answer = calls.iam_or_none("get_role", RoleName=name)
    if answer is not None:
        record = answer["Role"]
        tags, arn = tags_in(record), record["Arn"]
        trust = with_references(record["AssumeRolePolicyDocument"], {arn.split(":")[4]: ACCOUNT})
        is_ours = marks.are_on(tags)
        policies = list(_policies(calls, name, references)) if is_ours else []
        attached = calls.iam("list_attached_role_policies", RoleName=name)["AttachedPolicies"]
        strangers = [f"the policy {policy['PolicyName']}" for policy in attached]
        strangers += [policy.id for policy in policies if not policy.is_ours]
        yield FoundResource(
            key="role", kind="role", id=name, is_ours=is_ours,
            properties={"name": name, "assume_role_policy": trust},
            made_digest=tags.get(DIGEST_TAG, "none"), strangers=tuple(strangers),
            # Without its rights the services cannot end their machines.
            users=users.get(OF_OUR_MACHINES, ()), attributes={"id": name, "arn": arn},
        )  # fmt: skip
        yield from (policy for policy in policies if policy.is_ours)
    answer = calls.iam_or_none("get_instance_profile", InstanceProfileName=name)
    if answer is not None:
        yield from _profile(answer["InstanceProfile"], marks, name, users)


def _policies(calls: Calls, role: str, references: Mapping[str, str]) -> Iterator[FoundResource]:
    for policy_name in calls.iam("list_role_policies", RoleName=role)["PolicyNames"]:
        if not policy_name.startswith(POLICY_PREFIX):
            yield FoundResource(
                key="", kind="", id=f"the policy {policy_name}", is_ours=False, properties={}
            )
            continue
        answer = calls.iam("get_role_policy", RoleName=role, PolicyName=policy_name)
        rights = with_references(answer["PolicyDocument"], references)
        is_as_made = policy_name_of(rights) == policy_name
        yield FoundResource(
            key=policy_key(policy_name), kind="role policy", id=policy_name, is_ours=True,
            properties=policy_properties(policy_name, rights), part_of="role",
            strangers=() if is_as_made else ("other rights than init gave it",),
        )  # fmt: skip


def _profile(
    record: Mapping[str, object], marks: Marks, name: str, users: Users
) -> Iterator[FoundResource]:
    roles = [role["RoleName"] for role in record.get("Roles", ())]  # type: ignore[attr-defined]
    tags = tags_in(record)
    is_ours = marks.are_on(tags)
    strangers = tuple(f"the role {role}" for role in roles if role != name)
    yield FoundResource(
        key="instance-profile", kind="instance profile", id=name, is_ours=is_ours,
        properties={"name": name}, made_digest=tags.get(DIGEST_TAG, "none"), strangers=strangers,
        users=users.get(f"profile {name}", ()), attributes={"id": name},
    )  # fmt: skip
    if name in roles:
        yield FoundResource(
            key="profile-role", kind="role of the instance profile", id=name, is_ours=is_ours,
            part_of="instance-profile",
            properties={"instance_profile": name, "role": "@{role.id}"},
        )  # fmt: skip
