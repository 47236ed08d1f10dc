"""Doctor's findings on EC2: image, subnets, groups, clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace
from patience import stretched
from providers.aws.bed import AwsBed, FleetBed, between

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Examinable
from slurm_elastic.providers.aws.checks import rights as aws_rights
from slurm_elastic.providers.aws.checks.capacity import family_of
from slurm_elastic.providers.base.inbound_rules import InboundRules
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.testing.contract import spec_for


def examined(bed: AwsBed, **settings: object) -> dict[str, Finding]:
    provider = bed.open(**settings)
    assert isinstance(provider, Examinable)
    return {f.subject: f for f in provider.examine([bed.pool])}


def image(bed: AwsBed) -> str:
    machine = bed.client.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1)["Instances"][0]
    made = bed.client.create_image(InstanceId=machine["InstanceId"], Name="worker")
    return str(made["ImageId"])


def test_an_image_that_is_there_and_one_that_is_not(bed: AwsBed) -> None:
    number = image(bed)
    good = examined(bed, image=number)
    assert good[f"image {number}"].level is FindingLevel.OK
    assert good["clock"].level is FindingLevel.OK
    assert examined(bed, image=IMAGE)[f"image {IMAGE}"].level is FindingLevel.OK
    bad = examined(bed, image="ami-00000000")["image ami-00000000"]
    assert bad.level is FindingLevel.WRONG
    assert bad.advice


def test_subnets_are_there_in_their_zones_with_room(bed: AwsBed) -> None:
    subnets = {
        s["AvailabilityZone"]: s["SubnetId"] for s in bed.client.describe_subnets()["Subnets"]
    }
    right, other = subnets["us-east-1a"], subnets["us-east-1b"]
    found = examined(bed, subnets={"us-east-1a": right})[f"subnet {right}"]
    assert found.level in (FindingLevel.OK, FindingLevel.NOTE)
    assert "addresses free" in found.observed
    swapped = examined(bed, subnets={"us-east-1a": other})[f"subnet {other}"]
    assert (swapped.level, swapped.observed) == (FindingLevel.WRONG, "in zone us-east-1b")
    assert examined(bed, subnets={"us-east-1a": "subnet-0"})["subnets"].level is FindingLevel.WRONG


def test_a_subnet_of_ipv6_alone_lacks_no_addresses(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 counts those of IPv4, of which it has none."""
    subnet = {
        "SubnetId": "subnet-6", "AvailabilityZone": "us-east-1a", "Ipv6Native": True,
        "AvailableIpAddressCount": 0,
    }  # fmt: skip

    def answer(real: Callable[[], Any], operation: str, _: object) -> Any:
        return {"Subnets": [subnet]} if operation == "describe_subnets" else real()

    between(monkeypatch, answer)
    found = examined(bed, subnets={"us-east-1a": "subnet-6"})["subnet subnet-6"]
    assert (found.level, found.observed) == (FindingLevel.OK, "in zone us-east-1a, of IPv6 alone")


@pytest.mark.parametrize(("own", "level"), [(16, FindingLevel.OK), (17, FindingLevel.WRONG)])
def test_the_sites_own_tags_must_leave_room_for_ours(
    bed: AwsBed, own: int, level: FindingLevel
) -> None:
    tags = [{"Key": f"site-{n}", "Value": "x"} for n in range(own)]
    data = {"TagSpecifications": [{"ResourceType": "instance", "Tags": tags}]}
    bed.client.create_launch_template(LaunchTemplateName="site", LaunchTemplateData=data)
    found = examined(bed, launch_template="site")["launch template site"]
    assert (found.level, f"{own} tags of its own" in found.observed) == (level, True)
    missing = examined(bed, launch_template="nobodys")["launch template nobodys"]
    assert (missing.level, missing.advice) == (
        FindingLevel.WRONG,
        "correct clouds[].launch_template",
    )
    refuse(bed, "DescribeLaunchTemplateVersions")
    unseen = examined(bed, launch_template="site")["launch template site"]
    assert unseen.level is FindingLevel.NOTE


def test_groups(bed: AwsBed) -> None:
    group = bed.client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    assert examined(bed, security_groups=(group,))["security groups"].level is FindingLevel.OK
    assert examined(bed, security_groups=("sg-0",))["security groups"].level is FindingLevel.WRONG


