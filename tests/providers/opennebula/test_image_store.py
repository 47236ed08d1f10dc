"""Uploads into the emulated front end, which reads the file by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from image.files import NAME, POOL_IMAGE, image_at, opened, qcow2_at, sent
from msgspec.structs import replace
from providers.opennebula.bed import FAST, OneBed

from slurm_elastic.base.errors import (
    AuthError,
    ConfigError,
    ProviderError,
    SlurmElasticError,
    TransientError,
)
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.providers.opennebula import image_store
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.sandbox.nebula.world import OnePace
from slurm_elastic.testing.contract import spec_for

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture
def bed(control: OneControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneBed:
    monkeypatch.setattr(image_store, "POLL_EVERY_S", 0.02)
    return OneBed(control, tmp_path, user="elastic")


def mine(bed: OneBed) -> list[str]:
    return [one.name for one in opened(bed).images() if one.own]


def test_a_pool_finds_what_was_uploaded_and_nothing_is_read_twice(
    bed: OneBed, tmp_path: Path
) -> None:
    path = qcow2_at(tmp_path)
    said = sent(bed, path)
    assert any("is READY, 1 MiB" in text for text in said)
    assert "there already" in sent(bed, path)[0]
    assert bed.calls("one.image.allocate") == 1
    (one,) = [i for i in opened(bed).images() if i.own]
    assert (one.name, one.os, one.version, one.size) == (NAME, "debian", "13.1", 1 << 20)
    pool = replace(bed.pool, image=POOL_IMAGE)
    assert opened(bed).start_of(pool) == one.id
    assert opened(bed).start_of(bed.pool) == ""
    provider = bed.open()
    assert provider.launch(replace(spec_for(bed, provider, 1), pool=pool))


def test_the_front_end_may_have_the_file_elsewhere(bed: OneBed, tmp_path: Path) -> None:
    path = qcow2_at(tmp_path)
    there = tmp_path / "there.img"
    there.write_bytes(path.read_bytes())
    assert any(str(there) in text for text in sent(bed, path, seen_as=str(there)))
    with pytest.raises(ConfigError, match="--path: found 'there', expected an absolute path"):
        sent(bed, path, seen_as="there")


def test_a_file_that_the_front_end_cannot_read_leaves_no_image(bed: OneBed, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ProviderError, match="Not allowed to copy image file"):
        sent(bed, qcow2_at(tmp_path), said, seen_as=str(tmp_path / "none"))
    assert "is deleted again" in said[-1]
    assert mine(bed) == []


def test_another_disk_at_that_path_is_no_image(bed: OneBed, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(9 << 20))
    with pytest.raises(ProviderError, match=r"found a disk of 9 MiB, expected 1: .* another file"):
        sent(bed, qcow2_at(tmp_path), seen_as=str(other))
    assert mine(bed) == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.RESET_BEFORE, action="one.image.allocate"),
        Fault(kind=FaultKind.RESET_AFTER, action="one.image.allocate"),
        Fault(kind=FaultKind.RESET_BEFORE, action="one.image.info"),
        Fault(kind=FaultKind.RESET_BEFORE, action="one.image.update"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.action}",
)
def test_whatever_breaks_off_the_next_upload_goes_on_with(
    bed: OneBed, tmp_path: Path, fault: Fault
) -> None:
    path = qcow2_at(tmp_path)
    bed.control.fail(fault)
    with pytest.raises(TransientError):
        sent(bed, path)
    pool = replace(bed.pool, image=POOL_IMAGE)
    with pytest.raises(ProviderError, match="no image has"):
        opened(bed).start_of(pool)
    bed.heal()
    sent(bed, path)
    assert mine(bed) == [NAME]
    assert opened(bed).start_of(pool)


def test_again_removes_what_the_front_end_has_not_read_yet(bed: OneBed, tmp_path: Path) -> None:
    path = qcow2_at(tmp_path)
    bed.control.pace(OnePace(schedule=0.2, boot=1e6, shutdown=0.1))
    bed.control.fail(Fault(kind=FaultKind.RESET_BEFORE, action="one.image.info"))
    with pytest.raises(TransientError):
        sent(bed, path)
    bed.heal()
    bed.control.pace(FAST)
    said = sent(bed, path, again=True)
    assert "is in state LOCKED: removed" in said[0]
    assert mine(bed) == [NAME]


def test_names_rights_and_datastores(bed: OneBed, tmp_path: Path) -> None:
    sent(bed, qcow2_at(tmp_path))
    with pytest.raises(SlurmElasticError, match="another image called"):
        sent(bed, image_at(tmp_path / "b.raw", bytes(1 << 20)))
    file = image_file(image_at(tmp_path / "b.raw", bytes(1 << 20)), "b", None)
    with pytest.raises(ProviderError, match=r"Error getting datastore \[9\]"):
        upload(opened(bed, image_datastore=9), file, lambda _: None)
    bed.login("elastic", "wrong")
    with pytest.raises(AuthError):
        upload(opened(bed), file, lambda _: None)


def test_a_dry_run_makes_nothing(bed: OneBed, tmp_path: Path) -> None:
    said = sent(bed, qcow2_at(tmp_path), dry_run=True)
    assert said[0].startswith("would have the front end read /")
    assert bed.calls("one.image.allocate") == 0
