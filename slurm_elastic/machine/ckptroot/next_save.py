"""Looks at a job between its saves, without stopping anything. So room is promised to its next
save, and what would prevent that save is known before a notice, when it would be too late.
"""

from __future__ import annotations

import contextlib

from . import manifest as manifests
from .quota import allocated
from .run import Run
from .site import Refused

EVERY = 60.0
"""Seconds between two looks."""


class NextSave:
    """The next save of a run. ``hindered``: why it could not be made now, empty if nothing is
    known. ``closes``: whether the last save was asked to close connections; None before the first.
    """

    def __init__(self, run: Run) -> None:
        self.hindered = ""
        self.closes: bool | None = None
        self._run = run
        self._bytes = 0

    def look(self) -> bool:
        """Whether something has changed that the head should know; it is said once."""
        run = self._run
        try:
            need = max(run.method.need(), self._last_size())
            partners = run.method.partners() if self.closes is False else ()
            if partners:
                why = f"it has a connected TCP socket: to {partners[0]}"
                raise Refused(why)  # noqa: TRY301 - as the others, it is told below
            if self.hindered or abs(need - self._bytes) > need // 10:
                run.quota.room(need)
                self._bytes = need
        except Refused as error:
            before, self.hindered = self.hindered, str(error)
            # What follows the colon are numbers and names, which may change each minute.
            if before.partition(":")[0] == self.hindered.partition(":")[0]:
                return False
            run.say(f"its next save could not be made now: {error}")
            return True
        except Exception:  # noqa: BLE001 - no look at it may end the job
            return False
        if not self.hindered:
            return False
        self.hindered = ""
        run.say(f"{need >> 20} MiB are promised to its next save")
        return True

    def _last_size(self) -> int:
        """Bytes that the last image takes on disk: DMTCP's may have holes, as the memory it saves
        has.
        """
        for image in self._run.store.images()[:1]:
            with contextlib.suppress(Refused):
                return min(manifests.read(image, self._run.site.key).size, allocated(image))
        return 0
