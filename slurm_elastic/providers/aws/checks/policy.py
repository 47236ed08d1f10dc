"""Builds the IAM policy that limits the services' role to the rights that the configuration needs.

This folder calls exactly these actions. The resources and condition keys of each are from the
"Service Authorization Reference" (Actions, resources, and condition keys for Amazon EC2). Rights to
read apply to the whole region, because EC2's Describe actions accept no resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import UnknownRegionError

from slurm_elastic.base.pages import page
from slurm_elastic.config import Cluster
from slurm_elastic.config.grants import Grant, GrantUse, Holder
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.machine_options import CLUSTER_GROUP
from slurm_elastic.model.reserved import TARGETED
from slurm_elastic.providers.aws.checks import capacity, making_policy
from slurm_elastic.providers.aws.hardware import for_pool, group_of, uses_fleets
from slurm_elastic.providers.aws.imports import FOLDER
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import PLACE
from slurm_elastic.providers.base.tags import CLUSTER, PREFIX

Statement = dict[str, object]
_IDS = ("lt-", "@{")
"""The beginnings of a launch template's id, and of a reference to a template that ``init --make``
creates. Policies do not know templates by name.
"""
_UPLOADED = ("image", "snapshot")
_IMPORT_ROLE = (
    "EC2 reads the bucket by the account's role vmimport, which an administrator makes once: "
    f"see {page('images')}"
)


def grant(settings: AwsCloud, use: GrantUse, holder: Holder) -> Grant:
    """An IAM policy as JSON. See ``CloudKind.grant``."""
    cluster, pools = use.cluster, use.pools
    arns = _Arns(settings)
    notes: list[str]
    if holder is Holder.IMAGES and settings.image_bucket is None:
        return Grant(
            text="", notes=("image_bucket is not set: nothing can be uploaded without it",)
        )
    if holder is Holder.IMAGES:
        statements = list(_uploads(settings, settings.image_bucket or "", cluster, arns))
        notes = [_IMPORT_ROLE]
    elif holder is Holder.MAKE:
        statements = list(making_policy.statements(settings, cluster, arns.partition))
        notes = list(making_policy.NOTES)
    elif holder is Holder.WATCHDOG:
        statements = [
            _allow("See", ["DescribeInstances"], ["*"], _in_region(settings)),
            _allow(
                "EndOurs", ["TerminateInstances"], [arns.ec2("instance")], _tagged_with(cluster)
            ),
        ]
        notes = []
    else:
        statements = [*_services(settings, cluster, pools, arns), *_queue(settings, use, arns)]
        notes = list(_notes(settings, pools))
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, indent=2)
    how = (
        f"aws iam put-role-policy --role-name ROLE --policy-name slurm-elastic-{holder.value} "
        "--policy-document file://FILE"
    )
    return Grant(text=text, notes=(how, *notes))


class _Arns:
    """Builds the names of resources in the cloud's region, in whichever account the role is."""

    def __init__(self, settings: AwsCloud) -> None:
        self._region = settings.region
        try:
            partition = boto3.session.Session().get_partition_for_region(settings.region)
        except UnknownRegionError:
            partition = "aws"
        self.partition: str = partition

    @property
    def service(self) -> str:
        """The name of EC2 in IAM."""
        return "ec2.amazonaws.com.cn" if self.partition == "aws-cn" else "ec2.amazonaws.com"

    def ec2(self, kind: str, name: str = "*") -> str:
        return f"arn:{self.partition}:ec2:{self._region}:*:{kind}/{name}"

    def role(self, profile: str) -> str:
        """The role of an instance profile. The console gives both the same name."""
        if profile.startswith("arn:"):
            return profile.replace(":instance-profile/", ":role/", 1)
        return f"arn:{self.partition}:iam::*:role/{profile}"


def service_of(settings: AwsCloud) -> tuple[str, str]:
    """The partition of the cloud's region, and the name of EC2 in its IAM."""
    arns = _Arns(settings)
    return arns.partition, arns.service


