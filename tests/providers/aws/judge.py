"""IAM's verdict on requests of ours: what each asks for, and whether a policy grants it.

As far as our own policies go: Allow only, wildcards, StringEquals, ForAllValues:StringLike. Which
resources a request touches, and with which condition keys, is of the Service Authorization
Reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

ACCOUNT = "123456789012"
REGION = "us-east-1"


class Ask(Struct, frozen=True):
    """One action on one resource."""

    action: str
    resource: str
    context: Mapping[str, object] = {}


def granted(policy: Mapping[str, Any], ask: Ask) -> bool:
    return any(_grants(statement, ask) for statement in policy["Statement"])


def actions(policy: Mapping[str, Any]) -> set[str]:
    return {a for s in policy["Statement"] for a in _list(s["Action"])}


def _grants(statement: Mapping[str, Any], ask: Ask) -> bool:
    if ask.action not in _list(statement["Action"]):
        return False
    if not any(fnmatchcase(ask.resource, r) for r in _list(statement["Resource"])):
        return False
    conditions = statement.get("Condition", {})
    return all(
        _holds(operator, _list(values), ask.context.get(key))
        for operator, pairs in conditions.items()
        for key, values in pairs.items()
    )


def _holds(operator: str, wanted: Sequence[str], found: object) -> bool:
    wanted = [w.replace("${aws:PrincipalAccount}", ACCOUNT) for w in wanted]
    if operator == "StringEquals":
        return found in wanted
    if operator == "Bool":
        return found in wanted
    assert operator == "ForAllValues:StringLike", operator
    return all(any(fnmatchcase(one, w) for w in wanted) for one in _list(found))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


class Known(Struct):
    """The tags of machines and templates, and the templates' contents, by id or name."""

    tags: dict[str, dict[str, str]] = {}
    templates: dict[str, dict[str, Any]] = {}


