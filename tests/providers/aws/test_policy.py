"""The policy of ``iam render aws`` grants all that the provider asks of EC2, and nothing else.

Every call of the contract suite is put before IAM's rules (``judge``) as it is sent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import boto3
import botocore.client
import pytest
from botocore.exceptions import ClientError
from image.files import image_at
from msgspec.structs import replace
from providers.aws.bed import REGION, AwsBed, FleetBed
from providers.aws.judge import S3, Known, actions, asks, granted

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.grants import GrantUse, Holder, use_of
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, NoticeSettings
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.model.machine_options import Disk, MachineOptions
from slurm_elastic.model.protocols import Provider, list_tidily
from slurm_elastic.providers import open_images, open_provider
from slurm_elastic.providers.aws import CLOUD, imports
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.catalogues import ask
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.testing.contract import UUID, LaunchContract, spec_for


class Gate:
    """Refuses what no policy of the opened clouds grants; keeps what was used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holder: Holder = Holder.SERVICES) -> None:
        self.holder = holder
        self.used: set[str] = set()
        self.policy: dict[str, object] = {"Statement": []}
        self._known = Known()
        self._real = botocore.client.BaseClient._make_api_call
        gate = self

        def call(client, operation, request):
            return gate.call(client, operation, request)

        monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)

    def open(self, settings, cluster: Cluster, pools) -> Provider:
        use = GrantUse(cluster=cluster, pools=tuple(pools), console=True)
        found = CLOUD.grant(settings, use, self.holder)
        self.policy["Statement"] += json.loads(found.text)["Statement"]
        return open_provider(settings, cluster)

    def call(self, client, operation: str, request):
        if not self.policy["Statement"] or operation not in OURS:
            return self._real(client, operation, request)  # the bed's own hand on the cloud
        if not request.get("DryRun"):
            for ask in asks(operation, request, self._known):
                assert granted(self.policy, ask), ask
                self.used.add(ask.action)
        if operation == "GetServiceQuota":  # another service; of an account without own quotas
            missing = {"Error": {"Code": "NoSuchResourceException", "Message": ""}}
            raise client.exceptions.NoSuchResourceException(missing, operation)
        answer = self._real(client, operation, request)
        self._learn(operation, request, answer)
        if operation == "CreateTags":
            told = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
            for number in request["Resources"]:
                self._known.tags[number] = {**self._known.tags.get(number, {}), **told}
        return answer

    def _learn(self, operation: str, request, answer) -> None:
        machines = list(answer.get("Instances", ())) if operation == "RunInstances" else []
        for reservation in answer.get("Reservations", ()):
            machines += reservation["Instances"]
        for one in machines:
            self._known.tags[one["InstanceId"]] = {
                t["Key"]: t["Value"] for t in one.get("Tags", ())
            }
        specified = {
            t["Key"]: t["Value"] for p in request.get("TagSpecifications", ()) for t in p["Tags"]
        }
        if operation == "CreateLaunchTemplate":
            self._known.tags[request["LaunchTemplateName"]] = specified
            self._known.templates[request["LaunchTemplateName"]] = request["LaunchTemplateData"]
        for group in answer.get("Instances", ()) if operation == "CreateFleet" else ():
            self._known.tags |= dict.fromkeys(group["InstanceIds"], specified)


OURS = {
    "CreateFleet", "CreateLaunchTemplate", "CreateTags", "DescribeAvailabilityZones",
    "DescribeFleets", "DescribeImages", "DescribeInstanceStatus", "DescribeInstances",
    "DescribeLaunchTemplateVersions", "DescribeSecurityGroups", "DescribeSpotInstanceRequests",
    "DescribeSpotPriceHistory", "DescribeSubnets", "GetAWSDefaultServiceQuota",
    "GetConsoleOutput", "GetServiceQuota", "RunInstances", "TerminateInstances",
    "DescribeInstanceTypes", "GetProducts", "DescribeImportSnapshotTasks", "DescribeSnapshots",
    "CreatePlacementGroup", "DescribePlacementGroups", "DeregisterImage", "ImportSnapshot", "RegisterImage", *S3,
}  # fmt: skip


