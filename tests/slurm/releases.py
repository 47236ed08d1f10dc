"""The Slurm of other releases, for ``conf check`` alone: its slurmctld and its scontrol are wrapped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.traces import VARIABLE, data
from slurm_elastic.config import SlurmSettings

# conf check runs scontrol outside of its namespaces, too: the mounts have to stay in one of their own.
OWN_MOUNTS = """\
#!/bin/sh
[ -n "$OWN_MOUNTS" ] || OWN_MOUNTS=1 exec unshare --mount --propagation private "$0" "$@"
"""
IN_DEBIAN = """\
mount --bind /tmp {root}/tmp
mount --bind /etc/hosts {root}/etc/hosts
mount -t proc proc {root}/proc
exec chroot {root} /usr/{directory}/{program} "$@"
"""
IN_OPT = """\
mount -t overlay overlay -o lowerdir={root}:/opt /opt
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
        path.write_text(OWN_MOUNTS + script.format(root=root, directory=place, program=program))
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
