"""Check a job between its saves, without stopping it.

This promises room to its next save, and finds an obstacle before a notice, when it would be too
late.
"""

from __future__ import annotations

import contextlib

from . import manifest as manifests
from .quota import allocated
from .run import Run
from .site import RequestRefused

CHECK_EVERY_S = 60.0
"""Seconds between two checks."""


class NextSave:
    """The next save of a run.

    ``hindered``: why it could not be made now; "" if no reason is known. ``closes``: whether the
    last save was asked to close connections; None before the first.
    """

    def __init__(self, run: Run) -> None:
        self.hindered = ""
        self.closes: bool | None = None
        self._run = run
        self._bytes = 0

    def check(self) -> bool:
        """Return whether something has changed that the head should know. Each change is reported
        once.
        """
        run = self._run
        try:
            need = max(run.method.estimate_size(), self._last_size())
            partners = run.method.outside_connections() if self.closes is False else ()
            if partners:
                obstacle = f"it has a connected TCP socket: to {partners[0]}"
                raise RequestRefused(obstacle)  # noqa: TRY301 - reported below like the others
            if self.hindered or abs(need - self._bytes) > need // 10:
                run.quota.room(need)
                self._bytes = need
        except RequestRefused as error:
            before, self.hindered = self.hindered, str(error)
            # After the colon are numbers and names, which may change each minute.
            if before.partition(":")[0] == self.hindered.partition(":")[0]:
                return False
            run.report(f"its next save could not be made now: {error}")
            return True
        except Exception:  # noqa: BLE001 - a failing check must not end the job
            return False
        if not self.hindered:
            return False
        self.hindered = ""
        run.report(f"{need >> 20} MiB are promised to its next save")
        return True

    def _last_size(self) -> int:
        """Return the bytes of the last image on disk. DMTCP's may have holes, like the memory that
        it saves.
        """
        for image in self._run.store.images()[:1]:
            with contextlib.suppress(RequestRefused):
                return min(manifests.read(image, self._run.site.key).size, allocated(image))
        return 0
