"""The sandbox's emulated clouds as processes of their own, for the tests of what talks to them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from patience import patience

from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.gce.control import GceControl
from slurm_elastic.sandbox.nebula.control import OneControl


class Control(Protocol):
    def wait_ready(self, timeout: float) -> None: ...


C = TypeVar("C", bound=Control)


@contextmanager
def running_ec2(directory: Path, *arguments: str) -> Iterator[Ec2Control]:
    """An EC2 on a free port, until the end of the block."""
    with _running("ec2.serve", "ec2", Ec2Control, directory, arguments) as control:
        yield control


@contextmanager
def running_one(directory: Path, *arguments: str) -> Iterator[OneControl]:
    """An OpenNebula front end on a free port, until the end of the block."""
    with _running("opennebula", "one", OneControl, directory, arguments) as control:
        yield control


@contextmanager
def running_gce(directory: Path, *arguments: str) -> Iterator[GceControl]:
    """A Compute Engine on a free port, until the end of the block."""
    with _running("gce.server", "gce", GceControl, directory, arguments) as control:
        yield control


@contextmanager
def _running(
    module: str,
    place: str,
    control_of: Callable[[str], C],
    directory: Path,
    arguments: tuple[str, ...],
) -> Iterator[C]:
    command = [sys.executable, "-m", f"slurm_elastic.sandbox.{module}", "--dir", str(directory)]
    with (directory / "log").open("wb") as out:
        process = subprocess.Popen([*command, *arguments], stdout=out, stderr=out)
    try:
        port = _port(directory, directory / place / "ready", process)
        control = control_of(f"http://127.0.0.1:{port}")
        control.wait_ready(60)
        yield control
    finally:
        process.terminate()
        assert process.wait(patience(30)) == 0, (directory / "log").read_text()[-3000:]


def _port(directory: Path, ready: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + patience(120)
    while not ready.exists():
        assert process.poll() is None, (directory / "log").read_text()
        assert time.monotonic() < deadline, (directory / "log").read_text()
        time.sleep(0.05)
    said = json.loads(ready.read_bytes())
    assert said["pid"] == process.pid
    return int(said["port"])
