"""Save a job: afterwards a complete, sealed image is in the shared directory, or there is none."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from . import instructions, lines, outputs
from . import manifest as manifests
from .manifest import ImageManifest
from .node_disk import NodeDisk, move
from .quota import allocated
from .run import Run
from .site import RequestRefused
from .store import HeadRequest


class RunSaves:
    """The saves of one run. After ``take`` call ``resume`` or ``stop``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._disk = NodeDisk(run.site, run.caller.job, run.report)
        self._is_still = False

    def take(self, request: HeadRequest) -> tuple[ImageManifest, bool]:
        """Return the new image, and whether it was completed after the request's deadline.

        If it raises RequestRefused, there is no image, and the tasks continue.
        """
        run, begun = self._run, time.monotonic()
        image = run.store.new_image()
        try:
            manifest = replace(self._write_image(image, request), seconds=time.monotonic() - begun)
            run.store.accept(image, manifest)
            run.parent, run.line, run.given_back = manifest.number, manifest.line, {}
            is_late = time.monotonic() - begun > request.within
        except Exception as error:
            self.resume()
            with contextlib.suppress(OSError):
                run.store.drop_image(image)
                run.store.drop_unused_copies()
            raise RequestRefused(f"no checkpoint: {error}") from error
        finally:
            # Older images or a partial one were removed. If this fails, the next save reports it.
            with contextlib.suppress(OSError, RequestRefused):
                run.quota.settle()
        return manifest, is_late

    def _write_image(self, image: Path, request: HeadRequest) -> ImageManifest:
        """Write the image. The tasks continue as soon as it is on the node's disk, or stay stopped
        if the request says so.
        """
        run = self._run
        need = run.method.estimate_size() + outputs.new(run.copies, run.meta.outputs, run.caller)
        room = run.quota.room(need).size
        with contextlib.ExitStack() as stack:
            target, max_bytes = image, room
            # A stopped job cannot continue before its image is in the shared directory. So write
            # such an image there directly.
            if run.method.stands_still and not request.stop:
                directory = self._disk.directory(image, need, room)
                target, max_bytes = stack.enter_context(directory)
            run.method.expect_stop(request.stop)
            writing = run.method.dump(target, request.within, max_bytes, request.closes)
            self._is_still = True
            number = int(image.name.partition(".")[0])
            manifest = self._complete(target, number, writing, max_bytes, request.closes)
            if not request.stop:  # before ``move``, which takes long for a large image
                self.resume()
            move(target, image, room)
        run.quota.settle()
        return replace(manifest, files=manifests.digests(image, room))

    def _complete(
        self, image: Path, number: int, writing: dict[str, int], room: int, closes: bool
    ) -> ImageManifest:
        """Add the rest of an image of at most ``room`` bytes, while the tasks stand still.

        The returned manifest lacks only the digests.
        """
        run, caller, method = self._run, self._run.caller, self._run.method
        # CRIU gives no size of files that can only be appended to, such as outputs opened by
        # slurmstepd. DMTCP has already continued the tasks, so its own earlier sizes win.
        sizes = outputs.sizes(run.meta.outputs, caller) | writing
        method.gather(image, max(room - allocated(image), 0))
        instructions.note(image, sorted({*run.instructions, *method.other_instructions()}))
        room -= allocated(image)
        line = self._keep_outputs(number, sizes, room)
        return ImageManifest(
            cluster=run.site.cluster,
            job=caller.job,
            script=run.meta.script,
            processor=instructions.processor(),
            line=line,
            parent=run.parent,
            worked=run.work_done(),
            submitted=run.submitted,
            label=run.meta.label,
            attempt=run.attempt,
            number=number,
            method=method.name,
            uid=caller.uid,
            gid=caller.gid,
            node=run.node,
            taken=time.time(),
            pid=method.pid,
            versions=method.versions(),
            files={},
            writing=sizes,
            locked=method.locked(),
            clocks=method.clocks(),
            bound=method.cpu_bindings(),
            closed=method.connections() if closes else None,
            seconds=0.0,
        )

    def _keep_outputs(self, number: int, sizes: dict[str, int], room: int) -> int:
        """Extend the copies of the outputs for image ``number`` and return their line. Copies that
        an image needs are never cut, because this save may still fail.
        """
        run = self._run
        numbers = [int(path.name) for path in run.store.images()]
        if lines.leaves_line(numbers, run.store.manifests(), run.line, run.parent):
            copies = run.store.make_copies(number)
            room -= outputs.fork(run.copies, copies, run.meta.outputs, run.given_back, room)
            outputs.keep(copies, run.meta.outputs, sizes, run.caller, room)
            return number
        # The rest of a longer copy is useless: its image was never complete.
        outputs.cut_copies(run.copies, run.meta.outputs, run.given_back)
        outputs.keep(run.copies, run.meta.outputs, sizes, run.caller, room)
        return run.line

    def resume(self) -> None:
        """Continue the tasks if they stand still."""
        if self._is_still:
            self._is_still = False
            self._run.method.resume()

    def stop(self) -> None:
        """End the tasks, which are saved in the image."""
        self._is_still = False
        self._run.method.stop()

    def close(self) -> None:
        """Remove the job's files on the node's disk."""
        self._disk.close()
