"""A Debian of this host's release that boots, for tests that want a kernel of Debian's: with Slurm, this
clone and the Python of its tests, under their names, and no systemd, which would take its processor
minutes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from patience import eventually

from slurm_elastic.image import apt, disk, machine
from slurm_elastic.image.commands import started

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "linux-image-cloud-amd64", "initramfs-tools", "kmod", "udev", "zstd", "mount", "iproute2",
    "procps", "python3", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge",
)  # fmt: skip
SIZE = 8192
"""MiB of its disk, a file with holes."""
MORE = ("-m", "3072", "-smp", "2")
_NEEDLESS = (".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis")
_ENDED = "the command ended with "
_INIT = f"""\
#!/bin/sh
export PATH={Path(sys.prefix, "bin")}:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -o remount,rw /
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
# Without systemd slurmd wants the older control groups.
mount -t tmpfs tmpfs /sys/fs/cgroup
for group in freezer cpuset memory devices cpuacct; do
  mkdir /sys/fs/cgroup/$group
  mount -t cgroup -o $group $group /sys/fs/cgroup/$group
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
ip link set lo up
hostname guest
cd {ROOT}
COMMAND </dev/null 2>&1
echo "{_ENDED}$?"
sleep 1
echo o >/proc/sysrq-trigger
exec sleep infinity
"""


def make(tree: Path, raw: Path, command: str, packages: tuple[str, ...]) -> None:
    """A disk that runs the command when it boots; as root."""
    apt.bootstrap(apt.host_release(), tree, [*PACKAGES, *packages])
    needless = shutil.ignore_patterns(*_NEEDLESS)
    shutil.copytree(ROOT, _in(tree, ROOT), symlinks=True, ignore=needless)
    shutil.copytree(sys.prefix, _in(tree, Path(sys.prefix)), symlinks=True)
    (tree / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (tree / "etc" / "mtab").unlink(missing_ok=True)
    (tree / "etc" / "mtab").symlink_to("/proc/self/mounts")
    init = tree / "sbin" / "init"
    init.write_text(_INIT.replace("COMMAND", command))
    init.chmod(0o755)
    disk.write_raw(tree, raw, SIZE)


def _in(tree: Path, path: Path) -> Path:
    return tree / path.relative_to("/")


def run(raw: Path, work: Path, seconds: float) -> tuple[int, str]:
    """Boot it; the command's exit code, and all that it has printed."""
    console, own = work / "console", work / "disk.qcow2"
    machine.overlay(raw, own)
    accel = machine.accelerator(raw, work)
    spec = machine.Spec(disk=str(own), console=str(console), accel=accel)
    process = started([*machine.command(spec), *MORE], work / "qemu.log")
    try:
        eventually(lambda: process.poll() is not None, seconds, lambda: machine.printed(console))
    finally:
        process.kill()
        process.wait()
    said, found, code = machine.printed(console).rpartition(_ENDED)
    assert found, said or code
    return int(code.split()[0]), said
