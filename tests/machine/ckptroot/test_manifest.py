"""An image counts only with root's seal, and only as it was sealed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot.manifest import ImageManifest
from slurm_elastic.machine.ckptroot.site import RequestRefused

KEY = b"k" * 64


@pytest.fixture
def image(tmp_path: Path) -> Path:
    directory = tmp_path / "1"
    directory.mkdir()
    for name in ("core-1001.img", "pages-1.img"):
        (directory / name).write_bytes(name.encode() * 100)
    (directory / manifests.NAME).write_bytes(manifests.seal(of(directory), KEY))
    return directory


def of(directory: Path) -> ImageManifest:
    return ImageManifest(
        cluster="t", job=7, label="7", attempt=0, number=1, method="criu", uid=2000, gid=2000,
        node="n1", taken=1.5, seconds=0.1, pid=1001, versions={"criu": "4.1.1"},
        files=manifests.digests(directory), writing={"/shared/out": 80},
    )  # fmt: skip


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What the disk was told to keep, by path."""
    found: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_files_are_on_the_disk_before_their_digests_are_sealed(
    image: Path, synced: set[str]
) -> None:
    names = manifests.digests(image)
    assert {str(image / name) for name in names} <= synced


def test_the_names_in_a_directory_are_on_the_disk(image: Path, synced: set[str]) -> None:
    manifests.sync(image)
    assert synced == {str(image)}


def test_what_was_sealed_is_read_back(image: Path) -> None:
    found = manifests.read(image, KEY)
    assert found == of(image)
    manifests.compare(image, found)


def test_an_image_without_closed_connections_is_one_that_nodes_of_before_can_read(
    image: Path,
) -> None:
    assert "closed" not in json.loads((image / manifests.NAME).read_text())
    closing = replace(of(image), closed=["10.1.2.3:80"])
    (image / manifests.NAME).write_bytes(manifests.seal(closing, KEY))
    assert manifests.read(image, KEY) == closing


def test_an_image_without_bound_threads_is_one_that_nodes_of_before_can_read(image: Path) -> None:
    assert "bound" not in json.loads((image / manifests.NAME).read_text())
    binding = replace(of(image), bound={"1001": [1]})
    (image / manifests.NAME).write_bytes(manifests.seal(binding, KEY))
    assert manifests.read(image, KEY) == binding


def change(image: Path, **values: object) -> None:
    path = image / manifests.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("values", [{"uid": 0}, {"job": 8}, {"writing": {"/etc/passwd": 0}},
                                    {"seal": "0" * 64}, {"more": 1}])  # fmt: skip
def test_a_changed_manifest_is_refused(image: Path, values: dict[str, object]) -> None:
    change(image, **values)
    with pytest.raises(RequestRefused, match="sealed"):
        manifests.read(image, KEY)


def test_another_clusters_key_is_refused(image: Path) -> None:
    with pytest.raises(RequestRefused, match="sealed"):
        manifests.read(image, b"x" * 64)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"seal": 1}', b"\xff\xfe"])
def test_a_manifest_that_is_none_is_refused(image: Path, content: bytes) -> None:
    (image / manifests.NAME).write_bytes(content)
    with pytest.raises(RequestRefused):
        manifests.read(image, KEY)


def test_a_link_in_place_of_the_manifest_is_refused(image: Path, tmp_path: Path) -> None:
    (image / manifests.NAME).rename(tmp_path / "manifest")
    (image / manifests.NAME).symlink_to(tmp_path / "manifest")
    with pytest.raises(RequestRefused):
        manifests.read(image, KEY)


def test_changed_content_is_refused(image: Path) -> None:
    path = image / "pages-1.img"
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    with pytest.raises(RequestRefused, match="changed"):
        manifests.compare(image, manifests.read(image, KEY))


@pytest.mark.parametrize("damage", ["shorter", "gone", "more"])
def test_an_incomplete_image_is_refused(image: Path, damage: str) -> None:
    match damage:
        case "shorter":
            os.truncate(image / "pages-1.img", 10)
        case "gone":
            (image / "pages-1.img").unlink()
        case _:
            (image / "core-1002.img").write_bytes(b"smuggled in")
    with pytest.raises(RequestRefused):
        manifests.compare(image, manifests.read(image, KEY))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_plain_file_is_refused(image: Path, kind: str) -> None:
    path = image / "pages-1.img"
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/shadow")
    else:
        os.mkfifo(path)
    with pytest.raises(RequestRefused):
        manifests.digests(image)


def test_a_seal_is_of_all_values(image: Path) -> None:
    sealed = manifests.seal(of(image), KEY)
    assert manifests.seal(replace(of(image), attempt=1), KEY) != sealed


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_its_size_is_that_of_all_files(image: Path) -> None:
    assert manifests.read(image, KEY).size == 2 * len("core-1001.img") * 100 - 200
    before = descriptors()
    manifests.compare(image, manifests.read(image, KEY))
    manifests.sync(image)
    assert descriptors() == before


@pytest.mark.parametrize(("most", "fits"), [(2400, True), (2399, False)])
def test_as_much_as_there_is_room_for_is_taken(image: Path, most: int, fits: bool) -> None:
    if fits:
        assert len(manifests.digests(image, most)) == 2
    else:
        with pytest.raises(RequestRefused, match="1100 bytes long, more than 1099"):
            manifests.digests(image, most)


def test_a_file_that_grows_while_it_is_read_is_refused(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = manifests.safe.opened
    monkeypatch.setattr(manifests.safe, "opened", lambda path, max_bytes: opened(path))
    (image / "core-1001.img").unlink()
    assert manifests.digests(image, 1100)["pages-1.img"][0] == 1100
    with pytest.raises(RequestRefused, match=r"pages-1.img: it grows"):
        manifests.digests(image, 1099)


def test_what_is_odd_is_said_by_its_name(image: Path) -> None:
    found = manifests.read(image, KEY)
    for name in ("zzz", "aaa"):
        (image / name).touch()
    with pytest.raises(RequestRefused, match="aaa: not in the manifest, or gone"):
        manifests.compare(image, found)
    for name in ("zzz", "aaa"):
        (image / name).unlink()
    os.truncate(image / "pages-1.img", 1101)
    with pytest.raises(RequestRefused, match=r"pages-1.img: not 1100 bytes long"):
        manifests.compare(image, found)


def test_of_another_version_it_is_refused(image: Path) -> None:
    values = json.loads((image / manifests.NAME).read_text())
    values.pop("seal")
    for changed in ({**values, "more": 1}, {**values, "files": {"a": 1}}):
        content = json.dumps({**changed, "seal": manifests._seal(changed, KEY)}).encode()
        with pytest.raises(RequestRefused, match="the manifest is of another version"):
            manifests.unseal(content, KEY)


def test_a_manifest_is_no_longer_than_16_mib(image: Path) -> None:
    os.truncate(image / manifests.NAME, (16 << 20) + 1)
    with pytest.raises(RequestRefused, match="more than 16777216"):
        manifests.read(image, KEY)
    (image / manifests.NAME).unlink()
    with pytest.raises(RequestRefused, match=r"manifest.json: No such file"):
        manifests.read(image, KEY)


def test_a_manifest_too_long_to_read_is_not_sealed(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that cannot be read would replace the last one that can."""
    many = replace(of(image), files={f"core-{n}.img": (1, "0" * 64) for n in range(1000)})
    content = manifests.seal(many, KEY)
    assert manifests.unseal(content, KEY) == many
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", len(content) - 1)
    with pytest.raises(RequestRefused, match="too many files: 1000"):
        manifests.seal(many, KEY)
