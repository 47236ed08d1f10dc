"""Creates and removes single resources in EC2 and IAM, each in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from slurm_elastic.config.site_place import ANYWHERE
from slurm_elastic.model.site_resources import FoundResource, Properties, SiteResource
from slurm_elastic.providers.aws.making.calls import Calls
from slurm_elastic.providers.aws.making.reading import METADATA_OPTIONS, is_open_egress
from slurm_elastic.providers.aws.requests import tag_list

Tags = Mapping[str, str]
Attributes = Mapping[str, str]


def create(calls: Calls, resource: SiteResource, properties: Properties, tags: Tags) -> Attributes:
    """Create the resource. ``properties`` are the resource's, with ids in place of references."""
    return _CREATORS[resource.kind](calls, properties, tags)


def remove(calls: Calls, resource: FoundResource, properties: Properties) -> None:
    """Remove the resource. ``properties`` are the resource's, with ids in place of references."""
    _REMOVERS[resource.kind](calls, resource.id, properties)


def _tagged(kind: str, tags: Tags) -> list[dict[str, object]]:
    return [{"ResourceType": kind, "Tags": tag_list(tags)}]


def _vpc(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    answer = calls.ec2(
        "create_vpc", CidrBlock=properties["cidr_block"], TagSpecifications=_tagged("vpc", tags)
    )
    return {"id": answer["Vpc"]["VpcId"]}


def _gateway(calls: Calls, _properties: Properties, tags: Tags) -> Attributes:
    specifications = _tagged("internet-gateway", tags)
    answer = calls.ec2("create_internet_gateway", TagSpecifications=specifications)
    return {"id": answer["InternetGateway"]["InternetGatewayId"]}


def _attachment(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    calls.ec2(
        "attach_internet_gateway",
        InternetGatewayId=properties["internet_gateway_id"],
        VpcId=properties["vpc_id"],
    )
    return {}


def _route_table(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    answer = calls.ec2(
        "create_route_table",
        VpcId=properties["vpc_id"],
        TagSpecifications=_tagged("route-table", tags),
    )
    return {"id": answer["RouteTable"]["RouteTableId"]}


def _route(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    calls.ec2(
        "create_route",
        RouteTableId=properties["route_table_id"],
        GatewayId=properties["gateway_id"],
        DestinationCidrBlock=properties["destination_cidr_block"],
    )
    return {}


def _subnet(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    answer = calls.ec2(
        "create_subnet",
        VpcId=properties["vpc_id"],
        CidrBlock=properties["cidr_block"],
        AvailabilityZone=properties["availability_zone"],
        TagSpecifications=_tagged("subnet", tags),
    )
    return {"id": answer["Subnet"]["SubnetId"]}


def _public_addresses(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    calls.ec2(
        "modify_subnet_attribute",
        SubnetId=properties["subnet_id"],
        MapPublicIpOnLaunch={"Value": True},
    )
    return {}


def _association(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    calls.ec2(
        "associate_route_table",
        RouteTableId=properties["route_table_id"],
        SubnetId=properties["subnet_id"],
    )
    return {}


def _group(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    answer = calls.ec2(
        "create_security_group",
        GroupName=properties["name"],
        Description=properties["description"],
        VpcId=properties["vpc_id"],
        TagSpecifications=_tagged("security-group", tags),
    )
    return {"id": answer["GroupId"]}


def _closed_egress(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    group = properties["security_group_id"]
    filters = [{"Name": "group-id", "Values": [group]}]
    rules = calls.all_of("describe_security_group_rules", "SecurityGroupRules", Filters=filters)
    open_rules = [rule["SecurityGroupRuleId"] for rule in rules if is_open_egress(rule)]
    # None are listed: EC2 may not list a new group's rules yet. It refuses the call then.
    everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": ANYWHERE}]}
    which = {"SecurityGroupRuleIds": open_rules} if open_rules else {"IpPermissions": [everything]}
    calls.ec2("revoke_security_group_egress", GroupId=group, **which)
    return {}


def _rule(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    permission: dict[str, Any] = {"IpProtocol": properties["ip_protocol"]}
    if "from_port" in properties:
        permission |= {"FromPort": properties["from_port"], "ToPort": properties["to_port"]}
    if "cidr_ipv4" in properties:
        permission["IpRanges"] = [
            {"CidrIp": properties["cidr_ipv4"], "Description": properties["description"]}
        ]
    else:
        permission["UserIdGroupPairs"] = [{"GroupId": properties["referenced_security_group_id"]}]
    answer = calls.ec2(
        f"authorize_security_group_{properties['direction']}",
        GroupId=properties["security_group_id"],
        IpPermissions=[permission],
        TagSpecifications=_tagged("security-group-rule", tags),
    )
    return {"id": answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]}


def _key_pair(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    calls.ec2(
        "import_key_pair",
        KeyName=properties["key_name"],
        PublicKeyMaterial=properties["public_key"].encode(),
        TagSpecifications=_tagged("key-pair", tags),
    )
    return {"id": properties["key_name"]}


def _template(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    options = properties["metadata_options"]
    data = {
        "InstanceInitiatedShutdownBehavior": properties["instance_initiated_shutdown_behavior"],
        "MetadataOptions": {theirs: options[ours] for ours, theirs in METADATA_OPTIONS.items()},
    }
    answer = calls.ec2(
        "create_launch_template",
        LaunchTemplateName=properties["name"],
        LaunchTemplateData=data,
        TagSpecifications=_tagged("launch-template", tags),
    )
    return {"id": answer["LaunchTemplate"]["LaunchTemplateId"]}


def _role(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    answer = calls.iam(
        "create_role",
        RoleName=properties["name"],
        Description="the services of slurm-elastic",
        AssumeRolePolicyDocument=_json(properties["assume_role_policy"]),
        Tags=tag_list(tags),
    )
    return {"id": properties["name"], "arn": answer["Role"]["Arn"]}


def _policy(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    calls.iam(
        "put_role_policy",
        RoleName=properties["role"],
        PolicyName=properties["name"],
        PolicyDocument=_json(properties["policy"]),
    )
    return {}


def _profile(calls: Calls, properties: Properties, tags: Tags) -> Attributes:
    calls.iam(
        "create_instance_profile", InstanceProfileName=properties["name"], Tags=tag_list(tags)
    )
    return {"id": properties["name"]}


def _profile_role(calls: Calls, properties: Properties, _tags: Tags) -> Attributes:
    calls.iam(
        "add_role_to_instance_profile",
        InstanceProfileName=properties["instance_profile"],
        RoleName=properties["role"],
    )
    return {}


def _json(value: object) -> str:
    """The JSON without blanks, because they count in IAM's limit of a policy."""
    return json.dumps(value, separators=(",", ":"))


_CREATORS: Mapping[str, Callable[[Calls, Properties, Tags], Attributes]] = {
    "vpc": _vpc,
    "internet gateway": _gateway,
    "gateway attachment": _attachment,
    "route table": _route_table,
    "route": _route,
    "subnet": _subnet,
    "public addresses": _public_addresses,
    "route table association": _association,
    "security group": _group,
    "closed egress": _closed_egress,
    "security group rule": _rule,
    "key pair": _key_pair,
    "launch template": _template,
    "role": _role,
    "role policy": _policy,
    "instance profile": _profile,
    "role of the instance profile": _profile_role,
}


def _remove_attachment(calls: Calls, _id: str, properties: Properties) -> None:
    calls.ec2(
        "detach_internet_gateway",
        InternetGatewayId=properties["internet_gateway_id"],
        VpcId=properties["vpc_id"],
    )


def _remove_rule(calls: Calls, id_: str, properties: Properties) -> None:
    calls.ec2(
        f"revoke_security_group_{properties['direction']}",
        GroupId=properties["security_group_id"],
        SecurityGroupRuleIds=[id_],
    )


def _remove_profile_role(calls: Calls, _id: str, properties: Properties) -> None:
    calls.iam(
        "remove_role_from_instance_profile",
        InstanceProfileName=properties["instance_profile"],
        RoleName=properties["role"],
    )


_REMOVERS: Mapping[str, Callable[[Calls, str, Properties], object]] = {
    "vpc": lambda calls, id_, _properties: calls.ec2("delete_vpc", VpcId=id_),
    "internet gateway": lambda calls, id_, _properties: calls.ec2(
        "delete_internet_gateway", InternetGatewayId=id_
    ),
    "gateway attachment": _remove_attachment,
    "route table": lambda calls, id_, _properties: calls.ec2(
        "delete_route_table", RouteTableId=id_
    ),
    "subnet": lambda calls, id_, _properties: calls.ec2("delete_subnet", SubnetId=id_),
    "route table association": lambda calls, id_, _properties: calls.ec2(
        "disassociate_route_table", AssociationId=id_
    ),
    "security group": lambda calls, id_, _properties: calls.ec2(
        "delete_security_group", GroupId=id_
    ),
    "security group rule": _remove_rule,
    "key pair": lambda calls, id_, _properties: calls.ec2("delete_key_pair", KeyName=id_),
    "launch template": lambda calls, id_, _properties: calls.ec2(
        "delete_launch_template", LaunchTemplateId=id_
    ),
    "role": lambda calls, id_, _properties: calls.iam("delete_role", RoleName=id_),
    "role policy": lambda calls, id_, properties: calls.iam(
        "delete_role_policy", RoleName=properties["role"], PolicyName=id_
    ),
    "instance profile": lambda calls, id_, _properties: calls.iam(
        "delete_instance_profile", InstanceProfileName=id_
    ),
    "role of the instance profile": _remove_profile_role,
}
