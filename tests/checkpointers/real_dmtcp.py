"""A real DMTCP 4.2.0, which Debian has no package of, and jobs that are moved under it.

It was built beforehand and lies with the public histories (``benchmarks/traces.py``); the README
there says how.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from benchmarks.traces import VARIABLE, data
from slurm_elastic.testing.saving import save
from tests.checkpointers.node_bed import NodeBed

RELEASE = "dmtcp-4.2.0"


def unpacked(directory: Path) -> Path:
    """The directory of its commands. Skips, with the reason, where there is none or it cannot
    run.
    """
    place = data()
    built = sorted((place / RELEASE).glob("dmtcp-*.tar.xz")) if place else []
    if not built:
        pytest.skip(f"no {RELEASE} was built for this machine (${VARIABLE})")
    if platform.machine() != "x86_64":
        pytest.skip(f"{built[0].name} is of another architecture than {platform.machine()}")
    subprocess.run(["tar", "-C", str(directory), "-xJf", str(built[0])], check=True)
    commands = directory / "dmtcp" / "bin"
    asked = [str(commands / "dmtcp_launch"), "--version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        pytest.skip(f"{RELEASE} cannot run here: {told.stderr.strip()}")
    return commands


class RealBed(NodeBed):
    """Job 7 runs ``script`` in the directory ``user`` under a real DMTCP."""

    def __init__(self, script: str, commands: Path) -> None:
        super().__init__(script=script, dmtcp=commands)
        self.user = self.home / "user"

    def written(self, name: str) -> str:
        """A file of the job's; empty if there is none yet."""
        path = self.user / name
        return path.read_text() if path.exists() else ""

    def wait_for_lines(self, count: int, name: str = "out-7") -> None:
        """Wait until the job has written that many lines to a file."""
        self.wait(lambda: self.written(name).count("\n") >= count, f"{count} lines in {name}")

    def move(self) -> None:
        """Save the job, stop it and have it go on as another run, as at a notice."""
        attempt = self.attempts[7]
        image = save(self, self.run(attempt=attempt), stop=True)
        again = self.run(attempt=attempt + 1)
        origin = self.checkpointer.origin(again)
        assert origin is not None
        assert (origin.image, origin.why) == (image.number, ""), self.status(7)["log"]

    def code(self) -> int:
        """The exit code of the batch step, once the job has ended by itself."""
        return self.jobs[7].wait(120)

    def log(self) -> str:
        return " ".join(map(str, self.status(7)["log"]))  # type: ignore[call-overload]
