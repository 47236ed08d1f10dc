"""Saves a job: afterwards its image is in the shared directory, whole and sealed,
or there is none.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from . import manifest as manifests
from . import outputs
from .manifest import Manifest
from .node_disk import NodeDisk, move
from .quota import allocated
from .run import Run
from .site import Refused
from .store import Request


class Saves:
    """The saves of one run; after ``take`` call ``go_on`` or ``stop``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._disk = NodeDisk(run.site, run.caller.job, run.say)
        self._still = False

    def take(self, request: Request) -> tuple[Manifest, bool]:
        """The new image, and whether it came after the request's deadline. If it raises Refused
        there is no image, and the tasks go on.
        """
        run, begun = self._run, time.monotonic()
        image = run.store.new_image()
        try:
            manifest = replace(self._make(image, request), seconds=time.monotonic() - begun)
            run.store.accept(image, manifest)
            late = time.monotonic() - begun > request.within
        except Exception as error:
            self.go_on()
            with contextlib.suppress(OSError):
                run.store.drop_image(image)
            raise Refused(f"no checkpoint: {error}") from error
        finally:
            # Older images or a half-made one are gone. If this fails, the next save says so.
            with contextlib.suppress(OSError, Refused):
                run.quota.settle()
        return manifest, late

    def _make(self, image: Path, request: Request) -> Manifest:
        """Write the image to the disk. The tasks go on as soon as it is written, or, if they are to
        be stopped, stand still afterwards.
        """
        run = self._run
        need = run.method.need() + outputs.new(run.copies, run.meta.outputs, run.caller)
        room = run.quota.room(need).size
        with contextlib.ExitStack() as stack:
            made, most = image, room
            # A job that is stopped goes on nowhere before its image is in the shared directory:
            # that is written there at once.
            if run.method.stands_still and not request.stop:
                directory = self._disk.directory(image, need, room)
                made, most = stack.enter_context(directory)
            run.method.expect_stop(request.stop)
            writing = run.method.dump(made, request.within, most, request.closes)
            self._still = True
            number = int(image.name.partition(".")[0])
            manifest = self._complete(made, number, writing, most, request.closes)
            if not request.stop:  # before the rest, which takes long for a large image
                self.go_on()
            move(made, image, room)
        run.quota.settle()
        return replace(manifest, files=manifests.digests(image, room))

    def _complete(
        self, image: Path, number: int, writing: dict[str, int], room: int, closes: bool
    ) -> Manifest:
        """Add the rest of an image of at most ``room`` bytes, while the tasks stand still. The
        manifest lacks only the digests.
        """
        run, caller, method = self._run, self._run.caller, self._run.method
        # CRIU gives no size of what can only be appended to, as slurmstepd opens outputs. DMTCP
        # lets the tasks run on before we look, and gives the sizes of before.
        sizes = outputs.sizes(run.meta.outputs, caller) | writing
        method.gather(image, max(room - allocated(image), 0))
        room -= allocated(image)
        # Not before there is a new image: until then another node may still use any older one.
        outputs.settle(run.copies, run.meta.outputs, run.given_back)
        outputs.keep(run.copies, run.meta.outputs, sizes, caller, room)
        run.given_back = {}
        return Manifest(
            cluster=run.site.cluster,
            job=caller.job,
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
            bound=method.bound(),
            closed=method.connections() if closes else None,
            seconds=0.0,
        )

    def go_on(self) -> None:
        """Let the tasks run on, if they stand still."""
        if self._still:
            self._still = False
            self._run.method.go_on()

    def stop(self) -> None:
        """End the tasks, which the image has."""
        self._still = False
        self._run.method.stop()

    def close(self) -> None:
        """Remove all of it from this node."""
        self._disk.close()