def asks(operation: str, request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    """The rights that a call takes."""
    service = "ec2" if operation in _EC2_BY_RESOURCE or operation.startswith("Describe") else None
    if operation in ("GetServiceQuota", "GetAWSDefaultServiceQuota"):
        service = "servicequotas"
    if operation in S3:
        key = f"arn:aws:s3:::{request['Bucket']}/{request['Key']}"
        yield Ask(f"s3:{S3[operation]}", key)
        return
    if operation == "GetProducts":
        service = "pricing"
    assert service, operation
    by_resource = _EC2_BY_RESOURCE.get(operation)
    if by_resource is None:
        yield Ask(f"{service}:{operation}", "*", {"aws:RequestedRegion": REGION})
    else:
        yield from by_resource(request, known)


def _arn(kind: str, name: str, account: str = ACCOUNT) -> str:
    return f"arn:aws:ec2:{REGION}:{account}:{kind}/{name}"


def _requested(request: Mapping[str, Any], kind: str) -> dict[str, object]:
    return {
        f"aws:RequestTag/{tag['Key']}": tag["Value"]
        for part in request.get("TagSpecifications", ())
        if part["ResourceType"] == kind
        for tag in part["Tags"]
    }


def _run(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    action = "ec2:RunInstances"
    yield Ask(action, _arn("image", request["ImageId"], ""), {"ec2:Owner": ACCOUNT})
    card = next(iter(request.get("NetworkInterfaces", ())), {})
    subnet = request.get("SubnetId") or card.get("SubnetId", "subnet-default")
    yield Ask(action, _arn("subnet", subnet))
    for group in request.get("SecurityGroupIds") or card.get("Groups", ("sg-default",)):
        yield Ask(action, _arn("security-group", group))
    if group := request.get("Placement", {}).get("GroupName"):
        yield Ask(action, _arn("placement-group", group))
    keys = [disk["Ebs"].get("KmsKeyId") for disk in request.get("BlockDeviceMappings", ())]
    for key in filter(None, keys):
        by_ec2 = {"kms:ViaService": f"ec2.{REGION}.amazonaws.com"}
        for use in ("Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncrypt*"):
            yield Ask(f"kms:{use}", key, by_ec2)
        yield Ask("kms:CreateGrant", key, {**by_ec2, "kms:GrantIsForAWSResource": "true"})
    for kind in ("network-interface", "volume"):
        yield Ask(action, _arn(kind, "*"))
    yield Ask(action, _arn("instance", "*"), {
        **_requested(request, "instance"),
        "ec2:InstanceType": request["InstanceType"],
        "ec2:MetadataHttpTokens": request["MetadataOptions"]["HttpTokens"],
    })  # fmt: skip
    if "KeyName" in request:
        yield Ask(action, _arn("key-pair", request["KeyName"]))
    if "InstanceMarketOptions" in request:
        yield Ask(action, _arn("spot-instances-request", "*"))
    if "LaunchTemplate" in request:
        yield Ask(action, _arn("launch-template", request["LaunchTemplate"]["LaunchTemplateId"]))
    yield from _tagging_at_start(request, "RunInstances")
    if "IamInstanceProfile" in request:
        role = f"arn:aws:iam::{ACCOUNT}:role/{request['IamInstanceProfile']['Name']}"
        yield Ask("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


def _tagging_at_start(request: Mapping[str, Any], creator: str) -> Iterator[Ask]:
    for part in request.get("TagSpecifications", ()):
        where = _arn(part["ResourceType"], "*")
        yield Ask("ec2:CreateTags", where, {"ec2:CreateAction": creator})


def _fleet(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    """EC2 looks at the right to RunInstances too, with what the template and overrides say."""
    yield Ask("ec2:CreateFleet", _arn("fleet", "*"), {"aws:RequestedRegion": REGION})
    yield from _tagging_at_start(request, "CreateFleet")
    for config in request["LaunchTemplateConfigs"]:
        name = config["LaunchTemplateSpecification"]["LaunchTemplateName"]
        tags = {f"aws:ResourceTag/{k}": v for k, v in known.tags.get(name, {}).items()}
        yield Ask("ec2:RunInstances", _arn("launch-template", "lt-1"), tags)
        for override in config["Overrides"]:
            run = {
                **known.templates[name],
                "TagSpecifications": request["TagSpecifications"],
                **override,
            }
            yield from (a for a in _run(run, known) if a.action != "ec2:CreateTags")


def _template(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    context = _requested(request, "launch-template")
    yield Ask("ec2:CreateLaunchTemplate", _arn("launch-template", "*"), context)
    yield from _tagging_at_start(request, "CreateLaunchTemplate")


S3 = {
    "PutObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "AbortMultipartUpload": "AbortMultipartUpload",
    "DeleteObject": "DeleteObject",
}


def _public(kind: str, name: str) -> str:
    return _arn(kind, name, "")


def _group(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    context = _requested(request, "placement-group")
    where = _arn("placement-group", request["GroupName"])
    yield Ask("ec2:CreatePlacementGroup", where, context)
    yield from _tagging_at_start(request, "CreatePlacementGroup")


def _import(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    for place in (_arn("import-snapshot-task", "*"), _public("snapshot", "*")):
        yield Ask("ec2:ImportSnapshot", place)
    yield from _tagging_at_start(request, "ImportSnapshot")


def _register(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    yield Ask("ec2:RegisterImage", _public("image", "*"))
    for disk in request["BlockDeviceMappings"]:
        yield Ask("ec2:RegisterImage", _public("snapshot", disk["Ebs"]["SnapshotId"]))


def _deregister(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    number = request["ImageId"]
    tags = {f"aws:ResourceTag/{k}": v for k, v in known.tags.get(number, {}).items()}
    yield Ask("ec2:DeregisterImage", _public("image", number), tags)


_KINDS = {"ami": "image", "snap": "snapshot"}


def _tag(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
    keys = [tag["Key"] for tag in request["Tags"]]
    for id_ in request["Resources"]:
        kind = _KINDS.get(id_.partition("-")[0])
        where = _public(kind, id_) if kind else _arn("instance", id_)
        yield Ask("ec2:CreateTags", where, {
            **{f"aws:ResourceTag/{k}": v for k, v in known.tags.get(id_, {}).items()},
            "aws:TagKeys": keys,
        })  # fmt: skip


def _on_machines(action: str, key: str):
    def ask(request: Mapping[str, Any], known: Known) -> Iterator[Ask]:
        for id_ in _list(request[key]):
            tags = {f"aws:ResourceTag/{k}": v for k, v in known.tags.get(id_, {}).items()}
            yield Ask(f"ec2:{action}", _arn("instance", id_), tags)

    return ask


_EC2_BY_RESOURCE = {
    "RunInstances": _run,
    "ImportSnapshot": _import,
    "CreatePlacementGroup": _group,
    "RegisterImage": _register,
    "DeregisterImage": _deregister,
    "CreateFleet": _fleet,
    "CreateLaunchTemplate": _template,
    "CreateTags": _tag,
    "TerminateInstances": _on_machines("TerminateInstances", "InstanceIds"),
    "GetConsoleOutput": _on_machines("GetConsoleOutput", "InstanceId"),
}
