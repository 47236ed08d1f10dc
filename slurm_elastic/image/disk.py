"""A directory as a disk that boots by BIOS, without a mount or a loop device.

One partition of an MBR disk begins at 1 MiB. GRUB's boot.img is in the first sector and loads
core.img from the sectors after it, where both look for each other unless they are told otherwise
(GRUB's manual, "BIOS installation"); mke2fs fills the file system from the directory (mke2fs(8),
``-d``).
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
FIRST = 1 << 20
"""The byte at which the partition begins."""
_SECTOR = 512
_CODE = 440
"""Bytes of the first sector that are a boot loader's; the partitions follow."""
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
    """The tree, which gets its GRUB menu and fstab, as a disk of ``size`` MiB; as root."""
    name = str(uuid.uuid4())
    rooted.write(tree, "boot/grub/grub.cfg", _MENU.format(uuid=name))
    table = rooted.target(tree, "etc/fstab")
    before = table.read_text(encoding="utf-8") if table.exists() else ""
    rooted.write(tree, "etc/fstab", f"UUID={name} / ext4 errors=remount-ro 0 1\n{before}")
    core = grub_core(disk.with_name(f"{disk.name}.core"))
    with disk.open("wb") as file:
        file.truncate(size << 20)
    run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", disk],
        text=f"label: dos\nstart={FIRST // _SECTOR}, type=83, bootable\n")  # fmt: skip
    with disk.open("r+b") as file:
        file.write((GRUB / "boot.img").read_bytes()[:_CODE])
        file.seek(_SECTOR)
        file.write(core)
    blocks = ((size << 20) - FIRST) // 1024
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-U", name, "-d", tree,
         "-E", f"offset={FIRST},lazy_itable_init=1", disk, f"{blocks}k"])  # fmt: skip


def grub_core(draft: Path) -> bytes:
    """GRUB's core image, which finds its menu on the disk's first partition."""
    try:
        place = "(hd0,msdos1)/boot/grub"
        run(["grub-mkimage", "-O", "i386-pc", "-o", draft, "-p", place, *_MODULES])
        return draft.read_bytes()
    finally:
        draft.unlink(missing_ok=True)


def to_qcow2(raw: Path, target: Path) -> None:
    """The same disk, compressed."""
    run(["qemu-img", "convert", "-c", "-O", "qcow2", raw, target])


def to_raw(image: Path, target: Path) -> None:
    """Any image as a raw disk, with holes."""
    run(["qemu-img", "convert", "-O", "raw", image, target])


def inside(raw: Path, request: str) -> str:
    """The answer of debugfs(8) about the file system of a raw disk: ``stat /etc/fstab``."""
    return run(["debugfs", "-R", request, f"{raw}?offset={FIRST}"], DEBUGFS_PAGER="cat")


def filled(disk: Path) -> int:
    """Bytes that the file takes."""
    return os.stat(disk).st_blocks * _SECTOR
