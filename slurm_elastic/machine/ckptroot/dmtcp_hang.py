"""Tell a late save of DMTCP that hangs from one that is slow, or that waits for its file system.

The file system of the images may be a server that does not answer for minutes (NFS). Whoever
touches it then waits, so a child of ours touches it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from .child import Child
from .dmtcp_images import DmtcpImages

HANGS_AFTER_S = 120.0
"""A save hangs if it has written nothing for this long, while its file system answered."""
_LOOK_EVERY_S = 10.0
_STALLS_AFTER_S = 60.0
"""Two looks further apart than this: this process itself has waited, for the file system."""
_PROBE_TIMEOUT_S = 5.0
_POLL_EVERY_S = 0.01
_MAX_NUMBER_BYTES = 32


class SaveHang:
    """Finds out whether a save hangs. Make a new one for each late save.

    ``written``: returns the bytes of the save so far; None if a file system does not answer now.
    """

    def __init__(self, written: Callable[[], int | None]) -> None:
        self._written = written
        self._bytes: int | None = None
        self._looked_at = time.monotonic()
        self._quiet_s = 0.0

    def has_hung(self) -> bool:
        """Return whether the save has written nothing for a long time.

        This looks at the file system once every few seconds at most.
        """
        before = self._looked_at
        if time.monotonic() - before < _LOOK_EVERY_S:
            return False
        written = self._written()
        self._looked_at = time.monotonic()
        since_last = self._looked_at - before
        if written is None or written != self._bytes or since_last > _STALLS_AFTER_S:
            # After a stall the save gets the whole time again.
            self._bytes, self._quiet_s = written, 0.0
        else:
            self._quiet_s += since_last
        return self._quiet_s > HANGS_AFTER_S


class SaveProbe:
    """Writes a file beside the images of one node, and counts the bytes of the save there."""

    def __init__(self, images: DmtcpImages) -> None:
        self._images = images
        self._child: Child | None = None
        self._answer = -1

    def look(self) -> int | None:
        """Return the bytes of the save; None if the file system does not answer in time."""
        child = self._child = self._child or self._started()
        until = time.monotonic() + _PROBE_TIMEOUT_S
        while child.status() is None:
            if time.monotonic() > until:
                # Do not end it, because that could wait, too. The next call asks it again.
                return None
            time.sleep(_POLL_EVERY_S)
        text = os.read(self._answer, _MAX_NUMBER_BYTES)
        os.close(self._answer)
        child.end()
        self._child = None
        return int(text or 0)

    def _started(self) -> Child:
        self._answer, answer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                # If it waits for long, it must not keep the job's locks and pipes open.
                os.dup2(answer, 3)
                os.closerange(4, os.sysconf("SC_OPEN_MAX"))
                self._images.write_probe()
                os.write(3, str(self._images.written()).encode())
            finally:
                os._exit(0)
        os.close(answer)
        return Child(pid)

    def close(self) -> None:
        """Kill a child that still waits, without waiting for its end."""
        if self._child:
            self._child.signal(signal.SIGKILL)
