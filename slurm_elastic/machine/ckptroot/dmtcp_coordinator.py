"""The coordinator of one run under DMTCP (dmtcp_command(1)). It asks nobody who they are, so its
port is for the job's user and root alone (guard), or there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from . import child, files
from .caller import Caller
from .guard import Guard, guarded
from .rights import as_user
from .scratch import Scratch
from .site import Refused, Site

UNGUARDED = (
    "nft cannot set rules here, and anybody could end the job by DMTCP's coordinator: install "
    "nftables on the node (in a container with CAP_NET_ADMIN), or use criu"
)
_PORT = 32
"""Bytes of the file with its port."""
_BEGIN = 60.0
"""Seconds for it to begin."""


class Coordinator:
    """Started by dmtcp_launch or dmtcp_restart with its ``words``; it writes its port into a file
    on a small file system of the user's on this machine.
    """

    def __init__(self, site: Site, caller: Caller) -> None:
        self._programs = site.dmtcp
        self._caller = caller
        self._scratch = Scratch(site.scratch, caller.job)
        self._guard: Guard | None = None

    def words(self) -> list[str]:
        """The options of a program that is to start it; Refused where its port cannot be kept."""
        self._guard = self._guard or guarded(self._caller.uid)
        if self._guard is None:
            raise Refused(UNGUARDED)
        port, file = str(self._guard.port), self._port_file()
        return ["--new-coordinator", "--coord-port", port, "--port-file", str(file),
                "--interval", "0", "--ckptdir", str(file.parent)]  # fmt: skip

    def forget(self) -> None:
        """The port of an earlier one is not this one's."""
        path = self._port_file()
        with as_user(self._caller):
            files.remove(path)

    def wait(self, program: str, ended: Callable[[], int | None]) -> None:
        """Until it is there; Refused where that takes too long, or the payload has ended."""
        until = time.monotonic() + _BEGIN
        while self._port() is None:
            if ended() is not None or time.monotonic() > until:
                raise Refused(f"{program}: it started no coordinator")
            time.sleep(0.05)

    def command(self, within: float, *arguments: str) -> None:
        """Have it do something; Refused where it did not."""
        port = self._port()
        if port is None:
            raise Refused("the coordinator's port is no number")
        address = ("--coord-host", "127.0.0.1", "--coord-port", port)
        code, said = self.ask("dmtcp_command", within, *address, *arguments)
        if code != 0:
            raise Refused(f"dmtcp_command: exit {code}: {said.strip()[:200]}")

    def ask(self, program: str, within: float, *arguments: str) -> tuple[int, str]:
        """The exit code of one of DMTCP's programs, run as the user, and what it says."""
        user = (self._caller.uid, self._caller.gid, self._caller.groups)
        return child.run([f"{self._programs}/{program}", *arguments], max(within, 1.0), user)

    def close(self) -> None:
        """Its port is everybody's again; the scratch directory goes."""
        if self._guard:
            self._guard.close()
        self._scratch.close()

    def _port_file(self) -> Path:
        return self._scratch.of_user(self._caller.uid, self._caller.gid) / "port"

    def _port(self) -> str | None:
        """None where there is none yet."""
        path = self._port_file()
        try:
            with as_user(self._caller):
                text = files.read(path, _PORT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"the coordinator's port: {error.strerror}") from error
        return text if text.isdecimal() else None
