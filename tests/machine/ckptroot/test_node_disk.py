"""An image that is written to a disk of the node's own first: what is there, and what comes of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot.node_disk import NodeDisk, move
from slurm_elastic.machine.ckptroot.site import Amount, HelperSite, RequestRefused

from .helpers import ROOT

pytestmark = ROOT
PLENTY = 1 << 40
OWN = "slurm-elastic-stage"


@pytest.fixture
def site(tmp_path: Path) -> HelperSite:
    (tmp_path / "stage" / OWN).mkdir(parents=True)
    return HelperSite(
        cluster="t", directory=tmp_path, key=b"k" * 64, reader=(0, 0), stage=tmp_path / "stage",
        keep_free=Amount("1K", size=1024),
    )  # fmt: skip


@pytest.fixture
def told() -> list[str]:
    return []


def test_it_is_roots_own_and_nothing_of_it_stays(site: HelperSite, told: list[str]) -> None:
    stage = NodeDisk(site, 7, told.append)
    with stage.directory(site.directory, 100, PLENTY) as (made, _):
        assert made.stat().st_mode & 0o777 == 0o700
        (made / "pages").write_bytes(b"memory")
    assert not made.exists()
    stage.close()
    assert list((site.directory / "stage" / OWN).iterdir()) == []
    assert told == []


def test_what_others_have_there_stays(site: HelperSite, told: list[str]) -> None:
    others = [site.directory / "stage" / name for name in ("8", "alice", "lost+found")]
    others.append(site.directory / "stage" / OWN / "alice")
    for other in others:
        other.mkdir()
    (site.directory / "stage").chmod(0o1777)
    with NodeDisk(site, 7, told.append).directory(site.directory, 100, PLENTY):
        pass
    assert all(other.is_dir() for other in others)
    assert (site.directory / "stage").stat().st_mode & 0o7777 == 0o1777


def test_an_image_has_no_more_than_either_place_has_room_for(
    site: HelperSite, told: list[str]
) -> None:
    stage = NodeDisk(site, 7, told.append)
    with stage.directory(site.directory, 100, 4096) as (_, most):
        assert most == 4096
    with stage.directory(site.directory, 100, PLENTY << 20) as (_, most):
        assert most < PLENTY << 20


def test_what_a_killed_session_left_is_not_in_the_next_image(
    site: HelperSite, told: list[str]
) -> None:
    (site.directory / "stage" / OWN / "7" / "image").mkdir(parents=True)
    (site.directory / "stage" / OWN / "7" / "image" / "pages").touch()
    with NodeDisk(site, 7, told.append).directory(site.directory, 100, PLENTY) as (made, _):
        assert list(made.iterdir()) == []


def test_without_one_images_are_written_where_they_belong(
    site: HelperSite, told: list[str]
) -> None:
    with NodeDisk(replace(site, stage=None), 7, told.append).directory(
        site.directory, 1, 7
    ) as found:
        assert found == (site.directory, 7)
    assert site.directory.exists()
    assert told == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"keep_free": Amount("100%", share=1.0)}, "0 MiB needed, 0 MiB left"),
        ({"stage": Path("/nowhere/at/all")}, "No such file or directory"),
    ],
)
def test_where_it_cannot_be_used_that_is_said_once(
    site: HelperSite, told: list[str], change: dict[str, object], why: str
) -> None:
    stage = NodeDisk(replace(site, **change), 7, told.append)  # type: ignore[arg-type]
    for _ in range(2):
        with stage.directory(site.directory, 100, PLENTY) as (made, _):
            assert made == site.directory
    (line,) = told
    assert line.startswith("its images go to the shared directory at once: stage: ")
    assert why in line


def test_a_directory_that_is_not_roots_is_not_used(site: HelperSite, told: list[str]) -> None:
    os.chown(site.directory / "stage" / OWN, 65534, 65534)
    with NodeDisk(site, 7, told.append).directory(site.directory, 100, PLENTY) as (made, _):
        assert made == site.directory
    assert "not root's own directory" in told[0]


def test_an_image_comes_whole_with_its_holes_and_rights(site: HelperSite, tmp_path: Path) -> None:
    made, image = tmp_path / "made", tmp_path / "image"
    made.mkdir()
    image.mkdir()
    with (made / "pages").open("wb") as pages:
        pages.seek(1 << 22)
        pages.write(b"memory")
    (made / "pages").chmod(0o640)
    (made / "core").write_bytes(b"")
    move(made, image, PLENTY)
    assert list(made.iterdir()) == []
    assert sorted(path.name for path in image.iterdir()) == ["core", "pages"]
    seen = (image / "pages").stat()
    assert (seen.st_size, seen.st_mode & 0o777) == ((1 << 22) + 6, 0o640)
    assert seen.st_blocks * 512 < 1 << 20
    assert (image / "pages").read_bytes()[-6:] == b"memory"


def test_no_more_comes_than_may(tmp_path: Path) -> None:
    made, image = tmp_path / "made", tmp_path / "image"
    made.mkdir()
    image.mkdir()
    for name in ("a", "b"):
        (made / name).write_bytes(b"x" * 8192)
    with pytest.raises(RequestRefused, match="bytes of data to copy"):
        move(made, image, 12_000)


def test_an_image_that_was_written_where_it_belongs_stays_there(tmp_path: Path) -> None:
    (tmp_path / "pages").write_bytes(b"memory")
    move(tmp_path, tmp_path, 0)
    assert (tmp_path / "pages").read_bytes() == b"memory"
