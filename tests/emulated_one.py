"""The emulated OpenNebula as a process of its own, for the tests of what talks to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_elastic.sandbox.one_control import OneControl


@contextmanager
def running_one(directory: Path, *arguments: str) -> Iterator[OneControl]:
    """A front end on a free port, until the end of the block."""
    command = [sys.executable, "-m", "slurm_elastic.sandbox.opennebula", "--dir", str(directory)]
    with (directory / "log").open("wb") as out:
        process = subprocess.Popen([*command, *arguments], stdout=out, stderr=out)
    try:
        control = OneControl(f"http://127.0.0.1:{_port(directory, process)}")
        control.wait_ready(60)
        yield control
    finally:
        process.terminate()
        assert process.wait(30) == 0, (directory / "log").read_text()[-3000:]


def _port(directory: Path, process: subprocess.Popen[bytes]) -> int:
    ready = directory / "one" / "ready"
    deadline = time.monotonic() + 120
    while not ready.exists():
        assert process.poll() is None, (directory / "log").read_text()
        assert time.monotonic() < deadline, (directory / "log").read_text()
        time.sleep(0.05)
    said = json.loads(ready.read_bytes())
    assert said["pid"] == process.pid
    return int(said["port"])
