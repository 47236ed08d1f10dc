"""A directory becomes a disk that boots, without a mount; an image's label says what is in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from needs import ROOT, missing, not_installed
from patience import patience

from slurm_elastic.cli.main import main
from slurm_elastic.image import disk, label, machine
from slurm_elastic.image.label import Label

LABEL = Label(
    name="slurm-24.11.5-debian-13.1-20260101", file="a.qcow2", kind="qcow2", os="debian",
    version="13.1", codename="trixie", software="slurm-24.11.5 criu-4.1", built=1.0,
)  # fmt: skip


def why_not() -> str | None:
    if reason := missing(*disk.PROGRAMS, *machine.PROGRAMS):
        return reason
    return None if (disk.GRUB / "boot.img").exists() else not_installed("grub-pc-bin")


@ROOT
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_the_disk_comes_to_its_kernel(tmp_path: Path) -> None:
    """The kernel is none: GRUB has found its menu by then, and says so."""
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "fstab").write_text("head:/home /home nfs defaults 0 0\n")
    (tree / "vmlinuz").write_bytes(b"no kernel" * 1000)
    raw, image, own = tmp_path / "raw", tmp_path / "image.qcow2", tmp_path / "own.qcow2"
    disk.write_raw(tree, raw, 64)
    assert disk.filled(raw) < 32 << 20
    first, second = (tree / "etc" / "fstab").read_text().splitlines()
    assert first.startswith("UUID=")
    assert " / ext4 " in first
    assert second.startswith("head:/home")
    assert "Inode:" in disk.inside(raw, "stat /boot/grub/grub.cfg")
    assert "Inode:" not in disk.inside(raw, "stat /etc/munge/munge.key")
    disk.to_qcow2(raw, image)
    machine.overlay(image, own)
    console = tmp_path / "console"
    process = machine.start(machine.Spec(disk=str(own), console=str(console)), tmp_path / "log")
    try:
        until = time.monotonic() + patience(120)
        while "invalid magic number" not in machine.printed(console):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, machine.printed(console)
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()


def test_images_are_listed_with_what_is_in_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / LABEL.file
    image.write_bytes(b"")
    label.write(label.label_file(image), LABEL)
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "gone.qcow2.json").write_text("{}")
    assert label.read(image).slurm == "24.11"
    assert main(["image", "list", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("a.qcow2  debian 13.1  slurm-24.11.5 criu-4.1  ")


def test_a_file_without_a_label_is_told(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="has no label"):
        label.read(tmp_path / "x.qcow2")
