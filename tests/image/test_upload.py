"""``image upload`` and ``image list CLOUD``: files, places, names and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from image.files import image_at
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, ProviderError, SlurmElasticError, TransientError
from slurm_elastic.cli.main import main
from slurm_elastic.cli.setting_up import image_clouds
from slurm_elastic.image.label import label_file
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool

NAME = "slurm-24.11.5-debian-13.1-20261101"


class Shelf:
    """A cloud of hosts in memory; ``broken``: the host whose next upload breaks off."""

    forms: tuple[str, ...] = ("qcow2",)

    def __init__(self, *places: str) -> None:
        self.places = places or ("",)
        self.there: list[CloudImage] = []
        self.broken: str | None = None
        self.sent: list[str] = []

    def images(self) -> Sequence[CloudImage]:
        return list(self.there)

    def steps(self, file: ImageFile) -> Sequence[str]:
        return (f"send {file.size} bytes",)

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:
        self.sent.append(place)
        half = "half" if self.broken == place else ""
        made = CloudImage(
            id=f"i{len(self.there)}", name=file.name, place=place, digest=file.digest,
            software=frozenset(file.software), unfinished=half, os=file.os, version=file.version,
            size=file.size, created=file.built,
        )  # fmt: skip
        self.there.append(made)
        if half:
            self.broken = None
            raise TransientError("shelf", "Gone", "it went away")
        return made

    def remove(self, image: CloudImage) -> None:
        self.there.remove(image)

    def start_of(self, pool: Pool) -> str:
        if pool.name == "none":
            raise ProviderError("shelf", "NoImage", "no image has that")
        return self.there[0].id if self.there else ""


def sent(shelf: Shelf, path: Path, **more: bool) -> list[str]:
    said: list[str] = []
    upload(shelf, image_file(path, None, None), said.append, **more)
    return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return image_at(tmp_path / "a.qcow2")


def test_each_host_that_lacks_it_gets_it(path: Path) -> None:
    shelf = Shelf("a", "b")
    shelf.broken = "b"
    with pytest.raises(TransientError):
        sent(shelf, path)
    said = sent(shelf, path, again=True)
    assert said == [
        f"a: there already: {NAME} (i0)", f"b: {NAME} (i1) is of an earlier upload, half: removed",
        f"b: {NAME} (i1) is there",
    ]  # fmt: skip
    assert shelf.sent == ["a", "b", "b"]


def test_what_is_half_is_neither_taken_nor_removed_unasked(path: Path) -> None:
    shelf = Shelf()
    shelf.broken = ""
    with pytest.raises(TransientError):
        sent(shelf, path)
    for dry in (True, False):
        said = sent(shelf, path, dry_run=dry, again=dry)
        assert "half: no pool takes it, --again removes it" in said[0]
    assert [one.unfinished for one in shelf.there] == ["half", ""]


def test_the_same_file_by_another_name_is_the_same_image(path: Path) -> None:
    shelf = Shelf()
    sent(shelf, path)
    said: list[str] = []
    upload(shelf, image_file(path, "another", None), said.append)
    assert said == [f"there already: {NAME} (i0)"]


def test_a_name_counts_where_it_is_ours_and_another_file_has_it(path: Path) -> None:
    shelf = Shelf()
    sent(shelf, path)
    other = image_at(path.with_name("b.qcow2"), b"another")
    with pytest.raises(SlurmElasticError, match=r"another image called .* name yours by --name"):
        sent(shelf, other)
    shelf.there[0] = replace(shelf.there[0], own=False)
    sent(shelf, other)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none is no file"):
        image_file(tmp_path / "none", None, None)
    bare = tmp_path / "bare.qcow2"
    bare.write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"has no label \(bare\.qcow2\.json\)"):
        image_file(bare, None, None)
    with pytest.raises(ConfigError, match="found an empty file, expected an image"):
        image_file(image_at(tmp_path / "a.raw", b""), None, None)
    broken = image_at(tmp_path / "b.raw")
    label_file(broken).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        image_file(broken, None, None)
    tar = image_at(tmp_path / "a.tar")
    with pytest.raises(ConfigError, match="found tar, expected qcow2 for this cloud"):
        sent(Shelf(), tar)
    assert image_file(tar, "node.tar", None).name == "node"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    host = {"cpus": 1, "memory": "1G"}
    made = {
        "cluster": {"name": "site", "uuid": "2b0e5f6c-0000-4000-8000-000000000001"},
        "allow": {"accounts": ["physics"]}, "limits": {"nodes": 4},
        "clouds": [
            {"name": "lab", "provider": "libvirt", "location": "on-premises", "image": "n.qcow2",
             "hosts": {"kvm1": {}}, "types": {"small": host}},
            {"name": "desks", "provider": "redfish", "location": "on-premises",
             "hosts": {"d1": "https://bmc.invalid/redfish/v1/Systems/1"}, "credentials_file": "/etc/bmc", "types": {"desk": host | {"price": 0}}},
        ],
        "pools": [
            {"name": name, "cloud": "lab", "nodes": f"{name}[1-2]", "cpus": 1, "memory": 512,
             "instance_types": ["small"]}
            for name in ("vm", "none")
        ],
    }  # fmt: skip
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(json.dumps(made))
    return path


def run(config: Path, *words: object) -> int:
    return main(["--config", str(config), "image", *map(str, words)])


def test_a_list_of_a_clouds_images_names_the_pools_that_start_from_each(
    config: Path, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = Shelf("kvm1")
    monkeypatch.setattr(image_clouds, "open_images", lambda *_: shelf)
    assert run(config, "list", "lab") == 0
    assert "lab has no image with our tags" in capsys.readouterr().out
    assert run(config, "upload", "lab", path) == 0
    shelf.there.append(CloudImage(id="x", name="nobodys", place="kvm1"))
    shelf.there.append(
        CloudImage(id="y", name="old", place="kvm1", digest="1", unfinished="it is half")
    )
    assert run(config, "list", "lab") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "pool none: no image has that" in lines
    rows = [line.split() for line in lines[-3:]]
    assert rows[0] == ["HOST", "NAME", "ID", "SLURM", "SYSTEM", "SIZE", "AGE", "POOLS"]
    assert rows[1][:8] == ["kvm1", NAME, "i0", "24.11.5", "debian", "13.1", "1", "MiB"]
    assert rows[1][-1] == "vm"
    assert lines[-1].endswith("it is half")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("upload", "nowhere", "FILE"), "found 'nowhere', expected a configured cloud: lab, desks"),
        (("list", "nowhere"), "found 'nowhere', expected a configured cloud: lab, desks"),
        (("list", "no/where"), "no/where: found no directory, expected one or a cloud's name"),
        (("upload", "desks", "FILE"), "a cloud of provider redfish keeps no images"),
        (("upload", "lab", "none.qcow2"), "none.qcow2 is no file"),
    ],
)
def test_wrong_words_are_told_with_what_there_is(
    config: Path, path: Path, words: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, *(path if word == "FILE" else word for word in words)) == 2
    assert told in capsys.readouterr().err


def test_without_the_clusters_uuid_nothing_is_uploaded(
    config: Path, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(config.read_text())
    del made["cluster"]["uuid"]
    config.write_text(json.dumps(made))
    assert run(config, "upload", "lab", path) == 2
    assert "cluster.uuid is not set" in capsys.readouterr().err


def test_a_directory_is_listed_as_ever(
    config: Path, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "list", path.parent) == 0
    assert capsys.readouterr().out.startswith("a.qcow2  debian 13.1  slurm-24.11.5 criu-4.1")


def test_a_munge_key_inside_is_told(
    config: Path, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_clouds, "open_images", lambda *_: Shelf())
    image_at(path, secret=True)
    assert run(config, "upload", "lab", path) == 0
    assert capsys.readouterr().out.startswith("this image contains the munge key")
