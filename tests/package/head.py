"""A head node to install packages on: a Debian of its own under a layer that is thrown away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patience import eventually, patience

BOOT = Path(__file__).parent / "boot"
SITES_OWN = ("munge", "slurmctld", "slurmd")
"""Services that a sandbox runs in their place."""

_NO_GROUPS = """
mount -t cgroup2 cgroup2 "$1"
[ ! -d "$1/$2" ] || find "$1/$2" -depth -type d -exec rmdir {} +
"""


class Head:
    """It has processes, mounts, a loopback and a systemd of its own, and this host's kernel."""

    def __init__(
        self, directory: Path, root: Path, packages: Path, masked: Sequence[str] = SITES_OWN
    ) -> None:
        self.directory = directory
        self._log = directory / "console"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                 "--ipc", "--uts", "--net", str(BOOT), str(directory), str(root), str(packages)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {"MASKED": " ".join(masked)},
            )  # fmt: skip

    def running(self) -> bool:
        """Whether systemd has started what there is to start."""
        assert self._process.poll() is None, self.console()
        return bool(self.init()) and "running" in self.run(
            "systemctl", "is-system-running", check=False
        ).replace("degraded", "running")

    def run(self, *command: str, check: bool = True, seconds: float = 120.0) -> str:
        """The output of a command that root runs there; AssertionError if it fails."""
        done = subprocess.run(
            ["nsenter", "--target", self.init(), "--mount", "--pid", "--ipc", "--uts",
             "--cgroup", "--net", "/usr/bin/env", "-i", "HOME=/root", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive",
             *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=patience(seconds),
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def shell(self, text: str, *, check: bool = True, seconds: float = 120.0) -> str:
        """The same for a line of shell."""
        return self.run("/bin/bash", "-ec", text, check=check, seconds=seconds)

    def path(self, name: str) -> Path:
        """A file there, from here."""
        return Path(f"/proc/{self.init()}/root/{name.lstrip('/')}")

    def console(self) -> str:
        """The last output of init and its services."""
        return self._log.read_text("utf-8", errors="replace")[-4000:]

    def end(self) -> None:
        """Every process there ends with its init; so do its control groups, which have its name."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(patience(30))
        eventually(self._has_no_groups, 60, lambda: "its control groups are still there")

    def _has_no_groups(self) -> bool:
        """Not as long as a process there has not ended."""
        private = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", _NO_GROUPS)
        command = (*private, "sh", self.directory, self.directory.name)
        return subprocess.run(command, capture_output=True, timeout=patience(30)).returncode == 0

    def init(self) -> str:
        """The number of its init here; '' before there is one."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
        return children[0] if children else ""


def root(release: str, packages: Sequence[Path]) -> Path:
    """A Debian of that release, and all that it needs to install the packages."""
    told = subprocess.run(
        [Path(__file__).parent / "root", release, *packages],
        capture_output=True, text=True, check=False, timeout=patience(600),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return Path(told.stdout.strip())


@contextmanager
def head(root: Path, packages: Path, masked: Sequence[str] = SITES_OWN) -> Iterator[Head]:
    """One that is up, on top of ``root``, with these packages; nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="slurm-elastic-head.", dir="/var/tmp"))
    try:
        machine = Head(directory, root, packages, masked)
        try:
            eventually(machine.running, 60, machine.console)
            yield machine
        finally:
            machine.end()
    finally:
        shutil.rmtree(directory)
