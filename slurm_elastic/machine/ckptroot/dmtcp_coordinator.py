"""The coordinator of one run under DMTCP (dmtcp_coordinator, dmtcp_command of DMTCP 4.2.0).

It takes orders from anybody, so only the job's user and root may reach its port (port_guard);
without such a port there is no run.
"""

from __future__ import annotations

import os
import re
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
_MAX_FILES = 1000
"""Most entries of the small file system; fewer fit in it."""
KILLED = "Computation was checkpointed and killed."
"""What dmtcp_command says, with exit code 2, once it has handed on --kcheckpoint."""
_PEERS = re.compile(r"NUM_PEERS=(\d+)\s")
_RUNNING = "RUNNING=yes"
_FAILED = 99
"""DMTCP's exit code where it gives up (DMTCP_FAIL_RC)."""
_LOOK = 0.05
"""Seconds between two questions about a restart."""
_ANSWER = 10.0
"""Seconds for an answer to such a question."""


class Coordinator:
    """dmtcp_launch and dmtcp_restart start it with our ``words``. It writes its port into a file on
    a small file system of the user's on this machine, and DMTCP its temporary files there.
    """

    def __init__(self, site: Site, caller: Caller) -> None:
        self._programs = site.dmtcp
        self._caller = caller
        self._scratch = Scratch(site.scratch, caller.job)
        self._guard: Guard | None = None

    def words(self, images: Path) -> list[str]:
        """The options of a program that is to start it; DMTCP will save into ``images``. Raises
        Refused if its port cannot be guarded.
        """
        self._guard = self._guard or guarded(self._caller.uid)
        if self._guard is None:
            raise Refused(UNGUARDED)
        port, place = str(self._guard.port), self._place()
        # Twice --quiet: neither notes nor warnings of DMTCP's come into the job's output.
        return ["--new-coordinator", "--coord-host", "127.0.0.1", "--coord-port", port,
                "--port-file", str(place / "port"), "--interval", "0", "--ckptdir", str(images),
                "--tmpdir", str(place), "--quiet", "--quiet"]  # fmt: skip

    def environment(self, images: Path) -> dict[bytes, bytes]:
        """The variables of such a program that say the same."""
        # dmtcp_restart tells its --ckptdir to the tasks only: the coordinator that it starts goes
        # by the variable. dmtcp_launch makes a directory in /tmp before it reads --tmpdir.
        return {b"DMTCP_CHECKPOINT_DIR": os.fsencode(images),
                b"DMTCP_TMPDIR": os.fsencode(self._place())}  # fmt: skip

    def forget(self) -> None:
        """Remove the port file of an earlier coordinator and the temporary files."""
        place = self._place()
        with as_user(self._caller), files.directory(place) as directory:
            for name in files.names(directory, _MAX_FILES):
                files.remove(place / name)

    def wait(self, program: str, ended: Callable[[], int | None]) -> None:
        """Wait until it runs. Raises Refused if that takes too long, or if the
        payload has ended.
        """
        until = time.monotonic() + _BEGIN
        while self._port() is None:
            if ended() is not None or time.monotonic() > until:
                raise Refused(f"{program}: it started no coordinator")
            time.sleep(_LOOK)

    def wait_restored(
        self, program: str, images: int, ended: Callable[[], int | None], within: float
    ) -> None:
        """Wait until the processes of all ``images`` run. Raises Refused if one of them does not:
        DMTCP itself tells nobody, and the others wait for it for ever.
        """
        until, most = time.monotonic() + within, 0
        while True:
            peers, runs = self.status(_ANSWER)
            # All processes wait for each other before the first one runs on.
            if runs or ((status := ended()) is not None and _is_own(status, most >= images)):
                return
            if status is not None:
                raise Refused(f"{program}: it ended before the job ran ({_shown(status)})")
            if 0 < peers < most:
                raise Refused(f"{program}: {most - peers} of {images} processes did not come back")
            most = max(most, peers)
            if time.monotonic() > until:
                raise Refused(f"{program}: {most} of {images} processes in {within:.0f} s")
            time.sleep(_LOOK)

    def status(self, within: float) -> tuple[int, bool]:
        """How many processes it has, and whether all of them run. None run if it is gone."""
        code, said = self.ask("dmtcp_command", within, *self._address(), "--status")
        peers = _PEERS.search(said)
        if code != 0 or peers is None:
            return 0, False
        return int(peers[1]), _RUNNING in said

    def save(self, within: float, *, kills: bool) -> None:
        """Order a save, after which the processes run on or, if it ``kills``, have ended. It has
        only begun then. Refused if the coordinator does not take the order.
        """
        try:
            self.command(within, "--kcheckpoint" if kills else "--checkpoint")
        except CommandFailed as failed:
            if not (kills and KILLED in failed.said):
                raise

    def command(self, within: float, *arguments: str) -> None:
        """Give it an order; Refused if that fails."""
        code, said = self.ask("dmtcp_command", within, *self._address(), *arguments)
        if code != 0:
            raise CommandFailed(code, said)

    def ask(self, program: str, within: float, *arguments: str) -> tuple[int, str]:
        """Run one of DMTCP's programs as the user; its exit code and what it says."""
        user = (self._caller.uid, self._caller.gid, self._caller.groups)
        command = [f"{self._programs}/{program}", *arguments]
        # dmtcp_command has no --tmpdir and makes its directory all the same.
        place = {"DMTCP_TMPDIR": str(self._place())}
        return child.run(command, max(within, 1.0), user, more=place)

    def close(self) -> None:
        """Open its port to everybody again and remove the scratch directory."""
        if self._guard:
            self._guard.close()
        self._scratch.close()

    def _address(self) -> tuple[str, ...]:
        port = self._port()
        if port is None:
            raise Refused("the coordinator's port is no number")
        return ("--coord-host", "127.0.0.1", "--coord-port", port)

    def _place(self) -> Path:
        return self._scratch.of_user(self._caller.uid, self._caller.gid)

    def _port(self) -> str | None:
        path = self._place() / "port"
        try:
            with as_user(self._caller):
                text = files.read(path, _PORT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"the coordinator's port: {error.strerror}") from error
        return text if text.isdecimal() else None


class CommandFailed(Refused):
    """dmtcp_command ended with an error; ``said`` is its whole answer."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"dmtcp_command: exit {code}: {said.strip()[:200]}")
        self.said = said


def _is_own(status: int, is_whole: bool) -> bool:
    """Whether a wait status is the job's own, which ended as soon as it had come back."""
    # Once all processes have found their coordinator, DMTCP ends one by this code or it crashes.
    return is_whole and os.WIFEXITED(status) and os.WEXITSTATUS(status) != _FAILED


def _shown(status: int) -> str:
    """A wait status for people."""
    return f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
