"""A place of its own for each site: namespaces in which nothing of the machine is changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.traces import data

HERE = Path(__file__).parent
REPO = HERE.parents[1]
NEWER = HERE.parent / "e2e" / "newer_slurm.sh"
DEBIAN = "22.05"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare", "ip")


def unpack(release: str, directory: Path) -> Path | None:
    """The directory with that release, unpacked below ``directory``; None for Debian's."""
    if release == DEBIAN:
        return None
    place = data()
    built = sorted((place / f"slurm-{release}").glob("slurm-*.tar.xz")) if place else []
    if not built:
        raise SystemExit(f"no Slurm {release} was built for this machine ($SLURM_ELASTIC_DATA)")
    subprocess.run(["tar", "-C", str(directory), "-xJf", str(built[0])], check=True)
    return directory / "opt"


def command(release: str, opt: Path | None, words: Sequence[str]) -> list[str]:
    """The words before a command that run it in a place of its own, with that release of Slurm."""
    namespaces = (
        "unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child",
        "--propagation", "private",
    )  # fmt: skip
    newer = () if opt is None else ("sh", str(NEWER), str(opt), f"slurm-{release}")
    return [*namespaces, *newer, "sh", str(HERE / "place.sh"), *words]


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start it; all that it starts ends with it."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        )  # fmt: skip
