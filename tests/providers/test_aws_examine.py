"""What doctor learns of EC2: image, subnets, groups, clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated import running_ec2
from providers.aws_bed import AwsBed

from slurm_elastic.model import Finding, Level
from slurm_elastic.protocols import Examinable
from slurm_elastic.sandbox.ec2_control import Ec2Control
from slurm_elastic.sandbox.ec2_faults import Fault, FaultKind
from slurm_elastic.sandbox.spec import IMAGE


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Control]:
    with running_ec2(tmp_path_factory.mktemp("ec2")) as running:
        yield running


@pytest.fixture
def bed(control: Ec2Control) -> AwsBed:
    return AwsBed(control)


def examined(bed: AwsBed, **settings: object) -> dict[str, Finding]:
    provider = bed.open(**settings)
    assert isinstance(provider, Examinable)
    return {f.what: f for f in provider.examine([bed.pool])}


def image(bed: AwsBed) -> str:
    machine = bed.client.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1)["Instances"][0]
    made = bed.client.create_image(InstanceId=machine["InstanceId"], Name="worker")
    return str(made["ImageId"])


def test_an_image_that_is_there_and_one_that_is_not(bed: AwsBed) -> None:
    number = image(bed)
    good = examined(bed, image=number)
    assert good[f"image {number}"].level is Level.OK
    assert good["clock"].level is Level.OK
    assert examined(bed, image=IMAGE)[f"image {IMAGE}"].level is Level.OK
    bad = examined(bed, image="ami-00000000")["image ami-00000000"]
    assert bad.level is Level.WRONG
    assert bad.advice


def test_subnets_are_there_in_their_zones_with_room(bed: AwsBed) -> None:
    subnets = {
        s["AvailabilityZone"]: s["SubnetId"] for s in bed.client.describe_subnets()["Subnets"]
    }
    right, other = subnets["us-east-1a"], subnets["us-east-1b"]
    found = examined(bed, subnets={"us-east-1a": right})[f"subnet {right}"]
    assert found.level in (Level.OK, Level.NOTE)
    assert "addresses free" in found.found
    swapped = examined(bed, subnets={"us-east-1a": other})[f"subnet {other}"]
    assert (swapped.level, swapped.found) == (Level.WRONG, "in zone us-east-1b")
    assert examined(bed, subnets={"us-east-1a": "subnet-0"})["subnets"].level is Level.WRONG


def test_groups(bed: AwsBed) -> None:
    group = bed.client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    assert examined(bed, security_groups=(group,))["security groups"].level is Level.OK
    assert examined(bed, security_groups=("sg-0",))["security groups"].level is Level.WRONG


def test_a_cloud_that_refuses_everything_is_findings_and_no_error(bed: AwsBed) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH))
    found = examined(bed, subnets={"us-east-1a": "subnet-1"}, security_groups=("sg-1",))
    assert {f.level for f in found.values() if "AuthFailure" in f.found} == {Level.WRONG}
    assert sum("AuthFailure" in f.found for f in found.values()) == 3
    bed.heal()
