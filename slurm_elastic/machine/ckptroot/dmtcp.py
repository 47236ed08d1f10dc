"""Method ``dmtcp``: runs DMTCP's own commands (dmtcp_launch, _command and _restart of 4.2.0).

All of them, and the processes they restore, run as the user; only the directories need root. Each
run has its own coordinator, on a port that others cannot reach (port_guard). DMTCP saves into a
directory that the user owns. Root then copies a bounded number of plain files from there. Only root
ever has root's files open for writing.

DMTCP continues the tasks as soon as their images are written. In a save that stops the job, DMTCP
therefore ends each task with its image (--kcheckpoint). Otherwise the job would repeat, after the
restore, the writes that it made while root copied the images. If the tasks must continue after all,
they are restored from the user's directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from . import clock, dmtcp_images, files, image_access, log, outputs, steps, uncut_files
from .caller import Caller
from .dmtcp_coordinator import UNGUARDED, Coordinator
from .dmtcp_hang import HANGS_AFTER_S, SaveHang, SaveProbe
from .dmtcp_images import IMAGE, DmtcpImages
from .dmtcp_nodes import OtherNodes
from .dmtcp_open_files import appended_files, check_files
from .dmtcp_task import DmtcpTask, handed_paths
from .job_nodes import JobNodes
from .manifest import ImageManifest
from .method import Method
from .payload import Payload
from .port_guard import guarded
from .site import HelperSite, RequestRefused

_POLL_EVERY_S = 0.02
"""Seconds between two checks for the end of a save."""
_MARK_TIMEOUT_S = 5.0
"""Seconds from the end of the last process to the mark of a complete save."""
_SET_TIMEOUT_S = 40.0
_LOOK_EVERY_S = 10.0
"""Seconds between two looks for the job's other nodes during a save."""
_RESTORE_BASE_S = 60.0
_RESTORE_BYTES_PER_S = 10 << 20
"""A restart may take ``_RESTORE_BASE_S``, and the time to read the images at this rate: it
decompresses them.
"""