def _uploads(settings: AwsCloud, bucket: str, cluster: Cluster, arns: _Arns) -> Iterator[Statement]:
    """Statements for ``image upload`` and ``image list``. ARNs of snapshots and images contain no
    account.
    """
    image, snapshot = (f"arn:{arns.partition}:ec2:{settings.region}::{k}/*" for k in _UPLOADED)
    task = arns.ec2("import-snapshot-task")
    read_actions = ["DescribeImages", "DescribeImportSnapshotTasks", "DescribeSnapshots"]
    yield _allow("SeeImages", read_actions, ["*"], _in_region(settings))
    yield {
        "Sid": "SendByBucket",
        "Effect": "Allow",
        "Action": ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject"],
        "Resource": f"arn:{arns.partition}:s3:::{bucket}/{FOLDER}*",
    }
    yield _allow("Import", ["ImportSnapshot"], [task, snapshot])
    yield _allow("TagImports", ["CreateTags"], [task], {
        "StringEquals": {"ec2:CreateAction": "ImportSnapshot"},
    })  # fmt: skip
    yield _allow("Register", ["RegisterImage"], [image, snapshot])
    yield _allow("TagImages", ["CreateTags"], [image, snapshot], {
        "ForAllValues:StringLike": {"aws:TagKeys": [f"{PREFIX}*"]},
    })  # fmt: skip
    yield _allow("RemoveOurs", ["DeregisterImage"], [image], _tagged_with(cluster))


def _services(
    settings: AwsCloud, cluster: Cluster, pools: Sequence[Pool], arns: _Arns
) -> Iterator[Statement]:
    yield _allow("See", sorted(_read_actions(settings, pools)), ["*"], _in_region(settings))
    yield from _images(settings, pools, arns)
    yield _allow("LaunchInto", ["RunInstances"], _places(settings, cluster, pools, arns))
    yield _allow("LaunchThese", ["RunInstances"], [arns.ec2("instance")], {
        "StringEquals": {
            f"aws:RequestTag/{CLUSTER}": cluster.uuid,
            "ec2:InstanceType": _types(settings, pools),
            "ec2:MetadataHttpTokens": "required",
        },
    })  # fmt: skip
    fleet = ["CreateFleet", "CreateLaunchTemplate"]
    creating = [*(fleet if uses_fleets(settings, pools) else ()), "RunInstances"]
    if _makes_groups(pools):
        creating.insert(0, "CreatePlacementGroup")
        groups = [arns.ec2("placement-group")]
        condition = {"StringEquals": {f"aws:RequestTag/{CLUSTER}": cluster.uuid}}
        yield _allow("MakePlacementGroups", ["CreatePlacementGroup"], groups, condition)
    yield from _keys(pools, settings, arns)
    # Tags may be set only by the call that creates the resource. Otherwise the role could mark
    # foreign machines as ours, and then end them.
    yield _allow("TagAtTheStart", ["CreateTags"], _tagged(settings, pools, arns), {
        "StringEquals": {"ec2:CreateAction": creating},
    })  # fmt: skip
    ending = ["GetConsoleOutput", "TerminateInstances"]
    if any(pool.stopped for pool in pools):
        ending += ["StartInstances", "StopInstances"]
    yield _allow("EndOurs", ending, [arns.ec2("instance")], _tagged_with(cluster))
    if uses_fleets(settings, pools):
        yield from _fleets(settings, cluster, arns)
    if settings.instance_profile:
        yield {
            "Sid": "GiveMachinesTheirRole",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": arns.role(settings.instance_profile),
            "Condition": {"StringEquals": {"iam:PassedToService": arns.service}},
        }
    if settings.catalogue:
        # The price list belongs to no region.
        yield {
            "Sid": "SeePrices",
            "Effect": "Allow",
            "Action": "pricing:GetProducts",
            "Resource": "*",
        }
    yield {
        "Sid": "SeeQuotas",
        "Effect": "Allow",
        "Action": ["servicequotas:GetAWSDefaultServiceQuota", "servicequotas:GetServiceQuota"],
        "Resource": "*",
        "Condition": _in_region(settings),
    }


def _queue(settings: AwsCloud, use: GrantUse, arns: _Arns) -> Iterator[Statement]:
    """The statement for the queue of notices. Its URL ends with account and name."""
    account, _, name = urlsplit(use.queue_url).path.strip("/").partition("/")
    if name:
        yield {
            "Sid": "ReadNotices",
            "Effect": "Allow",
            "Action": ["sqs:DeleteMessage", "sqs:ReceiveMessage"],
            "Resource": f"arn:{arns.partition}:sqs:{settings.region}:{account}:{name}",
        }


