"""The Slurm of other releases, for the throw-away slurmctld of ``conf check`` alone.

Its namespaces have mounts of their own, so a wrapper may put another Slurm in its place there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.traces import VARIABLE, data
from slurm_elastic.config import SlurmSettings

IN_DEBIAN = """\
#!/bin/sh
root={root}
mountpoint -q $root/tmp || mount --bind /tmp $root/tmp
mountpoint -q $root/etc/hosts || mount --bind /etc/hosts $root/etc/hosts
mountpoint -q $root/proc || mount -t proc proc $root/proc
exec chroot $root /usr/{directory}/{program} "$@"
"""
IN_OPT = """\
#!/bin/sh
[ -e /opt/slurm-25.11 ] || mount -t overlay overlay -o lowerdir={root}:/opt /opt
exec /opt/slurm-25.11/{directory}/{program} "$@"
"""


def settings(release: str, directory: Path) -> SlurmSettings:
    """Where the release's slurmctld and scontrol are. Skips if this machine cannot have them."""
    if release == "22.05":
        return SlurmSettings()
    if release == "24.11":
        return _wrapped(IN_DEBIAN, _debian(directory), directory)
    return _wrapped(IN_OPT, _built(directory), directory)


def _wrapped(script: str, root: Path, directory: Path) -> SlurmSettings:
    for program, place in (("slurmctld", "sbin"), ("scontrol", "bin")):
        path = directory / program
        path.write_text(script.format(root=root, directory=place, program=program))
        path.chmod(0o755)
    return SlurmSettings(bin_dir=str(directory), sbin_dir=str(directory))


def _debian(directory: Path) -> Path:
    """Debian trixie with Slurm 24.11, from the mirror of apt."""
    root = directory / "trixie"
    if shutil.which("mmdebstrap") is None:
        pytest.skip("not installed: mmdebstrap")
    done = subprocess.run(
        [
            "mmdebstrap",
            "--variant=minbase",
            "--include=slurmctld,slurm-client",
            "trixie",
            str(root),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"no Debian trixie: {done.stderr.strip().splitlines()[-1]}")
    (root / "etc" / "hosts").touch()
    return root


def _built(directory: Path) -> Path:
    """Slurm 25.11, which was built beforehand."""
    place = data()
    archives = sorted((place / "slurm-25.11").glob("slurm-*.tar.xz")) if place else []
    if not archives:
        pytest.skip(f"no Slurm 25.11 was built for this machine (${VARIABLE})")
    subprocess.run(["tar", "-C", str(directory), "-xJf", str(archives[0])], check=True)
    return directory / "opt"