class Dmtcp(Method):
    """One job's processes under a DMTCP coordinator."""

    name = "dmtcp"
    stands_still = False

    def __init__(
        self, site: HelperSite, caller: Caller, payload: Payload, nodes: JobNodes | None = None
    ) -> None:
        self._site = site
        self._caller = caller
        self._payload = payload
        self._coordinator = Coordinator(site, caller, nodes)
        self._saved = DmtcpImages(
            Path(payload.directory) / f".slurm-elastic-{caller.job}.ckpt", caller
        )
        self._others = OtherNodes(site, caller, nodes, self._saved.path) if nodes else None
        self._outputs = outputs.of_step()
        self._task = DmtcpTask(payload)
        self._appended: list[str] = []
        self._stops = self._kills = False
        self._save_is_open = False
        self._probe = SaveProbe(self._saved)
        self._hang = SaveHang(self._written)

    @property
    def pid(self) -> int:
        """The payload's first process; 0 if there is none."""
        return self._task.pid

    def start(self) -> None:
        """Start the payload under dmtcp_launch."""
        variables: dict[bytes, bytes] = {}
        if self._others:
            self._others.begin(self._coordinator.port())
            variables = self._others.environment(self._coordinator.place())
        options = self._coordinator.words(self._saved.path)
        argv = [self._program("dmtcp_launch"), *options, *self._payload.argv]
        self._run(argv, variables=variables)

    def put_back_files(self, image: Path, /) -> None:
        """Put the files beside the image to the place where dmtcp_restart looks for them."""
        self._saved.put_back_files(image)
        if self._others:
            self._others.put_back_files(image)

    def restore(self, image: Path, manifest: ImageManifest) -> None:
        """Run dmtcp_restart on the image's files, which were verified and laid out."""
        every = [name for name in sorted(manifest.files) if name.endswith(IMAGE)]
        names = [name for name in every if dmtcp_images.is_of_first(name)]
        if not names:
            raise RequestRefused("the image has no file of DMTCP")
        image_access.show(image)
        # Hand the directory over open, because users cannot reach it by its path.
        with files.directory(image) as directory:
            self._appended = dmtcp_images.appended(image)
            self._restart(handed_paths(names), manifest.size, len(every), int(image.name),
                          handed=directory, clocks=manifest.clocks)  # fmt: skip

    def _restart(
        self, paths: Sequence[str], size: int, count: int, number: int = 0, *,
        handed: int | None = None, clocks: clock.Clocks | None = None,
    ) -> None:  # fmt: skip
        """Restore the processes from the images at ``paths``, and on the other nodes from image
        ``number``. RequestRefused unless all processes, ``count``, run.

        DMTCP must not truncate the files that they append to.
        """
        program = self._program("dmtcp_restart")
        try:
            if self._others:
                self._others.begin(self._coordinator.port())
            options = self._coordinator.words(self._saved.path)
            # Strict checking requires that the user owns the images, but these may be root's.
            argv = [program, *options, "--no-strict-checking", *paths]
            self._run(argv, handed, clocks, self._appended)
            if self._others:
                self._others.restore(number, clocks, self._appended)
            timeout = _RESTORE_BASE_S + size / _RESTORE_BYTES_PER_S
            self._coordinator.wait_restored(program, count, self._task.status, timeout)
            self._task.restored()
            if self._others:
                self._others.restored()
        except RequestRefused:
            self._end()
            raise
        finally:
            self._saved.discard()

    def estimate_size(self) -> int:
        """Return 0: the size is unknown until DMTCP has compressed the image; ``gather`` then
        limits it.

        RequestRefused while a step runs, because its srun could not be restored, and for files that
        DMTCP cannot restore.
        """
        members = self._task.members() if self._others else ()
        steps.check(self._site, self._caller.job, members, self.name)
        self._check_files()
        return 0

    def _check_files(self) -> None:
        """Store the files that the tasks append to. RequestRefused if a file cannot be restored."""
        if tasks := self._task.members():
            check_files(tasks)
            appended = set(appended_files(tasks, self._outputs))
            if self._others:
                appended |= set(self._others.appended()) - set(self._outputs)
            self._appended = sorted(appended)
            uncut_files.check_possible(self._appended)

    def clocks(self) -> clock.Clocks | None:
        """Return the present time on the job's clocks. It is later than the image, so the clocks
        never go back.
        """
        return self._task.clocks()

    def expect_stop(self, stops: bool, /) -> None:
        """If ``stops``, the next dump ends the tasks with their images."""
        # A late save may still be open, which ends the tasks or not as it was ordered.
        self._stops = stops

    def dump(self, _image: Path, within: float, _most: int, _closes: bool, /) -> dict[str, int]:
        """Save into the user's directory; return the sizes of the outputs at the image.

        If it raises RequestRefused, the tasks continue: at once, or after DMTCP has written images
        that came too late.
        """
        until = time.monotonic() + within
        self._finish_late_save()
        if self._save_is_open:
            raise RequestRefused("DMTCP still writes the images of the last save")
        self._check_files()
        self._saved.make()
        self._kills = self._stops
        try:
            if self._others:
                self._others.make()
            self._coordinator.save(within, kills=self._kills)
        except RequestRefused:
            self._keep_open_or_drop()
            raise
        self._save_is_open = True
        sizes = self._wait_saved(until)
        self._save_is_open = False
        return sizes

    def _wait_saved(self, until: float) -> dict[str, int]:
        """Wait for the end of the save; return the sizes of the outputs while all tasks stood
        still.
        """
        sizes: dict[str, int] = {}
        next_look = time.monotonic() + _LOOK_EVERY_S
        while not self._saved.is_complete():
            if self._others and time.monotonic() > next_look:
                next_look = time.monotonic() + _LOOK_EVERY_S
                self._check_nodes()
            if self._saved.is_being_written():
                new_sizes = outputs.sizes(self._outputs, self._caller)
                # Valid only if a task still writes its image after the sizes were read. Then no
                # task ran in between.
                sizes = new_sizes if self._saved.is_being_written() else sizes
            # Processes on other nodes may still write their images.
            if self._task.status() is not None and self._others is None:
                until = min(until, time.monotonic() + _MARK_TIMEOUT_S)
            if time.monotonic() > until:
                self._keep_open_or_drop()
                raise RequestRefused("DMTCP has not written the images in time")
            time.sleep(_POLL_EVERY_S)
        return {} if self._kills else sizes

    def _check_nodes(self) -> None:
        """End the tasks if a node is lost during a save, because the save then hangs. Raise
        RequestRefused in that case.
        """
        if node := self.lost():
            self._save_is_open = False
            self._end()
            self._drop()
            raise RequestRefused(f"{node} does not answer")

    def _is_idle(self) -> bool:
        """Return whether DMTCP writes no images now."""
        if self._task.status() is not None and self._others is None:
            return not self._saved.is_complete()
        with contextlib.suppress(RequestRefused):
            processes, is_running = self._coordinator.status(1.0)
            if self._task.status() is None:
                return is_running
            # Each process ends with its own image, so others may still write on other nodes.
            return not processes and not self._saved.is_complete()
        return False

    def _keep_open_or_drop(self) -> None:
        """After a save that failed: remove its images, unless DMTCP still writes there."""
        self._save_is_open = not self._is_idle()
        self._hang = SaveHang(self._written)
        self._drop()

    def _drop(self) -> None:
        """Remove the saved images, unless DMTCP still writes there."""
        if not self._save_is_open:
            self._saved.discard()

    def _finish_late_save(self) -> None:
        """If a save ended after its deadline, remove its images. If it ended the tasks, restore
        them first. If a late save of a job of several nodes hangs, end the tasks, because such a
        save cannot be cancelled.
        """
        if not self._save_is_open:
            return
        if self._saved.is_complete():
            self._save_is_open = False
            self.resume()
        elif self._is_idle():
            self._save_is_open = False
            self._drop()
        elif self._others and self._hang.has_hung():
            line = f"DMTCP's save has written nothing for {HANGS_AFTER_S:.0f} s: ending the tasks"
            log.write(log.WARNING, f"job {self._caller.job}: {line}")
            self._save_is_open = False
            self._end()
            self._drop()

    def _written(self) -> int | None:
        """Return the bytes that a save has written so far on all nodes; None if a node gets no
        answer from its file system.
        """
        here = self._probe.look()
        elsewhere = self._others.written() if self._others else 0
        return None if here is None or elsewhere is None else here + elsewhere

    def gather(self, image: Path, max_bytes: int) -> None:
        """Copy the saved files into the image, as root's files."""
        if self._others:
            self._wait_for_set(self._others)
        try:
            max_bytes = self._saved.gather(image, max_bytes)
            if self._others:
                self._others.gather(image, max_bytes)
            dmtcp_images.note_appended(image, self._appended)
        except OSError as error:
            raise RequestRefused(f"{self._saved.path}: {error.strerror}") from error

    def _wait_for_set(self, others: OtherNodes) -> None:
        """Wait until the images of all nodes are visible here. RequestRefused if some
        are missing.
        """
        # A client of NFS may see another node's files late.
        until, count = time.monotonic() + _SET_TIMEOUT_S, self._saved.count_of_set()
        while (present := len(self._saved.images()) + others.saved()[0]) != count:
            if time.monotonic() > until:
                raise RequestRefused(f"dmtcp_command: {present} of {count} images are there")
            time.sleep(_POLL_EVERY_S)

    def resume(self) -> None:
        """After a dump: the tasks run already, or are restored from the user's directory."""
        if not self._kills:
            self._saved.discard()
            return
        self._kills = False
        clocks, paths, size = self.clocks(), self._saved.images(), self._saved.size()
        self._end()
        count, bytes_elsewhere = self._others.saved() if self._others else (0, 0)
        self._restart(paths, size + bytes_elsewhere, len(paths) + count, clocks=clocks)

    def stop(self) -> None:
        """After a dump: end the remaining processes and with them their coordinator."""
        self._kills = False
        self._quit(30.0)
        self._end()
        self._saved.discard()

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        self._task.signal(number)

    def wait_status(self) -> int | None:
        """Return the payload's wait status after it has ended, or None.

        If a late save ended the payload, it is restored instead.
        """
        with contextlib.suppress(RequestRefused):
            self._finish_late_save()
        if self._others and self._save_is_open and self._kills:
            # The save may have ended the first process, while other nodes still write.
            return None
        if self._others and self._task.pid and not self._save_is_open:
            self._others.tend(self._coordinator.place(), self._task.clocks())
        return self._task.status()

    def lost(self) -> str:
        """Return the name of a node of the job that does not answer; "" if all do."""
        return self._others.lost() if self._others else ""

    def other_instructions(self) -> list[str]:
        """Return the instructions of the processors of the job's other nodes."""
        return self._others.instructions if self._others else []

    def versions(self) -> dict[str, str]:
        """Return the versions of the programs that made the image."""
        output = ""
        with contextlib.suppress(RequestRefused):
            _, output = self._coordinator.ask("dmtcp_launch", 10.0, "--version")
        version = re.search(r"(\d+\.\d+\S*)", output)
        return {"dmtcp": version[1] if version else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """End the rest of the job; remove the scratch directory."""
        if self._task.pid:
            self._quit(10.0)
            self._end()
        if self._others:
            self._others.close()
        self._probe.close()
        self._saved.discard()
        self._coordinator.close()

    def _quit(self, within: float) -> None:
        """Have the coordinator end all processes, also processes outside the session."""
        with contextlib.suppress(RequestRefused):
            self._coordinator.command(within, "--quit")

    def _run(
        self, argv: Sequence[str], handed: int | None = None, clocks: clock.Clocks | None = None,
        uncut: Collection[str] = (), variables: Mapping[bytes, bytes] | None = None,
    ) -> None:  # fmt: skip
        """Start the payload, with the ``clocks`` that were saved, and its coordinator.

        Until all processes are restored, their truncate() does not change the files ``uncut``.
        """
        self._coordinator.forget()
        self._coordinator.begin(self._saved.path)
        of_dmtcp = self._coordinator.environment(self._saved.path)
        self._task.run(argv, {**(variables or {}), **of_dmtcp}, handed, clocks, uncut)
        try:
            self._coordinator.wait(argv[0], self._task.status)
        except RequestRefused:
            self._end()
            raise

    def _end(self) -> None:
        """Kill the payload and all its descendants, on all nodes."""
        self._task.end()
        if self._others:
            self._others.end()

    def _program(self, name: str) -> str:
        return f"{self._site.dmtcp}/{name}"


def available(site: HelperSite) -> None:
    """RequestRefused if this host cannot run the method."""
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        if not os.access(f"{site.dmtcp}/{name}", os.X_OK):
            raise RequestRefused(f"{site.dmtcp}/{name} is not installed")
    guard = guarded(0)
    if guard is None:
        raise RequestRefused(UNGUARDED)
    guard.close()
