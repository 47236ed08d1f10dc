"""One virtual machine of qemu's: started from an image, which stays as it is."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from msgspec import Struct

from slurm_elastic.image.commands import run, started

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
MEMORY = 768
"""MiB; what Debian's initrd and a slurmd need."""
PLAIN = "Nehalem"
"""An emulated processor without what makes drivers test themselves for long, yet x86-64-v2."""
_PROBE = 20.0
"""Seconds in which a machine comes to its kernel by KVM; it needs two."""


class Spec(Struct, frozen=True, kw_only=True):
    """A machine: its ``disk`` and ``drives`` are files, ``tap`` and ``mac`` its network card.

    ``smbios`` is what its firmware tells of it, by which cloud-init knows its cloud.
    """

    disk: str
    console: str
    tap: str = ""
    mac: str = ""
    smbios: str = ""
    drives: tuple[str, ...] = ()
    accel: str = "tcg"


def overlay(image: Path, disk: Path) -> None:
    """A disk of its own for a machine, which has only what differs from the image."""
    told = run(["qemu-img", "info", "--output=json", image])
    kind = "qcow2" if '"format": "qcow2"' in told else "raw"
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", image.resolve(), "-F", kind, disk])


def command(spec: Spec) -> list[str]:
    """The words that start it. Pure."""
    words = [
        "qemu-system-x86_64", "-accel", spec.accel, "-machine", "q35",
        "-cpu", "host" if spec.accel == "kvm" else PLAIN,
        "-m", str(MEMORY), "-smp", "1", "-display", "none", "-monitor", "none", "-no-reboot",
        "-serial", f"file:{spec.console}", "-device", "virtio-rng-pci",
        "-drive", f"file={spec.disk},if=virtio,format=qcow2,cache=unsafe",
    ]  # fmt: skip
    if spec.tap:  # without a ROM for booting over the network
        card = f"virtio-net-pci,netdev=net,mac={spec.mac},romfile="
        tap = f"tap,id=net,ifname={spec.tap},script=no,downscript=no"
        words += ["-netdev", tap, "-device", card]
    else:
        words += ["-nic", "none"]
    if spec.smbios:
        words += ["-smbios", spec.smbios]
    for drive in spec.drives:
        words += ["-drive", f"file={drive},if=virtio,format=raw,readonly=on"]
    return words


def start(spec: Spec, log: Path) -> subprocess.Popen[bytes]:
    """The machine's process, which ends when the machine powers itself off."""
    return started(command(spec), log)


def accelerator(image: Path, work: Path, shows: str = "Linux version") -> str:
    """``kvm`` where a machine of this image comes by it as far as ``shows``, else ``tcg``."""
    if not Path("/dev/kvm").exists():
        return "tcg"
    # A /dev/kvm that opens proves nothing: some hosts have one that runs no guest.
    disk, console = work / "probe.qcow2", work / "probe.console"
    overlay(image, disk)
    process = start(Spec(disk=str(disk), console=str(console), accel="kvm"), work / "probe.log")
    until = time.monotonic() + _PROBE
    try:
        while time.monotonic() < until and process.poll() is None:
            if shows in printed(console):
                return "kvm"
            time.sleep(0.2)
        return "tcg"
    finally:
        process.kill()
        process.wait()
        disk.unlink(missing_ok=True)


def printed(console: Path) -> str:
    """All that the machine's serial port has shown."""
    try:
        return console.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""
