"""A pool's section ``machine`` on EC2: disks, EFA, placement, metadata hops, subnets of its own.

Requests are checked by botocore's own schema and carried out by the emulated EC2.
"""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator
from msgspec.structs import replace
from providers.aws.bed import REGION, AwsBed, FleetBed, between

from slurm_elastic.base.errors import AuthError, DeniedError, ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Pool
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.machine_options import Disk, MachineOptions
from slurm_elastic.providers.aws import hardware
from slurm_elastic.providers.aws.checks.validate_machine import DISK_TYPES
from slurm_elastic.providers.aws.errors import translated
from slurm_elastic.providers.aws.provider import AwsProvider
from slurm_elastic.providers.aws.requests import spot_bound
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.testing.contract import UUID

GIB = 1024
DISKS = MachineOptions(
    root_disk=Disk(size=100 * GIB, type="gp3", iops=6000, throughput=500, encrypted=True),
    disks=(Disk(size=20 * GIB), Disk(size=150 * GIB, type="st1")),
    metadata_hops=2,
    placement_group="cluster",
)
TYPES = {
    "c5.large": InstanceType(cpus=2, memory=4096, price=0.085),
    "hpc7a.96xlarge": InstanceType(cpus=192, memory=768 * GIB, price=7.2),
    "p4d.24xlarge": InstanceType(cpus=96, memory=1152 * GIB, price=32.77),
}
BOTH = pytest.mark.parametrize("kind", [AwsBed, FleetBed])


def pool_with(bed: AwsBed, machine: MachineOptions, **changes: Any) -> Pool:
    zones = {"zones": ("us-east-1a",), "markets": (Market.ON_DEMAND,)}
    return replace(bed.pool, machine=machine, **{**zones, **changes})


def opened(bed: AwsBed, **more: object) -> AwsProvider:
    provider = bed.open(**({"image": IMAGE, "types": TYPES} | more))
    assert isinstance(provider, AwsProvider)
    return provider


def launch(bed: AwsBed, pool: Pool, count: int = 1, **more: object) -> list[dict[str, Any]]:
    """EC2's records of the machines of one launch."""
    provider = opened(bed, **more)
    spec = LaunchSpec(
        generation="g1", pool=pool, nodes=pool.nodes[:count], offer=provider.offers(pool)[0]
    )
    ids = [machine.id for machine in provider.launch(spec)]
    assert len(ids) == count
    found = bed.client.describe_instances(InstanceIds=ids)["Reservations"]
    return [machine for reservation in found for machine in reservation["Instances"]]


def requests_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """All requests from now on. Each must fit botocore's schema."""
    found: list[tuple[str, Any]] = []
    model = botocore.session.get_session().get_service_model("ec2")

    def send(real: Any, name: str, request: Any) -> Any:
        operation = "".join(word.capitalize() for word in name.split("_"))
        shape = model.operation_model(operation).input_shape
        # A handler of boto3 encodes user data.
        plain = {k: "" if k == "UserData" else v for k, v in request.items()}
        report = ParamValidator().validate(plain, shape)
        assert not report.has_errors(), report.generate_report()
        found.append((name, request))
        return real()

    between(monkeypatch, send)
    return found


