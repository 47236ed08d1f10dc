"""Method ``dmtcp``: runs DMTCP's own commands (dmtcp_launch, dmtcp_command and dmtcp_restart of
DMTCP 4.2.0).

They all run as the user, and so does what they restore; only the directories need root. Each run
has a coordinator of its own, on a port that others cannot reach (port_guard). DMTCP saves into a
directory that the user owns; root then copies a bounded number of plain files from there. Only root
ever has root's files open for writing.

DMTCP lets the tasks run on once their images are written. So a save that stops the job has DMTCP
end them with their images (--kcheckpoint): otherwise what they write until root has copied the
images would be written twice. If they are to run on after all, they are brought back from the
user's directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from . import clock, dmtcp_images, files, image_access, outputs, steps, uncut_files
from .caller import Caller
from .child import Child
from .dmtcp_coordinator import UNGUARDED, Coordinator
from .dmtcp_images import IMAGE, DmtcpImages
from .dmtcp_open_files import appended_files, check_files
from .manifest import Manifest
from .method import Method
from .payload import HANDED, Payload, become
from .port_guard import guarded
from .proc import family
from .site import Refused, Site

_LOOK = 0.02
"""Seconds between two looks for the end of a save."""
_END = 5.0
"""Seconds between the end of the last process and the sign of a save that ended it."""
_RESTORE = 60.0
_RESTORE_RATE = 10 << 20
"""Seconds that a restart may take, and bytes that it reads a second at least: it decompresses."""


class Dmtcp(Method):
    """One job's processes under a DMTCP coordinator."""

    name = "dmtcp"
    stands_still = False

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._payload = payload
        self._coordinator = Coordinator(site, caller)
        self._saved = DmtcpImages(
            Path(payload.directory) / f".slurm-elastic-{caller.job}.ckpt", caller
        )
        self._outputs = outputs.of_step()
        self._own_clocks = clock.offsets()
        self._clocks: clock.Clocks | None = None
        self._child: Child | None = None
        self._keeper: uncut_files.Keeper | None = None
        self._appended: list[str] = []
        self._kills = False
        self._is_open = False

    @property
    def pid(self) -> int:
        """The payload's first process; 0 if there is none."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        """Start the payload under dmtcp_launch."""
        words = self._coordinator.words(self._saved.path)
        self._run([self._program("dmtcp_launch"), *words, *self._payload.argv])

    def lay_out(self, image: Path, /) -> None:
        """Put the files beside the image where dmtcp_restart looks for them."""
        self._saved.lay_out(image)

    def restore(self, image: Path, manifest: Manifest) -> None:
        """Run dmtcp_restart on the image's files, which were verified and laid out."""
        names = [name for name in sorted(manifest.files) if name.endswith(IMAGE)]
        if not names:
            raise Refused("the image has no file of DMTCP")
        image_access.show(image)
        # It is handed over open, as users cannot reach it by its path.
        with files.directory(image) as directory:
            paths = [f"/proc/self/fd/{HANDED}/{name}" for name in names]
            self._appended = dmtcp_images.appended(image)
            self._restart(paths, manifest.size, handed=directory, clocks=manifest.clocks)

    def _restart(
        self, paths: Sequence[str], size: int, handed: int | None = None,
        clocks: clock.Clocks | None = None,
    ) -> None:  # fmt: skip
        """Bring the processes back from the images at ``paths``; Refused unless all run. DMTCP
        does not cut the files that they append to.
        """
        program = self._program("dmtcp_restart")
        words = self._coordinator.words(self._saved.path)
        # Strict checking wants images that are the user's own; these may be root's.
        argv = [program, *words, "--no-strict-checking", *paths]
        try:
            self._run(argv, handed, clocks, self._appended)
            within = _RESTORE + size / _RESTORE_RATE
            self._coordinator.wait_restored(program, len(paths), self._status, within)
            if self._keeper:
                self._keeper.restored()
        except Refused:
            self._end()
            raise
        finally:
            self._saved.discard()

    def need(self) -> int:
        """Unknown until DMTCP has compressed it; ``gather`` then bounds it. Raises Refused while a
        step runs, as its srun could not be brought back, or for a file that DMTCP cannot bring
        back.
        """
        steps.check(self._site, self._caller.job, (), self.name)
        self._look_at_files()
        return 0

    def _look_at_files(self) -> None:
        """Note the files that the tasks append to; Refused for what cannot be brought back."""
        if self._child:
            tasks = list(family(self._child.pid))
            check_files(tasks)
            self._appended = appended_files(tasks, self._outputs)
            uncut_files.check_possible(self._appended)

    def clocks(self) -> clock.Clocks | None:
        """The time now, which is later than in the image as the tasks run on: they
        never go back.
        """
        return None if self._clocks is None else clock.now(self._own_clocks, self._clocks)

    def expect_stop(self, stops: bool, /) -> None:
        """The next dump ends the tasks with their images if they are to be stopped."""
        self._kills = stops

    def dump(self, _image: Path, within: float, _most: int, _closes: bool, /) -> dict[str, int]:
        """Save into the user's directory; the sizes of the outputs at the image. If it raises
        Refused, the tasks run on: at once, or once DMTCP has written images that came too late.
        """
        until = time.monotonic() + within
        self._settle()
        if self._is_open:
            raise Refused("DMTCP still writes the images of the last save")
        self._look_at_files()
        self._saved.make()
        try:
            self._coordinator.save(within, kills=self._kills)
        except Refused:
            self._is_open = not self._is_idle()
            self._drop()
            raise
        self._is_open = True
        sizes = self._wait_saved(until)
        self._is_open = False
        return sizes

    def _wait_saved(self, until: float) -> dict[str, int]:
        """Wait for the end of the save; the sizes of the outputs while all tasks stood still."""
        sizes: dict[str, int] = {}
        while not self._saved.is_complete():
            if self._saved.is_being_written():
                seen = outputs.sizes(self._outputs, self._caller)
                # Only if a task still writes its image now has none run on meanwhile.
                sizes = seen if self._saved.is_being_written() else sizes
            if self._status() is not None:
                until = min(until, time.monotonic() + _END)
            if time.monotonic() > until:
                self._is_open = not self._is_idle()
                self._drop()
                raise Refused("DMTCP has not written the images in time")
            time.sleep(_LOOK)
        return {} if self._kills else sizes

    def _is_idle(self) -> bool:
        """Whether DMTCP writes no images now."""
        if self._status() is not None:
            return not self._saved.is_complete()
        with contextlib.suppress(Refused):
            return self._coordinator.status(1.0)[1]
        return False

    def _drop(self) -> None:
        """Remove what was saved, unless DMTCP still writes there."""
        if not self._is_open:
            self._saved.discard()

    def _settle(self) -> None:
        """If a save came to its end after its time, remove its images. If it ended the tasks, bring
        them back first.
        """
        if not self._is_open:
            return
        if self._saved.is_complete():
            self._is_open = False
            self.go_on()
        elif self._is_idle():
            self._is_open = False
            self._drop()

    def gather(self, image: Path, most: int) -> None:
        """Copy what was saved into the image, as root's files."""
        try:
            self._saved.gather(image, most)
            dmtcp_images.note_appended(image, self._appended)
        except OSError as error:
            raise Refused(f"{self._saved.path}: {error.strerror}") from error

    def go_on(self) -> None:
        """After a dump: the tasks run already, or are brought back from the user's directory."""
        if not self._kills:
            self._saved.discard()
            return
        self._kills = False
        self._end()
        self._restart(self._saved.images(), self._saved.size(), clocks=self.clocks())

    def stop(self) -> None:
        """After a dump, end what is left of the processes and with them their coordinator."""
        self._kills = False
        self._quit(30.0)
        self._end()
        self._saved.discard()

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        if self._child:
            self._child.signal(number)

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended. If a late save ended it, it is brought back
        instead.
        """
        with contextlib.suppress(Refused):
            self._settle()
        return self._status()

    def _status(self) -> int | None:
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
            self._quit(10.0)
            self._end()
        self._saved.discard()
        self._coordinator.close()

    def _quit(self, within: float) -> None:
        """Have the coordinator end all processes, also those that have left the session."""
        with contextlib.suppress(Refused):
            self._coordinator.command(within, "--quit")

    def _run(
        self, argv: Sequence[str], handed: int | None = None, clocks: clock.Clocks | None = None,
        uncut: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Start the payload as our child and the leader of a session, with the saved ``clocks``.
        Until all of it is restored its truncate() leaves the files ``uncut`` as they are.
        """
        self._coordinator.forget()
        more = self._coordinator.environment(self._saved.path)
        environment = {**self._payload.environment, **more}
        payload = replace(self._payload, argv=tuple(argv), environment=environment)
        handover = uncut_files.Handover.made() if uncut else None
        with self._with_clocks(clocks):
            pid = os.fork()
            if pid == 0:
                if handover:
                    handover.give()
                become(payload, bound=True, handed=handed)
        self._child = Child(pid)
        try:
            if handover:
                self._keeper = uncut_files.keep(handover, uncut, self._caller)
            self._coordinator.wait(argv[0], self._status)
        except Refused:
            self._end()
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

    def _end(self) -> None:
        """Kill the payload with all that it has started; processes that DMTCP has half restored do
        not listen to their coordinator.
        """
        if self._child:
            _kill_family(self._child.pid)
            self._child.end()
            self._child = None
        if self._keeper:
            self._keeper.close()
            self._keeper = None

    def _program(self, name: str) -> str:
        return f"{self._site.dmtcp}/{name}"


def _kill_family(pid: int) -> None:
    """Kill all that a process has started. A number may be another process's by the time of the
    signal, so each is held open first, and has to be of the family still.
    """
    with contextlib.ExitStack() as stack:
        held: dict[int, int] = {}
        for one in set(family(pid)) - {pid}:
            with contextlib.suppress(OSError):
                held[one] = os.pidfd_open(one)
                stack.callback(os.close, held[one])
        for one in set(family(pid)) & held.keys():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(held[one], signal.SIGKILL)


def available(site: Site) -> None:
    """Raises Refused if this host cannot run it."""
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        if not os.access(f"{site.dmtcp}/{name}", os.X_OK):
            raise Refused(f"{site.dmtcp}/{name} is not installed")
    guard = guarded(0)
    if guard is None:
        raise Refused(UNGUARDED)
    guard.close()
