"""Uploads into a storage pool of a real libvirtd: volumes with labels, read back, and broken off."""

from __future__ import annotations

from pathlib import Path

import pytest
from image.files import NAME, empty_qcow2, image_at, opened, qcow2_at, sent
from libvirt_hosts import Fault

from slurm_elastic.base.errors import ConfigError, ProviderError, SlurmElasticError, TransientError
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.providers.libvirt import image_store
from slurm_elastic.providers.libvirt.settings import LibvirtHost
from slurm_elastic.testing.contract import spec_for

from .bed import HOST, IMAGE, LibvirtBed

pytestmark = pytest.mark.engine

VOLUME = f"{NAME}.qcow2"


@pytest.fixture
def bed(qemu: LibvirtBed) -> LibvirtBed:
    return qemu


def test_a_machine_starts_from_what_was_uploaded_and_nothing_is_sent_twice(
    bed: LibvirtBed, tmp_path: Path
) -> None:
    path = qcow2_at(tmp_path)
    said = sent(bed, path)
    assert f"{HOST}: read back, it is as the file" in said
    assert f"'image: {VOLUME}'" in said[-2]
    assert sent(bed, path) == [f"{HOST}: there already: {NAME} ({VOLUME})"]
    assert bed.volumes() == {VOLUME, f"{VOLUME}.json"}
    listed = {one.id: one for one in opened(bed).images()}
    assert set(listed) == {IMAGE, VOLUME}
    one = listed[VOLUME]
    assert (one.place, one.os, one.version, one.size) == (
        HOST,
        "debian",
        "13.1",
        path.stat().st_size,
    )
    assert "slurm-24.11.5" in one.software
    assert not one.unfinished
    assert not listed[IMAGE].tagged
    provider = bed.open(image=VOLUME)
    provider.launch(spec_for(bed, provider, 1))
    (disk,) = [name for name in bed.volumes() if name.endswith(".qcow2") and name != VOLUME]
    text = bed.storage.storageVolLookupByName(disk).XMLDesc().partition("<backingStore>")[2]
    assert f"/{VOLUME}</path>" in text
    assert "<format type='qcow2'/>" in text


def test_raw_disks_too(bed: LibvirtBed, tmp_path: Path) -> None:
    sent(bed, image_at(tmp_path / "a.raw"))
    assert {one.name for one in opened(bed).images()} == {IMAGE.removesuffix(".qcow2"), NAME}


def test_a_connection_that_is_lost_leaves_no_image(bed: LibvirtBed, tmp_path: Path) -> None:
    path = qcow2_at(tmp_path)
    bed.proxy.fail(Fault(procedures=("upload",), drop=True, times=1))
    said: list[str] = []
    with pytest.raises(TransientError):
        sent(bed, path, said)
    assert said[-1] == f"{HOST}: broken off; {VOLUME} is deleted again"
    assert bed.volumes() == set()
    sent(bed, path)
    assert VOLUME in bed.volumes()


def test_no_machine_starts_from_half_an_image_and_again_removes_it(
    bed: LibvirtBed, tmp_path: Path
) -> None:
    path = qcow2_at(tmp_path)
    bed.proxy.fail(Fault(procedures=("upload",), drop=True))
    with pytest.MonkeyPatch.context() as patch:  # as if the head had gone down
        patch.setattr(image_store.VolumeImages, "_take_back", lambda *_: None)
        with pytest.raises(TransientError):
            sent(bed, path)
    bed.heal()
    assert bed.volumes() == {VOLUME, f"{VOLUME}.unfinished"}
    (half,) = [one for one in opened(bed).images() if one.id == VOLUME]
    assert half.unfinished
    provider = bed.open(image=VOLUME)
    with pytest.raises(ProviderError, match="is being uploaded, or an upload of it was broken off"):
        provider.launch(spec_for(bed, provider, 1))
    said: list[str] = []
    with pytest.raises(ProviderError, match="--again removes it"):
        sent(bed, path, said)
    assert "its upload did not come to its end" in said[0]
    sent(bed, path, again=True)
    assert bed.volumes() == {VOLUME, f"{VOLUME}.json"}
    assert provider.launch(spec_for(bed, provider, 1, generation="g2"))


def test_another_volume_of_that_name_is_left_as_it_is(bed: LibvirtBed, tmp_path: Path) -> None:
    bed.storage.createXML(f"<volume><name>{VOLUME}</name><capacity>512</capacity></volume>")
    with pytest.raises(ProviderError, match="another volume called"):
        sent(bed, qcow2_at(tmp_path), again=True)
    assert bed.volumes() == {VOLUME}


def test_another_image_of_that_name_is_refused(bed: LibvirtBed, tmp_path: Path) -> None:
    sent(bed, qcow2_at(tmp_path))
    other = image_at(tmp_path / "b.qcow2", empty_qcow2() + bytes(512))
    with pytest.raises(SlurmElasticError, match="another image called"):
        sent(bed, other)
    upload(opened(bed), image_file(other, "second.qcow2", None), lambda _: None)
    assert "second.qcow2" in bed.volumes()


def test_a_host_that_has_it_is_passed_over(bed: LibvirtBed, tmp_path: Path) -> None:
    """By two other names of the host."""
    hosts = {
        "a": bed.settings().hosts[HOST],
        "b": LibvirtHost(uri=bed.settings().hosts[HOST].uri + "&x=1"),
    }
    sent(bed, qcow2_at(tmp_path))
    said: list[str] = []
    file = image_file(tmp_path / "a.qcow2", None, None)
    upload(opened(bed, hosts=hosts), file, said.append)
    assert [text.partition(":")[0] for text in said] == ["a", "b"]
    assert all("there already" in text for text in said)


def test_what_is_no_disk_and_what_would_be_done(bed: LibvirtBed, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found tar, expected qcow2 or raw"):
        sent(bed, image_at(tmp_path / "a.tar"))
    said = sent(bed, qcow2_at(tmp_path), dry_run=True)
    assert said[0] == f"{HOST}: would send 0 MiB as volume {VOLUME} of storage pool default-pool"
    assert bed.volumes() == set()
