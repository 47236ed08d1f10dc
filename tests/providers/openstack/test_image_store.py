"""Uploads to glance that go wrong on the way; the real one is asked in tests/realcloud."""

from __future__ import annotations

from pathlib import Path

import pytest
from image.files import NAME, POOL_IMAGE, image_at, opened, sent
from msgspec.structs import replace
from providers.openstack.bed import POLICY, StackBed
from providers.openstack.stand_in import Kind

from slurm_elastic.base.errors import (
    AuthError,
    ConfigError,
    ProviderError,
    SlurmElasticError,
    TransientError,
)
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.testing.contract import UUID, spec_for

pytestmark = pytest.mark.usefixtures("guarded")

FILE = "PUT /image/v2/images/*/file"
FINISH = "PATCH /image/v2/images/*"


def test_a_pool_finds_by_requirements_what_was_uploaded_and_nothing_is_sent_twice(
    bed: StackBed, tmp_path: Path
) -> None:
    path = image_at(tmp_path / "a.qcow2")
    assert sent(bed, path)[-1].endswith("is there")
    assert "there already" in sent(bed, path)[0]
    assert bed.stand_in.calls(FILE) == 1
    (one,) = opened(bed).images()
    assert (one.name, one.os, one.version) == (NAME, "debian", "13.1")
    assert not one.unfinished
    assert bed.world.images[0]["slurm_elastic_cluster"] == UUID
    assert bed.world.images[0]["visibility"] == "private"
    pool = replace(bed.pool, image=POOL_IMAGE)
    assert opened(bed).start_of(pool) == one.id
    provider = bed.open()
    provider.launch(replace(spec_for(bed, provider, 1), pool=pool))
    assert bed.world.bodies[-1]["imageRef"] == one.id


def test_images_are_listed_whole_if_glance_answers_in_smaller_pages(
    bed: StackBed, tmp_path: Path
) -> None:
    sent(bed, image_at(tmp_path / "a.qcow2"))
    (image,) = bed.world.images
    foreign = [{**image, "id": f"image-{n}", "name": f"of-others-{n}"} for n in range(4)]
    bed.world.images[:0] = foreign
    bed.world.page = 2
    assert [found.name for found in opened(bed).images()][-1] == NAME
    assert len(opened(bed).images()) == 5


@pytest.mark.parametrize("kind", [Kind.RESET_BEFORE, Kind.RESET_AFTER, Kind.STATUS])
def test_an_upload_that_breaks_off_leaves_no_image(
    bed: StackBed, tmp_path: Path, kind: Kind
) -> None:
    path = image_at(tmp_path / "a.qcow2")
    bed.stand_in.fail(kind, FILE)
    said: list[str] = []
    with pytest.raises(TransientError):
        sent(bed, path, said)
    assert bed.world.images == []
    assert "deleted again" in said[-1]
    bed.heal()
    sent(bed, path)
    assert len(bed.world.images) == 1


def test_a_person_who_gives_up_leaves_no_image(
    bed: StackBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Project, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sent(bed, image_at(tmp_path / "a.qcow2"))
    assert bed.world.images == []


def test_what_cannot_be_deleted_is_told_found_again_and_no_pools(
    bed: StackBed, tmp_path: Path
) -> None:
    path = image_at(tmp_path / "a.qcow2")
    bed.stand_in.fail(Kind.RESET_AFTER, FILE)
    bed.stand_in.refuse(403, POLICY, "DELETE *")
    said: list[str] = []
    with pytest.raises(TransientError):
        upload(opened(bed), image_file(path, None, None), said.append)
    assert "is left, which no pool takes" in said[-1]
    bed.heal()
    (half,) = opened(bed).images()
    assert half.unfinished == "its upload did not come to its end"
    pool = replace(bed.pool, image=ImageChoice(software=("slurm-24.11",)))
    with pytest.raises(ProviderError, match="no image has"):
        opened(bed).start_of(pool)
    said = sent(bed, path)
    assert "is of an earlier upload" in said[0]
    assert "--again removes it" in said[0]
    assert {one.unfinished for one in opened(bed).images()} == {"", half.unfinished}


def test_again_removes_what_was_left(bed: StackBed, tmp_path: Path) -> None:
    path = image_at(tmp_path / "a.qcow2")
    bed.stand_in.fail(Kind.STATUS, FINISH, status=500)
    with pytest.raises(TransientError):
        sent(bed, path)
    bed.heal()
    assert "removed" in sent(bed, path, again=True)[0]
    (one,) = opened(bed).images()
    assert not one.unfinished


def test_another_content_than_was_sent_is_no_image(bed: StackBed, tmp_path: Path) -> None:
    bed.world.spoilt = True
    with pytest.raises(ProviderError, match="sha512 is not that of"):
        sent(bed, image_at(tmp_path / "a.qcow2"))
    assert bed.world.images == []


def test_a_snapshot_of_a_machine_is_not_the_image_that_it_started_from(
    bed: StackBed, tmp_path: Path
) -> None:
    """It inherits the properties, with another size and content."""
    path = image_at(tmp_path / "a.qcow2")
    sent(bed, path)
    (record,) = bed.world.images
    record["size"] += 1
    assert opened(bed).images()[0].digest == ""
    record["image_type"] = "snapshot"
    assert opened(bed).images() == []


def test_a_dry_run_sends_nothing(bed: StackBed, tmp_path: Path) -> None:
    said = sent(bed, image_at(tmp_path / "a.qcow2"), dry_run=True)
    assert [text.split()[:2] for text in said] == [
        ["would", "make"],
        ["would", "compare"],
        ["would", "name"],
    ]
    assert bed.world.images == []


def test_another_image_of_that_name_is_not_joined_by_a_second(
    bed: StackBed, tmp_path: Path
) -> None:
    sent(bed, image_at(tmp_path / "a.qcow2"))
    with pytest.raises(SlurmElasticError, match=r"another image called slurm-24\.11\.5"):
        sent(bed, image_at(tmp_path / "b.qcow2", b"others"))
    file = image_file(tmp_path / "b.qcow2", "second", None)
    upload(opened(bed), file, lambda _: None)
    assert {one.name for one in opened(bed).images()} >= {"second"}


def test_wrong_files_and_missing_rights(bed: StackBed, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found tar, expected qcow2 or raw"):
        sent(bed, image_at(tmp_path / "a.tar"))
    bed.stand_in.refuse(
        403, "You are not authorized to complete add_image action.", "POST /image/*"
    )
    with pytest.raises(AuthError, match="add_image"):
        sent(bed, image_at(tmp_path / "a.qcow2"))