def _read_actions(settings: AwsCloud, pools: Sequence[Pool]) -> Iterator[str]:
    yield from ("DescribeImages", "DescribeInstanceStatus", "DescribeInstances")
    yield from ("DescribeSpotInstanceRequests", "DescribeSpotPriceHistory")
    if not (settings.zones or settings.subnets):
        yield "DescribeAvailabilityZones"
    if settings.catalogue or any(pool.machine.rdma for pool in pools):
        yield "DescribeInstanceTypes"
    if settings.subnets or any(pool.machine.subnets for pool in pools):
        yield "DescribeSubnets"
    if any(pool.machine.placement_group not in (None, CLUSTER_GROUP) for pool in pools):
        yield "DescribePlacementGroups"
    if settings.security_groups:
        yield "DescribeSecurityGroups"
    if uses_fleets(settings, pools):
        yield "DescribeFleets"
    if settings.launch_template is not None:
        yield "DescribeLaunchTemplateVersions"


def _images(settings: AwsCloud, pools: Sequence[Pool], arns: _Arns) -> Iterator[Statement]:
    """Fixed images by their ids, and images that pools search for by their owners."""
    fixed_ids = {settings.image for pool in pools if pool.image is None}
    fixed_ids |= {pool.image.id for pool in pools if pool.image is not None and pool.image.id}
    image = f"arn:{arns.partition}:ec2:{settings.region}::image"
    if fixed_ids:
        yield _allow(
            "LaunchFrom", ["RunInstances"], [f"{image}/{id_}" for id_ in sorted(fixed_ids)]
        )
    if any(pool.image is not None and pool.image.id is None for pool in pools):
        own_account = "${aws:PrincipalAccount}"
        owners = [own_account if owner == "self" else owner for owner in settings.image_owners]
        condition = {"StringEquals": {"ec2:Owner": owners}}
        yield _allow("LaunchFromFound", ["RunInstances"], [f"{image}/*"], condition)


def _places(settings: AwsCloud, cluster: Cluster, pools: Sequence[Pool], arns: _Arns) -> list[str]:
    """All other resources that a launch needs. EC2 chooses the resources that the settings do not
    name.
    """
    subnets = dict.fromkeys(name for pool in pools for name in _subnets(settings, pool))
    arns_needed = [arns.ec2("subnet", name) for name in subnets or ("*",)]
    arns_needed += [arns.ec2("security-group", name) for name in settings.security_groups or ["*"]]
    arns_needed += [arns.ec2("network-interface"), arns.ec2("volume")]
    groups = {
        group.get("GroupName", "*")  # a group's ARN contains its name, never its id
        for pool in pools
        if (group := group_of(settings, cluster, pool))
    }
    arns_needed += [arns.ec2("placement-group", name) for name in sorted(groups)]
    if _use_spot(pools):
        arns_needed.append(arns.ec2("spot-instances-request"))
    if settings.key_name:
        arns_needed.append(arns.ec2("key-pair", settings.key_name))
    arns_needed += [
        arns.ec2("capacity-reservation", held.id) for held in settings.held if held.kind in TARGETED
    ]
    # A launch on a reservation is no fleet.
    is_run = not uses_fleets(settings, pools) or bool(settings.reservations)
    is_run = is_run or any(pool.machine.rdma for pool in pools)
    if is_run and settings.launch_template is not None:
        template = settings.launch_template
        arns_needed.append(
            arns.ec2("launch-template", template if template.startswith(_IDS) else "*")
        )
    return arns_needed


def _subnets(settings: AwsCloud, pool: Pool) -> list[str]:
    """The subnets of the pool's machines; ``*`` if EC2 chooses them."""
    pool_settings = for_pool(settings, pool)
    zones = pool.zones or pool_settings.known_zones
    subnets = pool_settings.subnets
    return [subnet for zone, subnet in subnets.items() if zone in zones] or ["*"]


def _tagged(settings: AwsCloud, pools: Sequence[Pool], arns: _Arns) -> list[str]:
    kinds = ["instance", "volume"]
    if _makes_groups(pools):
        kinds.append("placement-group")
    if _use_spot(pools):
        kinds.append("spot-instances-request")
    if uses_fleets(settings, pools):
        kinds += ["fleet", "launch-template"]
    return [arns.ec2(kind) for kind in kinds]


