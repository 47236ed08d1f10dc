"""The coordinator of one run under DMTCP (dmtcp_coordinator, dmtcp_command of DMTCP 4.2.0).

It obeys every client. So only the job's user and root may reach its port (port_guard); without a
guarded port we refuse to run.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from . import child, files
from .caller import Caller
from .job_nodes import JobNodes
from .port_guard import Guard, guarded, is_free
from .rights import as_user
from .scratch import MAX_FILES, Scratch
from .site import HelperSite, RequestRefused

UNGUARDED = (
    "nft cannot set rules here, and anybody could end the job by DMTCP's coordinator: install "
    "nftables on the node (in a container with CAP_NET_ADMIN), or use criu"
)
_MAX_PORT_BYTES = 32
"""Of the file into which it writes its port."""
_START_TIMEOUT_S = 60.0
"""Seconds that it may take to begin."""
_END_TIMEOUT_S = 15.0
KILLED = "Computation was checkpointed and killed."
"""The output of dmtcp_command, with exit code 2, after it has forwarded --kcheckpoint."""
_PEERS = re.compile(r"NUM_PEERS=(\d+)\s")
_RUNNING = "RUNNING=yes"
_FAILED_CODE = 99
"""DMTCP's exit code when it gives up (DMTCP_FAIL_RC)."""
_POLL_EVERY_S = 0.05
"""Seconds between two status requests during a restart."""
_ANSWER_TIMEOUT_S = 10.0
"""Seconds for an answer to such a question."""


SILENT = {b"JALIB_STDERR_PATH": b"/dev/null"}
"""Keeps DMTCP's warnings out of the job's output. Processes that the job starts later ignore
--quiet (4.2.0), and MPI gives DMTCP much to warn of.
"""


def joining(host: str, port: str, images: Path, place: Path) -> list[str]:
    """Return the options of a program that joins a coordinator; DMTCP saves into ``images``."""
    return ["--join-coordinator", "--coord-host", host, "--coord-port", port, "--ckptdir",
            str(images), "--tmpdir", str(place), "--quiet", "--quiet"]  # fmt: skip


def variables(images: Path, place: Path) -> dict[bytes, bytes]:
    """Return the settings that programs of DMTCP read from their environment alone."""
    # dmtcp_restart passes its --ckptdir only to the tasks; the coordinator that it starts reads
    # the variable. dmtcp_launch makes a directory in /tmp before it reads --tmpdir.
    return {b"DMTCP_CHECKPOINT_DIR": os.fsencode(images), b"DMTCP_TMPDIR": os.fsencode(place)}