def test_a_cloud_that_refuses_everything_is_findings_and_no_error(bed: AwsBed) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH))
    found = examined(bed, subnets={"us-east-1a": "subnet-1"}, security_groups=("sg-1",))
    refused = {what: f.level for what, f in found.items() if "AuthFailure" in f.observed}
    assert refused["image ami-12345678"] is FindingLevel.WRONG
    assert {refused["subnets"], refused["security groups"]} == {FindingLevel.NOTE}
    assert refused["right to DescribeInstances"] is FindingLevel.WRONG
    assert refused["vCPU quotas"] is FindingLevel.NOTE
    assert found["rights"].level is FindingLevel.NOTE
    bed.heal()


def wrong(found: dict[str, Finding]) -> set[str]:
    return {what for what, finding in found.items() if finding.level is FindingLevel.WRONG}


class TestRights:
    def test_all_that_a_launch_takes_is_tried_and_nothing_is_done(self, bed: AwsBed) -> None:
        found = examined(bed, image=IMAGE)
        assert wrong(found) == set()
        rights = found["rights"]
        assert rights.level is FindingLevel.OK
        for action in (
            "DescribeInstances", "DescribeSpotPriceHistory", "RunInstances (spot)",
            "RunInstances (on-demand)", "TerminateInstances",
        ):  # fmt: skip
            assert action in rights.observed
        assert bed.alive() == set()

    def test_a_right_that_is_missing_is_named(self, bed: AwsBed) -> None:
        machine = bed.open().launch(spec_for(bed, bed.open(), 1))[0]
        refuse(bed, "TerminateInstances")
        finding = examined(bed, image=IMAGE)["right to TerminateInstances"]
        assert finding.level is FindingLevel.WRONG
        assert "UnauthorizedOperation" in finding.observed
        assert "allow ec2:TerminateInstances" in finding.advice
        assert bed.alive() == {machine.id}

    def test_without_a_machine_a_policy_by_tags_may_be_right(self, bed: AwsBed) -> None:
        refuse(bed, "TerminateInstances")
        finding = examined(bed, image=IMAGE)["right to TerminateInstances"]
        assert finding.level is FindingLevel.NOTE
        assert "look again when a machine runs" in finding.advice

    @pytest.mark.parametrize("markets", [(Market.SPOT,), (Market.SPOT, Market.ON_DEMAND)])
    def test_launches_are_tried_though_nobody_tells_spot_prices(
        self, bed: AwsBed, markets: tuple[Market, ...]
    ) -> None:
        refuse(bed, "DescribeSpotPriceHistory")
        provider = bed.open(image=IMAGE)
        found = {f.subject: f for f in provider.examine([replace(bed.pool, markets=markets)])}
        assert wrong(found) == {"right to DescribeSpotPriceHistory"}
        assert all(f"RunInstances ({market})" in found["rights"].observed for market in markets)

    def test_what_is_optional_is_a_note(self, bed: AwsBed) -> None:
        refuse(bed, "DescribeInstanceStatus")
        finding = examined(bed, image=IMAGE)["right to DescribeInstanceStatus"]
        assert finding.level is FindingLevel.NOTE
        assert "maintenance" in finding.advice

    def test_a_launch_that_would_be_refused_for_its_settings(self, bed: AwsBed) -> None:
        kind = Fault(kind=FaultKind.AUTH, action="RunInstances", code="InvalidKeyPair.NotFound")
        bed.control.fail(kind)
        finding = examined(bed, image=IMAGE)["right to RunInstances (spot)"]
        assert finding.level is FindingLevel.WRONG
        assert "InvalidKeyPair.NotFound" in finding.observed

    def test_a_cloud_that_is_busy_says_nothing_of_rights(self, bed: AwsBed) -> None:
        bed.control.fail(Fault(kind=FaultKind.THROTTLE, action="RunInstances"))
        assert examined(bed, image=IMAGE)["right to RunInstances (spot)"].level is FindingLevel.NOTE

    def test_fleets_take_more(self, ec2: Ec2Control) -> None:
        bed = FleetBed(ec2)
        found = examined(bed, image=IMAGE)
        assert wrong(found) == set()
        for action in ("CreateFleet (spot)", "CreateLaunchTemplate", "CreateTags"):
            assert action in found["rights"].observed
        refuse(bed, "CreateFleet")
        assert wrong(examined(bed, image=IMAGE)) == {
            "right to CreateFleet (spot)",
            "right to CreateFleet (on-demand)",
        }

    def test_where_dry_runs_are_not_known_nothing_but_a_read_is_tried(self) -> None:
        """It would end the machine."""
        asked: list[str] = []

        class Ignorant:
            def send(self, operation: str, request: object) -> dict[str, object]:
                asked.append(operation)
                return {}

        cloud = AwsBed.__new__(AwsBed)
        cloud.control = SimpleNamespace(url="http://127.0.0.1:9")
        tried = aws_rights.attempts(
            cloud.settings(), Cluster(name="site", uuid="u"), [AwsBed.pool], [], "i-1"
        )
        found = list(aws_rights.examine(Ignorant(), tried))
        assert asked == ["describe_instances"]
        assert [f.level for f in found] == [FindingLevel.NOTE, FindingLevel.NOTE]

    def test_slow_dry_runs_do_not_wait_for_each_other(self) -> None:
        both_run = threading.Barrier(2, timeout=stretched(20.0))

        class Slow:
            def send(self, operation: str, request: object) -> NoReturn:
                if operation == "run_instances":
                    both_run.wait()  # BrokenBarrierError if the other one has not begun
                raise ProviderError("aws", aws_rights.GRANTED, "it would have succeeded")

        tried = [
            aws_rights.Attempt(operation=f"{verb}_instances", action=f"{verb.title()}Instances")
            for verb in ("describe", "run", "run")
        ]
        (finding,) = aws_rights.examine(Slow(), tried)
        assert finding.observed == "granted: DescribeInstances, RunInstances, RunInstances"

    def test_a_right_that_is_not_proven_is_not_called_granted(self, ec2: Ec2Control) -> None:
        bed = FleetBed(ec2)
        code = "InvalidLaunchTemplateName.NotFoundException"
        bed.control.fail(Fault(kind=FaultKind.AUTH, action="CreateFleet", code=code))
        found = examined(bed, image=IMAGE)
        assert found["right to CreateFleet (spot)"].level is FindingLevel.NOTE
        assert "CreateFleet (spot)" not in found["rights"].observed


