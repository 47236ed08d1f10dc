"""Commands of the system that building and booting images needs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.errors import SlurmElasticError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
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
        raise SlurmElasticError(f"{words[0]}: exit {done.returncode}: {' / '.join(said)}")
    return done.stdout
