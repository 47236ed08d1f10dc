"""Make a disk that boots by BIOS from a directory, without a mount or a loop device.

The MBR disk has one partition, which begins at 1 MiB. GRUB's boot.img is in the first sector and
loads core.img from the sectors after it, the default place (GRUB's manual, "BIOS installation").
mke2fs fills the file system from the directory (mke2fs(8), ``-d``).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from slurm_elastic.image import rooted
from slurm_elastic.image.commands import run

PROGRAMS = {
    "mke2fs": "e2fsprogs", "sfdisk": "fdisk", "grub-mkimage": "grub-common",
    "qemu-img": "qemu-utils",
}  # fmt: skip
GRUB = Path("/usr/lib/grub/i386-pc")
PARTITION_OFFSET = 1 << 20
"""The byte at which the partition begins."""
_SECTOR_BYTES = 512
_BOOT_CODE_BYTES = 440
"""Bytes of the first sector that belong to the boot loader. The partition table follows."""
_MODULES = ("biosdisk", "part_msdos", "ext2", "normal", "linux", "serial", "terminal", "echo")
# Clouds show the serial port as the machine's console.
_MENU = """\
serial --unit=0 --speed=115200
terminal_input serial console
terminal_output serial console
set timeout=0
menuentry Debian {{
  linux /vmlinuz root=UUID={uuid} ro quiet net.ifnames=0 console=tty0 console=ttyS0,115200
  initrd /initrd.img
}}
"""


def write_raw(tree: Path, disk: Path, size: int) -> None:
    """Write the tree, with a GRUB menu and fstab added, as a disk of ``size`` MiB; as root."""
    root_uuid = str(uuid.uuid4())
    rooted.write(tree, "boot/grub/grub.cfg", _MENU.format(uuid=root_uuid))
    fstab = rooted.target(tree, "etc/fstab")
    other_mounts = fstab.read_text(encoding="utf-8") if fstab.exists() else ""
    rooted.write(
        tree, "etc/fstab", f"UUID={root_uuid} / ext4 errors=remount-ro 0 1\n{other_mounts}"
    )
    core = grub_core(disk.with_name(f"{disk.name}.core"))
    with disk.open("wb") as file:
        file.truncate(size << 20)
    run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", disk],
        text=f"label: dos\nstart={PARTITION_OFFSET // _SECTOR_BYTES}, "
             "type=83, bootable\n")  # fmt: skip
    with disk.open("r+b") as file:
        # Not all 512 bytes: the partition table of sfdisk is in the same sector.
        file.write((GRUB / "boot.img").read_bytes()[:_BOOT_CODE_BYTES])
        file.seek(_SECTOR_BYTES)
        file.write(core)
    blocks = ((size << 20) - PARTITION_OFFSET) // 1024
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-U", root_uuid, "-d", tree,
         "-E", f"offset={PARTITION_OFFSET},lazy_itable_init=1", disk, f"{blocks}k"])  # fmt: skip


def grub_core(draft: Path) -> bytes:
    """GRUB's core image, which finds its menu on the disk's first partition."""
    try:
        place = "(hd0,msdos1)/boot/grub"
        run(["grub-mkimage", "-O", "i386-pc", "-o", draft, "-p", place, *_MODULES])
        return draft.read_bytes()
    finally:
        draft.unlink(missing_ok=True)


def to_qcow2(raw_disk: Path, target: Path) -> None:
    """Convert a raw disk to compressed qcow2."""
    run(["qemu-img", "convert", "-c", "-O", "qcow2", raw_disk, target])


def to_raw(image: Path, target: Path) -> None:
    """Convert an image of any format to a raw disk with holes."""
    run(["qemu-img", "convert", "-O", "raw", image, target])


def inside(raw_disk: Path, request: str) -> str:
    """Return the answer of debugfs(8) to a request such as ``stat /etc/fstab`` about a raw disk."""
    return run(
        ["debugfs", "-R", request, f"{raw_disk}?offset={PARTITION_OFFSET}"], DEBUGFS_PAGER="cat"
    )


def filled(disk: Path) -> int:
    """Return the bytes that a file takes on its file system."""
    return os.stat(disk).st_blocks * _SECTOR_BYTES