def refuse(bed: AwsBed, action: str) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH, action=action, code="UnauthorizedOperation"))


class TestQuotas:
    def test_enough_is_said_with_what_the_pools_could_ask_for(self, bed: AwsBed) -> None:
        found = examined(bed, image=IMAGE)
        assert found["vCPU quota, spot Standard"].level is FindingLevel.OK
        finding = found["vCPU quota, on-demand Standard"]
        assert finding.observed == "100000 vCPUs (L-1216C47A); pool pub could ask for 2400 at most"

    def test_less_than_the_pools_could_ask_for_is_a_note(self, bed: AwsBed) -> None:
        bed.control.quota("L-1216C47A", 32)
        finding = examined(bed, image=IMAGE)["vCPU quota, on-demand Standard"]
        assert (finding.level, finding.observed) == (FindingLevel.NOTE, "32 vCPUs (L-1216C47A)")
        assert "2400" in finding.expected
        assert "--quota-code L-1216C47A --desired-value 2400" in finding.advice

    def test_a_quota_in_which_not_one_machine_fits_is_wrong(self, bed: AwsBed) -> None:
        bed.control.quota("L-34B43A08", 0)
        finding = examined(bed, image=IMAGE)["vCPU quota, spot Standard"]
        assert finding.level is FindingLevel.WRONG
        assert "not one machine" in finding.observed

    def test_the_cloud_s_limits_bound_what_is_asked_for(self, bed: AwsBed) -> None:
        bed.control.quota("L-1216C47A", 32)
        few = examined(bed, image=IMAGE, limits=Limits(on_demand=16))
        assert few["vCPU quota, on-demand Standard"].level is FindingLevel.OK
        cheap = examined(bed, image=IMAGE, limits=Limits(dollars_per_hour=1.0))
        found = cheap["vCPU quota, on-demand Standard"]
        assert "could ask for 23 at most" in found.observed  # 1 / 0.085 machines of 2

    def test_of_what_the_limits_do_not_allow_nothing_is_said(self, bed: AwsBed) -> None:
        bed.control.quota("L-1216C47A", 0)
        found = examined(bed, image=IMAGE, limits=Limits(on_demand=0))
        assert "vCPU quota, on-demand Standard" not in found
        assert "vCPU quota, spot Standard" in found

    def test_without_the_right_to_read_them_it_is_a_note(self, bed: AwsBed) -> None:
        kind = Fault(kind=FaultKind.AUTH, action="GetServiceQuota", code="AccessDeniedException")
        bed.control.fail(kind)
        finding = examined(bed, image=IMAGE)["vCPU quotas"]
        assert finding.level is FindingLevel.NOTE
        assert "servicequotas:GetServiceQuota" in finding.advice

    def test_a_service_that_does_not_know_them_is_a_note(self, bed: AwsBed) -> None:
        bed.control.quota("L-1216C47A", None)
        assert examined(bed, image=IMAGE)["vCPU quotas"].level is FindingLevel.NOTE

    @pytest.mark.parametrize(
        ("instance_type", "family"),
        [
            ("c5.large", "Standard"), ("im4gn.large", "Standard"), ("inf2.xlarge", "Inf"),
            ("g4dn.xlarge", "G and VT"), ("vt1.3xlarge", "G and VT"), ("p3.2xlarge", "P"),
            ("p5.48xlarge", "P"), ("x2gd.medium", "X"), ("hpc7a.96xlarge", "HPC"),
            ("u-6tb1.metal", "High Memory"), ("u7in-24tb.224xlarge", "High Memory"),
            ("trn1n.32xlarge", "Trn"), ("mac2.metal", "MAC"),
        ],
    )  # fmt: skip
    def test_families(self, instance_type: str, family: str) -> None:
        assert family_of(instance_type, Market.ON_DEMAND) == family

    def test_p5_s_spot_quota_is_not_p4_s(self) -> None:
        assert family_of("p4d.24xlarge", Market.SPOT) == "P"
        assert family_of("p5.48xlarge", Market.SPOT) == "P5"
        assert family_of("p5en.48xlarge", Market.SPOT) == "P5"
        assert family_of("p6-b200.48xlarge", Market.SPOT) == "P6"

    @pytest.mark.parametrize(
        ("instance_type", "code"),
        [
            ("p5.48xlarge", "L-C4BD4855"), ("trn1.32xlarge", "L-6B0D517C"),
            ("hpc7a.96xlarge", "L-F7808C92"), ("u7in-24tb.224xlarge", "L-43DA4232"),
        ],
    )  # fmt: skip
    def test_quotas_of_accelerated_and_large_machines_are_looked_up(
        self, bed: AwsBed, instance_type: str, code: str
    ) -> None:
        of_spot = Market.SPOT if instance_type[0] in "pt" else Market.ON_DEMAND
        provider = bed.open(types={instance_type: InstanceType(cpus=96, memory=1, price=9.0)})
        assert isinstance(provider, Examinable)
        pool = replace(bed.pool, instance_types=(instance_type,), markets=(of_spot,))
        (found,) = (f for f in provider.examine([pool]) if f.subject.startswith("vCPU quota"))
        assert f"({code})" in found.observed


def test_an_image_that_a_pool_looks_for(bed: AwsBed) -> None:
    provider = bed.open(image=IMAGE)
    assert isinstance(provider, Examinable)
    pool = replace(bed.pool, image=ImageChoice(name="nobody-has-it-*"))
    found = {f.subject: f for f in provider.examine([pool])}["image of pool pub"]
    assert found.level is FindingLevel.WRONG
    assert "NoImage" in found.observed


def test_groups_that_let_the_heads_udp_in(bed: AwsBed) -> None:
    group = bed.client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    provider = bed.open(security_groups=(group,))
    assert isinstance(provider, InboundRules)
    assert provider.lets_udp_in(51820) is False
    bed.client.authorize_security_group_ingress(
        GroupId=group, IpProtocol="udp", FromPort=51820, ToPort=51820, CidrIp="0.0.0.0/0"
    )
    assert provider.lets_udp_in(51820) is True
    assert provider.lets_udp_in(4500) is False
    unnamed = bed.open()
    assert isinstance(unnamed, InboundRules)
    assert unnamed.lets_udp_in(51820) is None