@BOTH
def test_machines_have_the_disks_of_their_pool(
    ec2: Ec2Control, kind: type[AwsBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = kind(ec2)
    sent = requests_of(monkeypatch)
    (machine,) = launch(bed, pool_with(bed, DISKS))
    attached = {d["DeviceName"]: d["Ebs"] for d in machine["BlockDeviceMappings"]}
    ids = [attached[name]["VolumeId"] for name in ("/dev/xvda", "/dev/sdf", "/dev/sdg")]
    volumes = {v["VolumeId"]: v for v in bed.client.describe_volumes(VolumeIds=ids)["Volumes"]}
    assert [volumes[id_]["Size"] for id_ in ids] == [100, 20, 150]
    assert [volumes[id_]["VolumeType"] for id_ in ids[::2]] == ["gp3", "st1"]
    assert volumes[ids[0]]["Encrypted"]
    data = [r.get("LaunchTemplateData", r) for name, r in sent if "run" in name or "temp" in name]
    disks = data[0]["BlockDeviceMappings"]
    assert (disks[0]["Ebs"]["Iops"], disks[0]["Ebs"]["Throughput"]) == (6000, 500)
    assert all(d["Ebs"]["DeleteOnTermination"] for d in disks), "none is paid after its machine"
    assert data[0]["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert data[0]["MetadataOptions"]["HttpTokens"] == "required"


@BOTH
def test_our_group_is_made_once_with_our_tags(ec2: Ec2Control, kind: type[AwsBed]) -> None:
    bed = kind(ec2)
    pool = pool_with(bed, DISKS)
    launch(bed, pool)
    (group,) = bed.client.describe_placement_groups()["PlacementGroups"]
    tags = {t["Key"]: t["Value"] for t in group["Tags"]}
    assert group["Strategy"] == "cluster"
    assert tags["slurm-elastic:cluster"] == UUID
    assert tags["slurm-elastic:pool"] == pool.name
    provider = opened(bed)  # another process, which does not know that it exists
    offer = provider.offers(pool)[0]
    nodes = pool.nodes[1:2]
    provider.launch(LaunchSpec(generation="g2", pool=pool, nodes=nodes, offer=offer))
    assert bed.calls("CreatePlacementGroup") == 2
    assert len(bed.client.describe_placement_groups()["PlacementGroups"]) == 1
    assert bed.calls("DeletePlacementGroup") == 0


def test_a_group_that_a_person_deleted_is_made_again(bed: AwsBed) -> None:
    pool = pool_with(bed, DISKS)
    provider = opened(bed)
    spec = LaunchSpec(
        generation="g1", pool=pool, nodes=pool.nodes[:1], offer=provider.offers(pool)[0]
    )
    provider.launch(spec)
    (group,) = bed.client.describe_placement_groups()["PlacementGroups"]
    bed.client.delete_placement_group(GroupName=group["GroupName"])
    again = replace(spec, generation="g2", nodes=pool.nodes[1:2])
    with pytest.raises(ProviderError, match="is unknown"):
        provider.launch(again)
    assert len(provider.launch(replace(again, generation="g3"))) == 1


@BOTH
def test_a_pool_with_efa_gets_an_interface_on_each_card(
    ec2: Ec2Control, kind: type[AwsBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet, too: its types share a template, but not their number of cards."""
    bed = kind(ec2)
    subnet = bed.client.describe_subnets()["Subnets"][0]
    zone = subnet["AvailabilityZone"]
    machine = MachineOptions(rdma=True, subnets={zone: subnet["SubnetId"]})
    pool = pool_with(bed, machine, instance_types=tuple(TYPES), zones=())
    sent = requests_of(monkeypatch)
    group = bed.client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    provider = opened(bed, security_groups=(group,))
    offers = {offer.instance_type: offer for offer in provider.offers(pool)}
    assert set(offers) == {"hpc7a.96xlarge", "p4d.24xlarge"}, "no type without EFA"
    for n, (name, count) in enumerate({"hpc7a.96xlarge": 2, "p4d.24xlarge": 4}.items()):
        spec = LaunchSpec(
            generation=f"g{n}", pool=pool, nodes=pool.nodes[n : n + 1], offer=offers[name]
        )
        (started,) = provider.launch(spec)
        assert started.zone == zone
        run = sent[-1][1]
        cards = run["NetworkInterfaces"]
        assert [c["NetworkCardIndex"] for c in cards] == list(range(count))
        assert [c["DeviceIndex"] for c in cards] == [0] + [1] * (count - 1)
        assert {c["InterfaceType"] for c in cards} == {"efa"}
        assert {c["SubnetId"] for c in cards} == {subnet["SubnetId"]}
        assert all(c["Groups"] == [group] for c in cards)
        assert not {"SubnetId", "SecurityGroupIds"} & run.keys(), "EC2 refuses them beside these"
    asked = [request for name, request in sent if name == "describe_instance_types"]
    assert len(asked) == 1, "a type never changes"


@BOTH
def test_a_pool_has_subnets_and_zones_of_its_own(ec2: Ec2Control, kind: type[AwsBed]) -> None:
    bed = kind(ec2)
    vpc = bed.client.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
    own = {
        zone: bed.client.create_subnet(
            VpcId=vpc, CidrBlock=f"10.7.{n}.0/24", AvailabilityZone=zone
        )["Subnet"]["SubnetId"]
        for n, zone in enumerate(("us-east-1c", "us-east-1d"))
    }
    pool = pool_with(bed, MachineOptions(subnets=own), zones=())
    assert [o.zone for o in opened(bed).offers(pool)] == ["us-east-1c", "us-east-1d"]
    (machine,) = launch(bed, replace(pool, zones=("us-east-1d",)))
    assert machine["Placement"]["AvailabilityZone"] == "us-east-1d"


def test_a_fleet_in_subnets_of_the_pool_blames_only_the_zone_that_has_none(
    ec2: Ec2Control,
) -> None:
    """EC2's answer names only the subnet of a refusal, so the zone is looked up among the pool's."""
    bed = FleetBed(ec2)
    subnets = bed.client.describe_subnets()["Subnets"]
    own = {
        s["AvailabilityZone"]: s["SubnetId"]
        for s in subnets
        if s["AvailabilityZone"] < "us-east-1c"
    }
    pool = pool_with(bed, MachineOptions(subnets=own), zones=())
    bed.control.stock("*/us-east-1a/*", 1)
    provider = opened(bed)
    first, *others = sorted(provider.offers(pool), key=lambda offer: offer.zone)
    spec = LaunchSpec(
        generation="g1", pool=pool, nodes=pool.nodes[:2], offer=first, alternatives=tuple(others)
    )
    assert {machine.zone for machine in provider.launch(spec)} == {"us-east-1a", "us-east-1b"}
    assert list(provider.refusals("g1")) == [first.key]


def test_disks_count_in_prices_and_in_no_bound_for_ec2(bed: AwsBed) -> None:
    markets = (Market.SPOT, Market.ON_DEMAND)
    plain = pool_with(bed, MachineOptions(), markets=markets, max_price=0.05)
    pool = replace(plain, machine=MachineOptions(disk_price=0.01))
    provider = opened(bed)
    before = {o.key: o for o in provider.offers(plain)}
    for offer in provider.offers(pool):
        assert offer.price == pytest.approx(before[offer.key].price + 0.01)
        assert offer.worst_price == pytest.approx(before[offer.key].worst_price + 0.01)
        if offer.market is Market.SPOT:
            assert spot_bound(pool, offer) == "0.040000"


def test_only_a_pool_with_options_has_another_recipe(bed: AwsBed) -> None:
    provider, plain = opened(bed), bed.pool
    words = {
        provider.recipe(replace(plain, machine=machine))
        for machine in (
            MachineOptions(),
            MachineOptions(metadata_hops=2),
            MachineOptions(disks=(Disk(size=GIB),)),
            MachineOptions(subnets={"us-east-1a": "subnet-1"}),
        )
    }
    assert len(words) == 4


def test_the_sites_template_keeps_its_other_disks_and_its_placement() -> None:
    cluster = Cluster(name="site", uuid=UUID)
    settings = AwsCloud(
        name="aws", location=Location.PUBLIC, region=REGION, image=IMAGE, types=TYPES
    )
    pool = Pool(
        name="p", cloud="aws", nodes=("n1",), cpus=1, real_memory=1,
        machine=MachineOptions(disks=(Disk(size=GIB),), placement_group="pg-1"),
    )  # fmt: skip
    site = {
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 9}},
            {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 9}},
        ],
        "Placement": {"GroupName": "theirs", "Tenancy": "dedicated"},
    }
    request = hardware.options(settings, cluster, pool, hardware.NO_FACTS, site)
    assert request["Placement"] == {"GroupId": "pg-1", "Tenancy": "dedicated"}
    sizes = {d["DeviceName"]: d["Ebs"]["VolumeSize"] for d in request["BlockDeviceMappings"]}
    assert sizes == {"/dev/sda1": 9, "/dev/sdf": 1}


def test_our_types_of_disks_are_botocores() -> None:
    model = botocore.session.get_session().get_service_model("ec2")
    assert set(DISK_TYPES) == set(model.shape_for("VolumeType").enum)


@BOTH
def test_machines_are_listed_with_the_image_of_their_pool(
    ec2: Ec2Control, kind: type[AwsBed]
) -> None:
    bed = kind(ec2)
    pool = replace(bed.pool, image=ImageChoice(id="ami-00000007"))
    provider = opened(bed)
    offer = provider.offers(pool)[0]
    provider.launch(LaunchSpec(generation="g1", pool=pool, nodes=pool.nodes[:1], offer=offer))
    (machine,) = provider.instances()
    assert machine.image == provider.image_for(pool) == "ami-00000007"


def refused(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 refuses that call for want of the right to it."""
    operation = "".join(word.capitalize() for word in action.split("_"))
    answer = {"Error": {"Code": "UnauthorizedOperation", "Message": "You are not authorized."}}

    def send(real: Any, name: str, request: Any) -> Any:
        if name != action:
            return real()
        with translated("aws"):
            raise ClientError(answer, operation)

    between(monkeypatch, send)


def test_a_missing_right_to_groups_is_that_launchs_refusal(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AuthError would take the whole cloud away, also from pools without a group."""
    refused("create_placement_group", monkeypatch)
    with pytest.raises(DeniedError, match="no right to ec2:CreatePlacementGroup"):
        launch(bed, pool_with(bed, DISKS))


def test_a_missing_right_to_types_takes_the_offers_of_pools_with_efa_alone(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused("describe_instance_types", monkeypatch)
    provider = opened(bed)
    with pytest.raises(ProviderError, match="no right to ec2:DescribeInstanceTypes") as caught:
        provider.offers(pool_with(bed, MachineOptions(rdma=True)))
    assert not isinstance(caught.value, AuthError)
    assert provider.offers(pool_with(bed, MachineOptions()))


# what doctor finds


def examined(bed: AwsBed, pool: Pool, **more: object) -> dict[str, Finding]:
    return {f.subject: f for f in opened(bed, **more).examine([pool])}


def test_doctor_tries_disks_and_groups_by_dry_runs_and_makes_nothing(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = requests_of(monkeypatch)
    found = examined(bed, pool_with(bed, DISKS))
    assert found["rights"].level is FindingLevel.OK
    assert "CreatePlacementGroup" in found["rights"].observed
    assert "RunInstances (on-demand, pool pub)" in found["rights"].observed
    tried = [request for name, request in sent if name == "run_instances"]
    assert tried[0]["BlockDeviceMappings"]
    assert tried[0]["Placement"] == {"AvailabilityZone": "us-east-1a"}
    assert all(request["DryRun"] for request in tried)
    assert not bed.client.describe_placement_groups()["PlacementGroups"]


def test_doctor_says_which_types_have_no_efa(bed: AwsBed) -> None:
    group = bed.client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    efa = MachineOptions(rdma=True)

    def level(*types: str) -> tuple[FindingLevel, str]:
        pool = pool_with(bed, efa, instance_types=types)
        finding = examined(bed, pool, security_groups=(group,))["EFA of pool pub"]
        return finding.level, finding.observed

    assert level("c5.large") == (FindingLevel.WRONG, "c5.large have no EFA")
    assert level("c5.large", "p4d.24xlarge")[0] is FindingLevel.NOTE
    assert level("p4d.24xlarge") == (FindingLevel.OK, "interfaces by type: p4d.24xlarge: 4")


def test_doctor_wants_a_group_that_allows_itself_in_both_directions(bed: AwsBed) -> None:
    pool = pool_with(bed, MachineOptions(rdma=True), instance_types=("p4d.24xlarge",))
    vpc = bed.client.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = bed.client.create_security_group(GroupName="mpi", Description="mpi", VpcId=vpc)
    id_ = group["GroupId"]

    def level() -> FindingLevel:
        return examined(bed, pool, security_groups=(id_,))["security groups for EFA"].level

    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id_}]}]
    assert level() is FindingLevel.WRONG
    bed.client.authorize_security_group_ingress(GroupId=id_, IpPermissions=itself)
    assert level() is FindingLevel.WRONG, "its rule for 0.0.0.0/0 does not cover EFA"
    bed.client.authorize_security_group_egress(GroupId=id_, IpPermissions=itself)
    assert level() is FindingLevel.OK


def test_doctor_looks_for_the_sites_group_and_its_one_zone(bed: AwsBed) -> None:
    machine = MachineOptions(placement_group="tight")
    pool = pool_with(bed, machine)
    subject = "placement group tight"
    assert examined(bed, pool)[subject].level is FindingLevel.WRONG
    bed.client.create_placement_group(GroupName="tight", Strategy="cluster")
    assert examined(bed, pool)[subject].level is FindingLevel.OK
    two = replace(pool, zones=("us-east-1a", "us-east-1b"))
    assert examined(bed, two)[subject].level is FindingLevel.WRONG