class Coordinator:
    """dmtcp_launch and dmtcp_restart start it, with the options ``words``.

    It writes its port into a file on a small file system of the user's on this machine. DMTCP puts
    its temporary files there, too.
    """

    def __init__(self, site: HelperSite, caller: Caller, nodes: JobNodes | None = None) -> None:
        self._programs = site.dmtcp
        self._caller = caller
        self._nodes = nodes
        # A process of DMTCP gives its peers the address by which it reaches the coordinator. So all
        # of a job of several nodes must reach it by its real address.
        self._host = nodes.first.address if nodes else "127.0.0.1"
        self._scratch = Scratch(site.scratch, caller.job, len(nodes.others) if nodes else 0)
        self._guard: Guard | None = None
        self._has_begun = False

    def words(self, images: Path) -> list[str]:
        """Return the options of a program that starts the coordinator; DMTCP saves into ``images``.

        RequestRefused if the coordinator's port cannot be guarded.
        """
        port, place = str(self.port()), self._place()
        if self._nodes:
            return joining(self._host, port, images, place)
        # Twice --quiet: no notes and no warnings of DMTCP in the job's output.
        return ["--new-coordinator", "--coord-host", "127.0.0.1", "--coord-port", port,
                "--port-file", str(place / "port"), "--interval", "0", "--ckptdir", str(images),
                "--tmpdir", str(place), "--quiet", "--quiet"]  # fmt: skip

    def port(self) -> int:
        """Return the coordinator's port. RequestRefused if the port cannot be guarded."""
        if self._guard is None:
            peers = self._nodes.addresses if self._nodes else ()
            self._guard = guarded(self._caller.uid, peers)
        if self._guard is None:
            raise RequestRefused(UNGUARDED)
        return self._guard.port

    def place(self) -> Path:
        """Return the coordinator's small file system, which is the user's."""
        return self._place()

    def begin(self, images: Path) -> None:
        """Start the coordinator of a job of several nodes, whose programs only join it."""
        if self._nodes is None:
            return
        options = ["--daemon", "--exit-on-last", "--coord-port", str(self.port()), "--port-file",
                   str(self._place() / "port"), "--interval", "0", "--ckptdir", str(images),
                   "--tmpdir", str(self._place()), "--quiet", "--quiet"]  # fmt: skip
        # The coordinator of a failed restore may still listen on the port.
        if not self._ends_last():
            raise RequestRefused("DMTCP's last coordinator has not ended")
        self._has_begun = True
        code, output = self.ask("dmtcp_coordinator", _START_TIMEOUT_S, *options)
        if code != 0:
            raise CommandFailed(code, output)

    def _ends_last(self) -> bool:
        """End a coordinator that still listens on the port; return whether none does."""
        until = time.monotonic() + _END_TIMEOUT_S
        while not is_free(self.port()):
            self.ask("dmtcp_command", _ANSWER_TIMEOUT_S, "--coord-host", self._host,
                     "--coord-port", str(self.port()), "--quit")  # fmt: skip
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_EVERY_S)
        return True

    def environment(self, images: Path) -> dict[bytes, bytes]:
        """Return the environment variables of a program that starts or joins the coordinator."""
        return variables(images, self._place()) | (SILENT if self._nodes else {})

    def forget(self) -> None:
        """Remove the port file of an earlier coordinator and the temporary files."""
        place = self._place()
        with as_user(self._caller), files.directory(place) as directory:
            for name in files.names(directory, MAX_FILES):
                files.remove(place / name)

    def wait(self, program: str, ended: Callable[[], int | None]) -> None:
        """Wait until the coordinator runs. RequestRefused if that takes too long, or if the payload
        has ended.
        """
        until = time.monotonic() + _START_TIMEOUT_S
        while self._port() is None:
            if ended() is not None or time.monotonic() > until:
                raise RequestRefused(f"{program}: it started no coordinator")
            time.sleep(_POLL_EVERY_S)

    def wait_restored(
        self, program: str, images: int, ended: Callable[[], int | None], within: float
    ) -> None:
        """Wait until the processes of all ``images`` run.

        RequestRefused if a process fails: DMTCP does not report that, and the others would wait for
        ever.
        """
        until, most_peers = time.monotonic() + within, 0
        while True:
            peers, runs = self.status(_ANSWER_TIMEOUT_S)
            # All processes wait for each other before the first one continues.
            if runs or ((status := ended()) is not None and _is_own(status, most_peers >= images)):
                return
            if status is not None:
                raise RequestRefused(f"{program}: it ended before the job ran ({_shown(status)})")
            if 0 < peers < most_peers:
                raise RequestRefused(
                    f"{program}: {most_peers - peers} of {images} processes did not come back"
                )
            most_peers = max(most_peers, peers)
            if time.monotonic() > until:
                raise RequestRefused(
                    f"{program}: {most_peers} of {images} processes in {within:.0f} s"
                )
            time.sleep(_POLL_EVERY_S)

    def status(self, within: float) -> tuple[int, bool]:
        """Return the number of the coordinator's processes, and whether all of them run. (0, False)
        if the coordinator is gone.
        """
        code, output = self.ask("dmtcp_command", within, *self._address(), "--status")
        peers = _PEERS.search(output)
        if code != 0 or peers is None:
            return 0, False
        return int(peers[1]), _RUNNING in output

    def save(self, within: float, *, kills: bool) -> None:
        """Order a save. The save has only started when this returns.

        Afterwards the processes continue or, with ``kills``, have ended. RequestRefused if the
        coordinator refuses.
        """
        try:
            self.command(within, "--kcheckpoint" if kills else "--checkpoint")
        except CommandFailed as failed:
            if not (kills and KILLED in failed.output):
                raise

    def command(self, within: float, *arguments: str) -> None:
        """Send an order to the coordinator. RequestRefused if that fails."""
        code, output = self.ask("dmtcp_command", within, *self._address(), *arguments)
        if code != 0:
            raise CommandFailed(code, output)

    def ask(self, program: str, within: float, *arguments: str) -> tuple[int, str]:
        """Run a program of DMTCP as the user; return its exit code and output."""
        user = (self._caller.uid, self._caller.gid, self._caller.groups)
        command = [f"{self._programs}/{program}", *arguments]
        # dmtcp_command has no --tmpdir, but makes a temporary directory, too.
        place = {"DMTCP_TMPDIR": str(self._place())}
        return child.run(command, max(within, 1.0), user, variables=place)

    def close(self) -> None:
        """Open the coordinator's port to everybody again and remove the scratch directory."""
        if self._has_begun:
            # It ends with its last process, but perhaps no process has ever joined it. OSError: a
            # program of DMTCP is gone or cannot start. The port must be opened all the same.
            with contextlib.suppress(RequestRefused, OSError):
                self._ends_last()
        if self._guard:
            self._guard.close()
        self._scratch.close()

    def _address(self) -> tuple[str, ...]:
        port = self._port()
        if port is None:
            raise RequestRefused("the coordinator's port is no number")
        return ("--coord-host", self._host, "--coord-port", port)

    def _place(self) -> Path:
        return self._scratch.of_user(self._caller.uid, self._caller.gid)

    def _port(self) -> str | None:
        path = self._place() / "port"
        try:
            with as_user(self._caller):
                text = files.read(path, _MAX_PORT_BYTES).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RequestRefused(f"the coordinator's port: {error.strerror}") from error
        return text if text.isdecimal() else None


class CommandFailed(RequestRefused):
    """dmtcp_command ended with an error; ``output`` is its whole output."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"dmtcp_command: exit {code}: {output.strip()[:200]}")
        self.output = output


def _is_own(status: int, is_whole: bool) -> bool:
    """Return whether the wait status is the job's own: the job ended right after its restore."""
    # After all processes have connected, a failure of DMTCP shows as this code or as a signal.
    return is_whole and os.WIFEXITED(status) and os.WEXITSTATUS(status) != _FAILED_CODE


def _shown(status: int) -> str:
    """Return a wait status for people."""
    return f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
