"""Method ``dmtcp``: DMTCP's own commands (dmtcp_launch(1), dmtcp_command(1), dmtcp_restart(1)).

All of them run as the user, as does what they restore: nothing here needs root but the directories.
Each run has a coordinator of its own, on a port that it chooses itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_elastic.ckptroot.caller import Caller
from slurm_elastic.ckptroot.manifest import Manifest
from slurm_elastic.ckptroot.payload import Payload, become, calm
from slurm_elastic.ckptroot.rights import as_user
from slurm_elastic.ckptroot.site import Refused, Site

_PATH = b"/usr/local/bin:/usr/bin:/bin"


class Dmtcp:
    """One job's processes under a DMTCP coordinator."""

    name = "dmtcp"

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._payload = payload
        self._scratch = site.scratch / str(caller.job)
        self._ended: int | None = None
        self.pid = 0

    def start(self) -> None:
        """Start the payload under dmtcp_launch."""
        self._run([self._program("dmtcp_launch"), *self._coordinator(), *self._payload.argv])

    def restore(self, image: Path, manifest: Manifest) -> None:
        """dmtcp_restart of the image's files, which were verified."""
        files = [str(image / name) for name in sorted(manifest.files) if name.endswith(".dmtcp")]
        if not files:
            raise Refused("the image has no file of DMTCP")
        self._run([self._program("dmtcp_restart"), *self._coordinator(), *files])

    def alone(self, _image: Path, /) -> frozenset[str]:
        """Nothing is known of other files than the outputs."""
        return frozenset()

    def dump(self, image: Path, within: float) -> dict[str, int]:
        """Save into ``image``, which becomes the user's for so long. Refused: they go on."""
        os.chown(image, self._caller.uid, self._caller.gid, follow_symlinks=False)
        image.chmod(0o700)
        try:
            self._command(within, "--ckptdir", str(image), "--bcheckpoint")
        finally:
            os.chown(image, 0, self._site.reader[1], follow_symlinks=False)
            image.chmod(0o2751)
        if not any(name.endswith(".dmtcp") for name in os.listdir(image)):
            raise Refused("dmtcp_command: no image was written")
        return {}

    def go_on(self) -> None:
        """After a dump they run already."""

    def stop(self) -> None:
        """After a dump: the processes end here, and with them their coordinator."""
        with contextlib.suppress(Refused):
            self._command(30.0, "--quit")
        self._kill()
        self._ended = None

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        if self.ended() is None and self.pid:
            os.kill(self.pid, number)

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended."""
        if self._ended is None and self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = status
        return self._ended

    def versions(self) -> dict[str, str]:
        """What made the image."""
        done = self._as_user([self._program("dmtcp_launch"), "--version"], 10.0)
        found = re.search(r"(\d+\.\d+\S*)", done.stdout)
        return {"dmtcp": found[1] if found else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """All that is left of the job ends; the scratch directory goes."""
        if self.pid:
            with contextlib.suppress(Refused):
                self._command(10.0, "--quit")
            self._kill()
        with contextlib.suppress(OSError):
            for entry in self._scratch.iterdir():
                entry.unlink()
            self._scratch.rmdir()

    def _run(self, argv: Sequence[str]) -> None:
        """The payload, as our child and the leader of a session."""
        port = self._port_file()
        port.unlink(missing_ok=True)
        self._ended = None
        self.pid = os.fork()
        if self.pid == 0:
            become(replace(self._payload, argv=tuple(argv)), bound=True)
        until = time.monotonic() + 60
        while not port.exists():
            if self.ended() is not None or time.monotonic() > until:
                self._kill()
                raise Refused(f"{argv[0]}: it started no coordinator")
            time.sleep(0.05)

    def _coordinator(self) -> list[str]:
        return ["--new-coordinator", "--coord-port", "0", "--port-file", str(self._port_file()),
                "--interval", "0", "--ckptdir", str(self._port_file().parent)]  # fmt: skip

    def _port_file(self) -> Path:
        """In a directory of the user's on this machine."""
        for path, owner, mode in (
            (self._site.scratch, (0, 0), 0o711),
            (self._scratch, (self._caller.uid, self._caller.gid), 0o700),
        ):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                os.chown(path, *owner, follow_symlinks=False)
            if path.is_symlink() or path.lstat().st_uid != owner[0]:
                raise Refused(f"{path}: belongs to uid {path.lstat().st_uid}")
            path.chmod(mode)
        return self._scratch / "port"

    def _command(self, within: float, *arguments: str) -> None:
        with as_user(self._caller.uid, self._caller.gid, self._caller.groups):
            try:
                port = (self._scratch / "port").read_text().strip()
            except OSError as error:
                raise Refused(f"the coordinator's port: {error.strerror}") from error
        if not port.isdigit():
            raise Refused("the coordinator's port is no number")
        address = ("--coord-host", "127.0.0.1", "--coord-port", port)
        command = [self._program("dmtcp_command"), *address, *arguments]
        try:
            done = self._as_user(command, within)
        except subprocess.TimeoutExpired as error:
            raise Refused(f"dmtcp_command: no answer in {within:.0f} s") from error
        if done.returncode != 0:
            raise Refused(f"dmtcp_command: exit {done.returncode}: {done.stderr.strip()[:200]}")

    def _as_user(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env={"PATH": _PATH.decode()}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=max(timeout, 1.0), check=False, preexec_fn=calm,
            user=self._caller.uid, group=self._caller.gid, extra_groups=self._caller.groups,
            cwd="/",
        )  # fmt: skip

    def _kill(self) -> None:
        """The payload leads a session; what left that is the coordinator's to end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._ended is None:
            with contextlib.suppress(ChildProcessError):
                self._ended = os.waitpid(self.pid, 0)[1]
        self.pid = 0

    def _program(self, name: str) -> str:
        return f"{self._site.dmtcp}/{name}"


def available(site: Site) -> None:
    """Refused where this host cannot do it."""
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        if not os.access(f"{site.dmtcp}/{name}", os.X_OK):
            raise Refused(f"{site.dmtcp}/{name} is not installed")
