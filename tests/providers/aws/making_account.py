"""All that ``init --make`` could leave in an account, read by a hand of its own."""

from __future__ import annotations

from typing import Any

Snapshot = frozenset[str]


def snapshot(ec2: Any, iam: Any) -> Snapshot:
    """One line for each resource and setting in EC2 and IAM."""
    lines: set[str] = set()
    for operation, key, name in (
        ("describe_vpcs", "Vpcs", "VpcId"),
        ("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
        ("describe_route_tables", "RouteTables", "RouteTableId"),
        ("describe_subnets", "Subnets", "SubnetId"),
        ("describe_security_groups", "SecurityGroups", "GroupId"),
        ("describe_security_group_rules", "SecurityGroupRules", "SecurityGroupRuleId"),
        ("describe_key_pairs", "KeyPairs", "KeyName"),
        ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    ):
        records = getattr(ec2, operation)()[key]
        lines |= {f"{_kind(key)} {record[name]}" for record in records}
    for profile in iam.list_instance_profiles()["InstanceProfiles"]:
        roles = [role["RoleName"] for role in profile["Roles"]]
        lines.add(f"profile {profile['InstanceProfileName']} {roles}")
    for role in iam.list_roles()["Roles"]:
        name = role["RoleName"]
        policies = iam.list_role_policies(RoleName=name)["PolicyNames"]
        lines.add(f"role {name} {policies}")
    return frozenset(lines)


def _kind(key: str) -> str:
    return {"KeyPairs": "key pair"}.get(key, key)
