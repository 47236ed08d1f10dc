"""Commands of the system that building and booting images needs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
APART = (
    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child",
    "--mount-proc",
)  # fmt: skip
"""Before a command whose mounts and processes go with it, and it with us, however that ends."""
_SETTLES = 10.0
_SHOWN = 8
"""Lines of what a command has said last, for its error."""


def require(programs: Mapping[str, str]) -> None:
    """SlurmElasticError for programs that are not installed; each with its Debian package."""
    missing = sorted({p for name, p in programs.items() if not shutil.which(name, path=PATH)})
    if missing:
        raise SlurmElasticError(f"not installed: {' '.join(missing)} (Debian's packages)")


def run(words: Sequence[str | Path], text: str = "", **environment: str) -> str:
    """The command's output; SlurmElasticError with its last lines where it fails."""
    done = subprocess.run(
        [str(word) for word in words], input=text, capture_output=True, text=True, check=False,
        env=ENVIRONMENT | environment, errors="replace",
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-_SHOWN:]
        name = words[len(APART)] if tuple(words[: len(APART)]) == APART else words[0]
        raise SlurmElasticError(f"{name}: exit {done.returncode}: {' / '.join(said)}")
    return done.stdout


def started(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A command that goes on beside us; ``log`` gets what it says."""
    with log.open("ab") as file:
        return subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=ENVIRONMENT
        )


def remove(place: Path) -> None:
    """The directory with all that is in it; what was killed a moment ago may yet write there."""
    until = time.monotonic() + _SETTLES
    while place.exists() and time.monotonic() < until:
        shutil.rmtree(place, ignore_errors=True)
