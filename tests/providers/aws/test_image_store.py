"""Uploads to the emulated EC2: to S3, imported, registered, tagged, and each of these broken off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from image.files import NAME, POOL_IMAGE, image_at, opened, sent
from msgspec.structs import replace
from providers.aws.bed import REGION, AwsBed

from slurm_elastic.base.errors import (
    AuthError,
    ConfigError,
    ProviderError,
    SlurmElasticError,
    TransientError,
)
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.providers.aws import imports
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import UUID, spec_for

pytestmark = pytest.mark.usefixtures("guarded")

BUCKET = "site-images"


class Shelf(AwsBed):
    """An account with a bucket."""

    def __init__(self, ec2: Ec2Control) -> None:
        super().__init__(ec2)
        self.s3 = boto3.client("s3", region_name=REGION, endpoint_url=ec2.url)
        self.s3.create_bucket(Bucket=BUCKET)

    def settings(self, **more: object) -> Any:
        return super().settings(**({"image_bucket": BUCKET} | more))

    def objects(self) -> list[str]:
        return [one["Key"] for one in self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())]

    def mine(self) -> list[dict[str, Any]]:
        return self.client.describe_images(Owners=["self"])["Images"]


@pytest.fixture
def bed(ec2: Ec2Control, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setattr(imports, "POLL_EVERY_S", 0.01)
    made = Shelf(ec2)
    for one in made.mine():  # the account's images outlive a reset
        made.client.deregister_image(ImageId=one["ImageId"])
    for one in made.client.describe_snapshots(OwnerIds=["self"])["Snapshots"]:
        made.client.delete_snapshot(SnapshotId=one["SnapshotId"])
    return made


def test_a_pool_finds_what_was_uploaded_and_nothing_is_imported_twice(
    bed: Shelf, tmp_path: Path
) -> None:
    path = image_at(tmp_path / "a.raw")
    said = sent(bed, path)
    assert "there already" in sent(bed, path)[0]
    assert bed.calls("ImportSnapshot") == bed.calls("RegisterImage") == bed.calls("S3PUT") - 1 == 1
    (image,) = bed.mine()
    (disk,) = image["BlockDeviceMappings"]
    (snapshot,) = bed.client.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert disk["Ebs"]["SnapshotId"] == snapshot["SnapshotId"]
    assert (image["Name"], image["BootMode"], image["Architecture"]) == (
        NAME,
        "legacy-bios",
        "x86_64",
    )
    told = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
    assert told["slurm-elastic:cluster"] == UUID
    assert told["slurm-elastic:software"] == "slurm-24.11.5 criu-4.1"
    assert {"Key": "slurm-elastic:cluster", "Value": UUID} in snapshot["Tags"]
    assert bed.objects() == []
    assert any("42 %" in text for text in said)

    (one,) = opened(bed).images()
    pool = replace(bed.pool, image=POOL_IMAGE)
    assert opened(bed).start_of(pool) == one.id == image["ImageId"]
    provider = bed.open()
    (machine,) = provider.launch(replace(spec_for(bed, provider, 1), pool=pool))
    found = bed.client.describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"]
    assert found[0]["ImageId"] == image["ImageId"]


STEPS = [
    Fault(kind=FaultKind.RESET_BEFORE, action="S3PUT"),
    Fault(kind=FaultKind.RESET_BEFORE, action="ImportSnapshot"),
    Fault(kind=FaultKind.RESET_AFTER, action="ImportSnapshot"),
    Fault(kind=FaultKind.RESET_BEFORE, action="DescribeImportSnapshotTasks"),
    Fault(kind=FaultKind.RESET_AFTER, action="RegisterImage"),
    Fault(kind=FaultKind.RESET_BEFORE, action="CreateTags"),
]


@pytest.mark.parametrize("fault", STEPS, ids=lambda fault: f"{fault.kind}-{fault.action}")
def test_whatever_breaks_off_no_pool_has_half_an_image_and_the_next_upload_goes_on(
    bed: Shelf, tmp_path: Path, fault: Fault
) -> None:
    path = image_at(tmp_path / "a.raw")
    pool = replace(bed.pool, image=POOL_IMAGE)
    bed.control.fail(fault)
    with pytest.raises(TransientError):
        sent(bed, path)
    with pytest.raises(ProviderError, match="no image has"):
        opened(bed).start_of(pool)
    bed.heal()
    sent(bed, path)
    (image,) = bed.mine()
    assert opened(bed).start_of(pool) == image["ImageId"]
    assert len(bed.client.describe_snapshots(OwnerIds=["self"])["Snapshots"]) == 1
    assert bed.objects() == []


def test_a_bucket_that_refuses_is_told_in_its_own_words(bed: Shelf, tmp_path: Path) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="S3PUT"))
    with pytest.raises(AuthError, match="AuthFailure"):
        sent(bed, image_at(tmp_path / "a.raw"))
    assert bed.calls("ImportSnapshot") == 0


def test_a_registration_whose_answer_is_lost_once_is_not_told_as_a_name_that_is_taken(
    bed: Shelf, tmp_path: Path
) -> None:
    bed.control.fail(Fault(kind=FaultKind.RESET_AFTER, action="RegisterImage", count=1))
    sent(bed, image_at(tmp_path / "a.raw"))
    assert len(bed.mine()) == 1


def test_a_snapshot_that_somebody_deleted_is_imported_anew(bed: Shelf, tmp_path: Path) -> None:
    path = image_at(tmp_path / "a.raw")
    bed.control.fail(Fault(kind=FaultKind.RESET_BEFORE, action="CreateTags"))
    with pytest.raises(TransientError):
        sent(bed, path)
    bed.heal()
    (snapshot,) = bed.client.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    bed.client.delete_snapshot(SnapshotId=snapshot["SnapshotId"])
    sent(bed, path)
    assert len(bed.mine()) == 1


def test_an_import_that_fails_is_told_in_ec2s_words_and_its_object_is_gone(
    bed: Shelf, tmp_path: Path
) -> None:
    with pytest.raises(ProviderError, match="Disk validation failed"):
        sent(bed, image_at(tmp_path / "a.raw", b"no whole sector"))
    assert bed.mine() == bed.objects() == []


def test_a_file_of_another_form_and_a_cloud_without_a_bucket(bed: Shelf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found qcow2, expected raw"):
        sent(bed, image_at(tmp_path / "a.qcow2"))
    file = image_file(image_at(tmp_path / "a.raw"), None, None)
    with pytest.raises(ConfigError, match="image_bucket: found none, expected the name"):
        upload(opened(bed, image_bucket=None), file, lambda _: None)
    with pytest.raises(ProviderError, match="NoSuchBucket"):
        upload(opened(bed, image_bucket="nobodys"), file, lambda _: None)


def test_a_dry_run_changes_nothing(bed: Shelf, tmp_path: Path) -> None:
    path = image_at(tmp_path / "a.raw")
    digest = image_file(path, None, None).digest
    assert sent(bed, path, dry_run=True)[0] == (
        f"would send 0 MiB to S3, as {BUCKET}/slurm-elastic/{digest}.raw"
    )
    assert bed.mine() == bed.objects() == []


@pytest.mark.parametrize("tagged", [True, False])
def test_a_name_that_is_taken_is_told_before_anything_is_sent(
    bed: Shelf, tmp_path: Path, tagged: bool
) -> None:
    made = bed.client.register_image(Name=NAME, RootDeviceName="/dev/sda1")["ImageId"]
    if tagged:
        bed.client.create_tags(Resources=[made], Tags=[{"Key": "made-by", "Value": "hand"}])
    with pytest.raises(SlurmElasticError, match="name yours by --name"):
        sent(bed, image_at(tmp_path / "a.raw"))
    assert bed.objects() == []
    assert bed.calls("ImportSnapshot") == 0


def test_a_missing_right_is_an_auth_error(bed: Shelf, tmp_path: Path) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="ImportSnapshot"))
    with pytest.raises(AuthError):
        sent(bed, image_at(tmp_path / "a.raw"))


def test_large_files_go_in_parts(bed: Shelf, tmp_path: Path) -> None:
    path = image_at(tmp_path / "a.raw", bytes(20 << 20))
    began = time.time()
    sent(bed, path)
    (one,) = opened(bed).images()
    assert one.created >= began - 1
    assert one.size
    assert bed.calls("S3POST") == 2  # the beginning and the end of an upload in parts
