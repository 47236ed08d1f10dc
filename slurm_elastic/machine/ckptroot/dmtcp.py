"""Method ``dmtcp``: runs DMTCP's own commands (dmtcp_launch(1), dmtcp_command(1),
dmtcp_restart(1)).

They all run as the user, and so does what they restore; only the directories need root. Each run
has a coordinator of its own, on a port that others cannot reach (port_guard). DMTCP saves into a
directory that the user owns; root then copies a bounded number of plain files from there. So nobody
but root ever has one of root's files open for writing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from . import clock, files, image_access, steps
from .caller import Caller
from .child import Child
from .dmtcp_coordinator import UNGUARDED, Coordinator
from .manifest import Manifest
from .method import Method
from .payload import HANDED, Payload, become
from .port_guard import guarded
from .rights import as_user
from .site import Refused, Site

_PROCESSES = 10_000
"""Most files in a directory that DMTCP saved into: one a process, and a few more."""


class Dmtcp(Method):
    """One job's processes under a DMTCP coordinator."""

    name = "dmtcp"
    stands_still = False

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._payload = payload
        self._coordinator = Coordinator(site, caller)
        self._saved = Path(payload.directory) / f".slurm-elastic-{caller.job}.ckpt"
        self._own_clocks = clock.offsets()
        self._clocks: clock.Clocks | None = None
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The payload's first process; 0 if there is none."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        """Start the payload under dmtcp_launch."""
        self._run([self._program("dmtcp_launch"), *self._coordinator.words(), *self._payload.argv])

    def restore(self, image: Path, manifest: Manifest) -> None:
        """Run dmtcp_restart on the image's files, which were verified."""
        names = [name for name in sorted(manifest.files) if name.endswith(".dmtcp")]
        if not names:
            raise Refused("the image has no file of DMTCP")
        image_access.show(image)
        # It is handed over open, as users cannot reach it by its path.
        with files.directory(image) as directory:
            saved = [f"/proc/self/fd/{HANDED}/{name}" for name in names]
            command = [self._program("dmtcp_restart"), *self._coordinator.words(), *saved]
            self._run(command, handed=directory, clocks=manifest.clocks)

    def need(self) -> int:
        """Unknown until DMTCP has compressed it; ``gather`` then bounds it. Raises Refused while a
        step runs, as its srun could not be brought back.
        """
        steps.check(self._site, self._caller.job, (), self.name)
        return 0

    def clocks(self) -> clock.Clocks | None:
        """The time now, which is later than in the image as the tasks run on: they
        never go back.
        """
        return None if self._clocks is None else clock.now(self._own_clocks, self._clocks)

    def dump(self, _image: Path, within: float, _most: int, _closes: bool, /) -> dict[str, int]:
        """Save into the user's directory. If it raises Refused, the tasks go on."""
        self._discard()
        try:
            with as_user(self._caller):
                os.mkdir(self._saved, 0o700)
            self._coordinator.command(within, "--ckptdir", str(self._saved), "--bcheckpoint")
        except OSError as error:
            raise Refused(f"{self._saved}: {error.strerror}") from error
        except Refused:
            self._discard()
            raise
        return {}

    def gather(self, image: Path, most: int) -> None:
        """Copy what was saved into the image, as root's files."""
        try:
            with as_user(self._caller):
                directory = os.open(self._saved, os.O_RDONLY | os.O_DIRECTORY | files.SAFE)
            try:
                self._copy_all(directory, image, most)
            finally:
                os.close(directory)
        finally:
            self._discard()

    def _copy_all(self, directory: int, image: Path, most: int) -> None:
        names = [name for name in files.names(directory, _PROCESSES) if name.endswith(".dmtcp")]
        if not names:
            raise Refused("dmtcp_command: no image was written")
        for name in names:
            with as_user(self._caller):
                source = files.opened(name, owners=(self._caller.uid,), most=most, at=directory)
            try:
                most -= files.copy_file(source, image / name, 0o640, most)
            finally:
                os.close(source)

    def _discard(self) -> None:
        """Remove, with the user's rights, what was saved into his directory."""
        # If he keeps us from it, that is his affair.
        with contextlib.suppress(OSError, Refused), as_user(self._caller):
            files.remove(self._saved, _PROCESSES)

    def go_on(self) -> None:
        """After a dump they run already."""
        self._discard()

    def stop(self) -> None:
        """After a dump, end the processes and with them their coordinator."""
        with contextlib.suppress(Refused):
            self._coordinator.command(30.0, "--quit")
        self._kill()

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        if self._child:
            self._child.signal(number)

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended."""
        return self._child.status() if self._child else None

    def versions(self) -> dict[str, str]:
        """The versions of the programs that made the image."""
        said = ""
        with contextlib.suppress(Refused):
            _, said = self._coordinator.ask("dmtcp_launch", 10.0, "--version")
        found = re.search(r"(\d+\.\d+\S*)", said)
        return {"dmtcp": found[1] if found else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """End what is left of the job; remove the scratch directory."""
        if self._child:
            with contextlib.suppress(Refused):
                self._coordinator.command(10.0, "--quit")
            self._kill()
        self._discard()
        self._coordinator.close()

    def _run(
        self, argv: Sequence[str], handed: int | None = None, clocks: clock.Clocks | None = None
    ) -> None:
        """Start the payload as our child and the leader of a session, with the saved ``clocks``."""
        self._coordinator.forget()
        payload = replace(self._payload, argv=tuple(argv))
        with self._with_clocks(clocks):
            pid = os.fork()
            if pid == 0:
                become(payload, bound=True, handed=handed)
        self._child = Child(pid)
        try:
            self._coordinator.wait(argv[0], self.ended)
        except Refused:
            self._kill()
            raise

    @contextlib.contextmanager
    def _with_clocks(self, saved: clock.Clocks | None) -> Iterator[None]:
        """Give a child that is started clocks of its own if this node can. A job that was saved
        with its own is not brought back without.
        """
        self._clocks = None
        with contextlib.ExitStack() as stack:
            try:
                self._clocks = stack.enter_context(clock.begun(self._own_clocks, saved))
            except OSError as error:
                if saved:
                    raise Refused(f"its clocks cannot go on here: {error.strerror}") from error
            yield

    def _kill(self) -> None:
        """Kill the payload's session; the coordinator ends processes that have left it."""
        if self._child:
            self._child.end()
            self._child = None

    def _program(self, name: str) -> str:
        return f"{self._site.dmtcp}/{name}"


def available(site: Site) -> None:
    """Raises Refused if this host cannot run it."""
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        if not os.access(f"{site.dmtcp}/{name}", os.X_OK):
            raise Refused(f"{site.dmtcp}/{name} is not installed")
    guard = guarded(0)
    if guard is None:
        raise Refused(UNGUARDED)
    guard.close()
