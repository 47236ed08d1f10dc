"""The rights of an administrator who runs ``init --make`` and ``--unmake`` in EC2. Pure.

The resources and condition keys of each action are from the "Service Authorization Reference".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slurm_elastic.config import Cluster
from slurm_elastic.model.site_resources import site_name
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.tags import CLUSTER

Statement = dict[str, object]
_FOR_USER = (
    "for a user instead of a role: aws iam create-policy and attach-user-policy (an inline policy "
    "of a user has at most 2048 characters)"
)
_TAKE_AWAY = (
    "take this right away after init --make: who may write the rights of a role can give that role "
    "any right"
)
NOTES = (_FOR_USER, _TAKE_AWAY)
_SEEN = (
    "AvailabilityZones", "Instances", "InternetGateways", "KeyPairs", "LaunchTemplateVersions",
    "LaunchTemplates", "NetworkInterfaces", "RouteTables", "SecurityGroupRules", "SecurityGroups",
    "Subnets", "Vpcs",
)  # fmt: skip
_CREATED = {
    "CreateVpc": "vpc",
    "CreateInternetGateway": "internet-gateway",
    "CreateRouteTable": "route-table",
    "CreateSubnet": "subnet",
    "CreateSecurityGroup": "security-group",
    "AuthorizeSecurityGroupEgress": "security-group-rule",
    "AuthorizeSecurityGroupIngress": "security-group-rule",
    "ImportKeyPair": "key-pair",
    "CreateLaunchTemplate": "launch-template",
}
"""The kind of resource that each action creates and tags."""
_CHANGED = {
    "vpc": (
        "AttachInternetGateway", "CreateRouteTable", "CreateSubnet", "DeleteVpc",
        "DetachInternetGateway",
    ),
    "internet-gateway": (
        "AttachInternetGateway", "DeleteInternetGateway", "DetachInternetGateway",
    ),
    "route-table": (
        "AssociateRouteTable", "CreateRoute", "DeleteRouteTable", "DisassociateRouteTable",
    ),
    "subnet": (
        "AssociateRouteTable", "DeleteSubnet", "DisassociateRouteTable", "ModifySubnetAttribute",
    ),
    "security-group": (
        "AuthorizeSecurityGroupEgress", "AuthorizeSecurityGroupIngress", "DeleteSecurityGroup",
        "RevokeSecurityGroupEgress", "RevokeSecurityGroupIngress",
    ),
    "security-group-rule": ("RevokeSecurityGroupEgress", "RevokeSecurityGroupIngress"),
    "key-pair": ("DeleteKeyPair",),
    "launch-template": ("DeleteLaunchTemplate",),
}  # fmt: skip
"""The actions on existing resources, by their kind."""
_OF_ROLE = (
    "CreateRole", "DeleteRole", "DeleteRolePolicy", "GetRole", "GetRolePolicy",
    "ListAttachedRolePolicies", "ListRolePolicies", "PassRole", "PutRolePolicy", "TagRole",
)  # fmt: skip
_OF_PROFILE = (
    "AddRoleToInstanceProfile", "CreateInstanceProfile", "DeleteInstanceProfile",
    "GetInstanceProfile", "RemoveRoleFromInstanceProfile", "TagInstanceProfile",
)  # fmt: skip


def statements(settings: AwsCloud, cluster: Cluster, partition: str) -> Iterator[Statement]:
    """The statements of the policy. They allow no change or removal of a resource that
    is not ours.
    """

    def ec2(kind: str) -> str:
        return f"arn:{partition}:ec2:{settings.region}:*:{kind}/*"

    in_region = {"StringEquals": {"aws:RequestedRegion": settings.region}}
    ours = {"StringEquals": {f"aws:ResourceTag/{CLUSTER}": cluster.uuid}}
    as_ours = {"StringEquals": {f"aws:RequestTag/{CLUSTER}": cluster.uuid}}
    yield _allow("See", [f"ec2:Describe{kind}" for kind in _SEEN], ["*"], in_region)
    if settings.catalogue:
        yield _allow("SeeTypes", ["ec2:DescribeInstanceTypes", "pricing:GetProducts"], ["*"])
    created = [ec2(kind) for kind in sorted(set(_CREATED.values()))]
    yield _allow("Create", [f"ec2:{action}" for action in _CREATED], created, as_ours)
    yield _allow("TagAtTheStart", ["ec2:CreateTags"], created, {
        "StringEquals": {"ec2:CreateAction": list(_CREATED)},
    })  # fmt: skip
    for kind, actions in _CHANGED.items():
        name = "".join(word.capitalize() for word in kind.split("-"))
        yield _allow(f"Our{name}", [f"ec2:{action}" for action in actions], [ec2(kind)], ours)
    # The configuration may name a network of the site, which has no tag of ours.
    yield _allow("GroupInNetwork", ["ec2:CreateSecurityGroup"], [ec2("vpc")])
    name = site_name(cluster.name, settings.name)
    for kind, actions in (("role", _OF_ROLE), ("instance-profile", _OF_PROFILE)):
        arn = f"arn:{partition}:iam::*:{kind}/{name}"
        sid = "".join(word.capitalize() for word in kind.split("-"))
        yield _allow(sid, [f"iam:{action}" for action in actions], [arn])


def _allow(
    name: str, actions: Sequence[str], resources: Sequence[str],
    condition: Mapping[str, object] | None = None,
) -> Statement:  # fmt: skip
    statement: Statement = {
        "Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": list(resources),
    }  # fmt: skip
    return statement | ({"Condition": condition} if condition else {})