def guarded(kind: type[AwsBed], ec2: Ec2Control, gate: Gate) -> AwsBed:
    class Bed(kind):
        def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
            cluster = Cluster(name="site", uuid=uuid)
            return gate.open(self.settings(api_timeout=timeout, **more), cluster, [self.pool])

        def add_foreign(self) -> set[str]:
            gate.policy, kept = {"Statement": []}, gate.policy
            try:
                return super().add_foreign()
            finally:
                gate.policy = kept

    return Bed(ec2)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.mark.release
class TestOneOfferAfterTheOther(LaunchContract):
    @pytest.fixture
    def bed(self, ec2: Ec2Control, gate: Gate) -> AwsBed:
        return guarded(AwsBed, ec2, gate)


@pytest.mark.release
class TestFleets(LaunchContract):
    @pytest.fixture
    def bed(self, ec2: Ec2Control, gate: Gate) -> AwsBed:
        return guarded(FleetBed, ec2, gate)


def live(bed: AwsBed, **more: object) -> None:
    """All that the services and doctor ask of a cloud, in a machine's life."""
    pool = bed.pool
    provider = bed.open(**more)
    if more.get("catalogue"):
        ask(bed.settings(**more), 0.0)
    provider.check()
    provider.examine([pool])
    offer = next(o for o in provider.offers(pool) if o.market is pool.markets[0])
    spec = replace(spec_for(bed, provider, 2), offer=offer)
    bed.limit(0)
    with suppress(ProviderError):  # a fleet that gave nothing is asked for
        provider.launch(replace(spec, generation="g0"))
    bed.heal()
    bed.limit(100)
    machine = provider.launch(spec)[0]
    list_tidily(provider)
    provider.notices()
    with suppress(ProviderError):
        provider.console(machine.id)
    provider.terminate([machine.id])


def key_and_role(bed: AwsBed) -> dict[str, object]:
    with suppress(ClientError):
        bed.client.create_key_pair(KeyName="admin")
    iam = boto3.client("iam", region_name=REGION, endpoint_url=bed.control.url)
    with suppress(ClientError):
        iam.create_instance_profile(InstanceProfileName="slurm-node")
    return {"key_name": "admin", "instance_profile": "slurm-node"}


def network(bed: AwsBed) -> dict[str, object]:
    subnets = bed.client.describe_subnets()["Subnets"]
    groups = bed.client.describe_security_groups()["SecurityGroups"]
    return {
        "zones": (),
        "subnets": {s["AvailabilityZone"]: s["SubnetId"] for s in subnets},
        "security_groups": (groups[0]["GroupId"],),
    }


def template(bed: AwsBed) -> dict[str, object]:
    data = {"InstanceType": "c5.large"}
    made = bed.client.create_launch_template(
        LaunchTemplateName=f"site-{secrets.token_hex(4)}", LaunchTemplateData=data
    )
    return {"launch_template": made["LaunchTemplate"]["LaunchTemplateId"]}


def image(bed: AwsBed) -> dict[str, object]:
    bed.client.register_image(Name="slurm-1", RootDeviceName="/dev/sda1")
    bed.pool = replace(bed.pool, image=ImageChoice(name="slurm-*"))
    return {}


def catalogue(bed: AwsBed) -> dict[str, object]:
    return {"catalogue": True}


def hardware(bed: AwsBed) -> dict[str, object]:
    """EFA, a group that we make, a disk with a key, subnets of the pool."""
    more = network(bed)
    zone, subnet = next(iter(more["subnets"].items()))
    disk = Disk(size=10240, encrypted=True, kms_key="arn:aws:kms:us-east-1:1:key/k")
    machine = MachineOptions(
        root_disk=disk, rdma=True, placement_group="cluster", subnets={zone: subnet}
    )
    on_demand(bed)  # the type has no spot price here
    bed.pool = replace(bed.pool, instance_types=("p4d.24xlarge",), machine=machine)
    types = {"p4d.24xlarge": InstanceType(cpus=96, memory=1179648, price=32.77)}
    return {"security_groups": more["security_groups"], "types": types, "image": IMAGE}


