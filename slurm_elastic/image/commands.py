"""Run the system commands that building and booting images needs."""

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
"""Put this before a command: its mounts and processes end with it. It is killed if we die, in
whatever way.
"""
_REMOVE_TIMEOUT_S = 10.0
_ERROR_LINES = 8
"""The number of last output lines that an error shows."""


def require(programs: Mapping[str, str]) -> None:
    """SlurmElasticError if programs are not installed. ``programs``: Debian package by program."""
    missing = sorted({p for name, p in programs.items() if not shutil.which(name, path=PATH)})
    if missing:
        raise SlurmElasticError(f"not installed: {' '.join(missing)} (Debian's packages)")


def run(command: Sequence[str | Path], text: str = "", **environment: str) -> str:
    """Run a command and return its output. SlurmElasticError with its last output lines if it
    fails.
    """
    result = subprocess.run(
        [str(word) for word in command], input=text, capture_output=True, text=True, check=False,
        env=ENVIRONMENT | environment, errors="replace",
    )  # fmt: skip
    if result.returncode:
        last_lines = (result.stderr.strip() or result.stdout.strip()).splitlines()[-_ERROR_LINES:]
        name = command[len(APART)] if tuple(command[: len(APART)]) == APART else command[0]
        raise SlurmElasticError(f"{name}: exit {result.returncode}: {' / '.join(last_lines)}")
    return result.stdout


def started(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in the background and return its process; append its output to ``log``."""
    with log.open("ab") as file:
        return subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=ENVIRONMENT
        )


def remove(place: Path) -> None:
    """Remove a directory tree. Retry for 10 s, because a process that was just killed may still
    write there.
    """
    until = time.monotonic() + _REMOVE_TIMEOUT_S
    while place.exists() and time.monotonic() < until:
        shutil.rmtree(place, ignore_errors=True)