def _fleets(settings: AwsCloud, cluster: Cluster, arns: _Arns) -> Iterator[Statement]:
    """Statements for fleets. An instant fleet starts machines with the caller's own right to
    RunInstances, so the limits of that right apply to fleets, too.
    """
    templates = [arns.ec2("launch-template")]
    yield _allow("Fleets", ["CreateFleet"], ["*"], _in_region(settings))
    condition = {"StringEquals": {f"aws:RequestTag/{CLUSTER}": cluster.uuid}}
    yield _allow("MakeTemplates", ["CreateLaunchTemplate"], templates, condition)
    yield _allow("LaunchByTemplates", ["RunInstances"], templates, _tagged_with(cluster))
    # For the same reason a later tag needs our tag on the machine, and only the keys of places are
    # allowed.
    yield _allow("TagPlaces", ["CreateTags"], [arns.ec2("instance")], {
        **_tagged_with(cluster),
        "ForAllValues:StringLike": {"aws:TagKeys": [f"{PLACE}*"]},
    })  # fmt: skip


def _types(settings: AwsCloud, pools: Sequence[Pool]) -> list[str]:
    return sorted({
        name
        for pool in pools
        for name in pool.instance_types or settings.types
        if name in settings.types
    })  # fmt: skip


def _makes_groups(pools: Sequence[Pool]) -> bool:
    return any(pool.machine.placement_group == CLUSTER_GROUP for pool in pools)


def _keys(pools: Sequence[Pool], settings: AwsCloud, arns: _Arns) -> Iterator[Statement]:
    """Statements for keys of KMS that encrypt disks. EC2 uses a key in the name of the caller
    ("Amazon EBS encryption: Permissions for IAM users"). An id or alias has no ARN of its own here.
    """
    disks = [d for p in pools for d in (p.machine.root_disk, *p.machine.disks) if d is not None]
    keys = {disk.kms_key for disk in disks if disk.kms_key is not None}
    if not keys:
        return
    key_arns = sorted({key if key.startswith("arn:") else "*" for key in keys})
    by_ec2 = {"kms:ViaService": arns.service.replace("ec2.", f"ec2.{settings.region}.", 1)}
    actions = ["Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncrypt*"]
    yield {
        "Sid": "EncryptDisks",
        "Effect": "Allow",
        "Action": [f"kms:{action}" for action in actions],
        "Resource": key_arns,
        "Condition": {"StringEquals": by_ec2},
    }
    yield {
        "Sid": "LendKeysToEc2",
        "Effect": "Allow",
        "Action": ["kms:CreateGrant"],
        "Resource": key_arns,
        "Condition": {"Bool": {"kms:GrantIsForAWSResource": "true"}, "StringEquals": by_ec2},
    }


def _use_spot(pools: Sequence[Pool]) -> bool:
    return any(Market.SPOT in pool.markets for pool in pools)


def _tagged_with(cluster: Cluster) -> dict[str, object]:
    return {"StringEquals": {f"aws:ResourceTag/{CLUSTER}": cluster.uuid}}


def _in_region(settings: AwsCloud) -> dict[str, object]:
    return {"StringEquals": {"aws:RequestedRegion": settings.region}}


def _allow(
    name: str,
    actions: Sequence[str],
    resources: Sequence[str],
    condition: Mapping[str, object] | None = None,
) -> Statement:
    statement: Statement = {
        "Sid": name,
        "Effect": "Allow",
        "Action": [f"ec2:{action}" for action in actions],
        "Resource": list(resources),
    }
    return statement | ({"Condition": condition} if condition else {})


def _notes(settings: AwsCloud, pools: Sequence[Pool]) -> Iterator[str]:
    for demand in capacity.demands(settings, pools):
        code = capacity.CODES.get((demand.family, demand.market), "see Service Quotas")
        yield (
            f"IAM bounds no counts: hold {demand.shown} ({code}) near {demand.max_vcpus}, which is "
            "the most that the pools ask for"
        )
    profile = settings.instance_profile
    if profile and not profile.startswith("arn:"):
        yield f"the role of instance profile {profile} is taken to have its name"
    if settings.launch_template is not None:
        yield (
            f"launch template {settings.launch_template} may name further resources (disks, "
            "groups, keys): add them to LaunchInto, by doctor's dry run"
        )