def sites_group(bed: AwsBed) -> dict[str, object]:
    with suppress(ClientError):
        bed.client.create_placement_group(GroupName="tight", Strategy="spread")
    bed.pool = replace(bed.pool, machine=MachineOptions(placement_group="tight"))
    return {}


def on_demand(bed: AwsBed) -> dict[str, object]:
    bed.pool = replace(bed.pool, markets=(Market.ON_DEMAND,))
    return {}


CASES = [lambda bed: {}, lambda bed: {"zones": ()}, key_and_role, network, template, image,
         catalogue, on_demand, hardware, sites_group]  # fmt: skip


EACH = [
    pytest.param(kind, case, marks=() if case in first else pytest.mark.release)
    for kind, first in ((AwsBed, set(CASES) - {catalogue}), (FleetBed, CASES[:1]))
    for case in CASES
]


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_whatever_is_granted_is_used(
    case: Callable[[AwsBed], dict[str, object]], kind: type[AwsBed], ec2: Ec2Control, gate: Gate
) -> None:
    bed = guarded(kind, ec2, gate)
    more = case(bed)
    live(bed, **more)
    assert gate.used == actions(gate.policy)


def test_the_watchdog_may_see_and_end_and_nothing_else(
    ec2: Ec2Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = AwsBed(ec2)
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    gate = Gate(monkeypatch, Holder.WATCHDOG)
    dog = gate.open(bed.settings(), Cluster(name="site", uuid=UUID), [bed.pool])
    assert [m.id for m in list_tidily(dog)] == [machine.id]
    dog.terminate([machine.id])
    assert not bed.alive()
    assert gate.used == actions(gate.policy)


def test_machines_of_others_can_neither_be_ended_nor_made(ec2: Ec2Control, gate: Gate) -> None:
    bed = guarded(AwsBed, ec2, gate)
    provider = bed.open()
    foreign = bed.add_foreign().pop()
    with pytest.raises(AssertionError, match="TerminateInstances"):
        provider._api.send("terminate_instances", {"InstanceIds": [foreign]})
    spec = spec_for(bed, provider, 1)
    large = replace(spec, offer=replace(spec.offer, instance_type="p5.48xlarge"))
    with pytest.raises(AssertionError, match="RunInstances"):
        provider.launch(large)


@pytest.mark.parametrize(
    ("queue", "reads"), [(None, []), ("other", []), ("aws", ["arn:aws:sqs:eu-west-1:12:spot"])]
)
def test_the_account_that_reads_the_queue_of_notices_may_read_it(
    queue: str | None, reads: list[str]
) -> None:
    clouds = [
        AwsCloud(name=name, location=Location.PUBLIC, region="eu-west-1", image="ami-1", types={})
        for name in ("aws", "other")
    ]
    url = None if queue is None else "https://sqs.eu-west-1.amazonaws.com/12/spot"
    notices = NoticeSettings(queue_url=url, queue_cloud=queue)
    config = Config(
        cluster=Cluster(name="site", uuid=UUID), clouds=tuple(clouds), pools=(),
        checkpoint=CheckpointSettings(notices=notices),
    )  # fmt: skip
    granted = json.loads(
        CLOUD.grant(clouds[0], use_of(config, clouds[0], expand), Holder.SERVICES).text
    )
    found = [row for row in granted["Statement"] if row["Sid"] == "ReadNotices"]
    assert [row["Resource"] for row in found] == reads


def test_whoever_uploads_images_may_do_that_and_nothing_else(
    ec2: Ec2Control, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(imports, "POLL_EVERY_S", 0.01)
    bed = AwsBed(ec2)
    boto3.client("s3", region_name=REGION, endpoint_url=ec2.url).create_bucket(Bucket="images")
    gate = Gate(monkeypatch, Holder.IMAGES)
    settings, cluster = bed.settings(image_bucket="images"), Cluster(name="site", uuid=UUID)
    gate.open(settings, cluster, [bed.pool])
    store = open_images(settings, cluster)
    file = image_file(image_at(tmp_path / "a.raw", secrets.token_bytes(20 << 20)), None, None)
    upload(store, file, lambda _: None)
    store.remove(next(one for one in store.images() if one.digest == file.digest))
    assert gate.used | {"s3:AbortMultipartUpload"} == actions(gate.policy)
