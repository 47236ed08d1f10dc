"""The coordinator of one run under DMTCP (dmtcp_command(1)). It takes orders from anybody, so only
the job's user and root may reach its port (port_guard); without such a port there is no run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from . import child, files
from .caller import Caller
from .port_guard import Guard, guarded
from .rights import as_user
from .scratch import Scratch
from .site import Refused, Site

UNGUARDED = (
    "nft cannot set rules here, and anybody could end the job by DMTCP's coordinator: install "
    "nftables on the node (in a container with CAP_NET_ADMIN), or use criu"
)
_PORT = 32
"""Most bytes of the file that it writes its port into."""
_BEGIN = 60.0
"""Seconds that it may take to begin."""


class Coordinator:
    """dmtcp_launch and dmtcp_restart start it with our ``words``. It writes its port into a file on
    a small file system of the user's on this machine.
    """

    def __init__(self, site: Site, caller: Caller) -> None:
        self._programs = site.dmtcp
        self._caller = caller
        self._scratch = Scratch(site.scratch, caller.job)
        self._guard: Guard | None = None

    def words(self) -> list[str]:
        """The options of a program that is to start it. Raises Refused if its port cannot be
        guarded.
        """
        self._guard = self._guard or guarded(self._caller.uid)
        if self._guard is None:
            raise Refused(UNGUARDED)
        port, file = str(self._guard.port), self._port_file()
        return ["--new-coordinator", "--coord-port", port, "--port-file", str(file),
                "--interval", "0", "--ckptdir", str(file.parent)]  # fmt: skip

    def forget(self) -> None:
        """Remove the port file of an earlier coordinator."""
        path = self._port_file()
        with as_user(self._caller):
            files.remove(path)

    def wait(self, program: str, ended: Callable[[], int | None]) -> None:
        """Wait until it runs. Raises Refused if that takes too long, or if the
        payload has ended.
        """
        until = time.monotonic() + _BEGIN
        while self._port() is None:
            if ended() is not None or time.monotonic() > until:
                raise Refused(f"{program}: it started no coordinator")
            time.sleep(0.05)

    def command(self, within: float, *arguments: str) -> None:
        """Have it do something; Refused if that fails."""
        port = self._port()
        if port is None:
            raise Refused("the coordinator's port is no number")
        address = ("--coord-host", "127.0.0.1", "--coord-port", port)
        code, said = self.ask("dmtcp_command", within, *address, *arguments)
        if code != 0:
            raise Refused(f"dmtcp_command: exit {code}: {said.strip()[:200]}")

    def ask(self, program: str, within: float, *arguments: str) -> tuple[int, str]:
        """Run one of DMTCP's programs as the user; its exit code and what it says."""
        user = (self._caller.uid, self._caller.gid, self._caller.groups)
        return child.run([f"{self._programs}/{program}", *arguments], max(within, 1.0), user)

    def close(self) -> None:
        """Open its port to everybody again and remove the scratch directory."""
        if self._guard:
            self._guard.close()
        self._scratch.close()

    def _port_file(self) -> Path:
        return self._scratch.of_user(self._caller.uid, self._caller.gid) / "port"

    def _port(self) -> str | None:
        path = self._port_file()
        try:
            with as_user(self._caller):
                text = files.read(path, _PORT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"the coordinator's port: {error.strerror}") from error
        return text if text.isdecimal() else None
