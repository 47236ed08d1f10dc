"""One virtual machine of qemu, started from an image, which stays unchanged."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from msgspec import Struct

from slurm_elastic.image.commands import run, started

PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
MEMORY_MIB = 768
"""Enough for Debian's initrd and a slurmd."""
PLAIN = "Nehalem"
"""An emulated x86-64-v2 processor without the features whose kernel drivers run long self-tests."""
_PROBE_TIMEOUT_S = 20.0
"""Until then, a machine under KVM has printed its kernel's first line. It needs about 2 s."""


class Spec(Struct, frozen=True, kw_only=True):
    """The parts of a virtual machine. ``disk``, ``console`` and ``drives`` are files. ``tap`` and
    ``mac``: the network card.

    ``smbios``: fields of the firmware's tables, by which cloud-init recognises its cloud.
    """

    disk: str
    console: str
    tap: str = ""
    mac: str = ""
    smbios: str = ""
    drives: tuple[str, ...] = ()
    accel: str = "tcg"


def overlay(image: Path, disk: Path) -> None:
    """Create a machine's own disk, which stores only the differences from the image."""
    info = run(["qemu-img", "info", "--output=json", image])
    kind = "qcow2" if '"format": "qcow2"' in info else "raw"
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", image.resolve(), "-F", kind, disk])


def command(spec: Spec) -> list[str]:
    """Return the qemu command line. Pure."""
    command_line = [
        "qemu-system-x86_64", "-accel", spec.accel, "-machine", "q35",
        "-cpu", "host" if spec.accel == "kvm" else PLAIN,
        "-m", str(MEMORY_MIB), "-smp", "1", "-display", "none", "-monitor", "none", "-no-reboot",
        "-serial", f"file:{spec.console}", "-device", "virtio-rng-pci",
        # cache=unsafe loses data only if this host fails, and the disk is thrown away anyway.
        "-drive", f"file={spec.disk},if=virtio,format=qcow2,cache=unsafe",
    ]  # fmt: skip
    if spec.tap:  # without a ROM for booting over the network
        card = f"virtio-net-pci,netdev=net,mac={spec.mac},romfile="
        tap = f"tap,id=net,ifname={spec.tap},script=no,downscript=no"
        command_line += ["-netdev", tap, "-device", card]
    else:
        command_line += ["-nic", "none"]
    if spec.smbios:
        command_line += ["-smbios", spec.smbios]
    for drive in spec.drives:
        command_line += ["-drive", f"file={drive},if=virtio,format=raw,readonly=on"]
    return command_line


def start(spec: Spec, log: Path) -> subprocess.Popen[bytes]:
    """Start the machine and return qemu's process. It ends when the machine powers off."""
    return started(command(spec), log)


def accelerator(image: Path, work: Path, shows: str = "Linux version") -> str:
    """Return ``kvm`` if a machine of this image prints the text ``shows`` by KVM, else ``tcg``."""
    if not Path("/dev/kvm").exists():
        return "tcg"
    # Try it: some hosts have a /dev/kvm that can be opened but runs no guest.
    disk, console = work / "probe.qcow2", work / "probe.console"
    overlay(image, disk)
    process = start(Spec(disk=str(disk), console=str(console), accel="kvm"), work / "probe.log")
    until = time.monotonic() + _PROBE_TIMEOUT_S
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
    """Return everything that the machine has written to its serial port."""
    try:
        return console.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""
