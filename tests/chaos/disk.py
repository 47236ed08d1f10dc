"""The disk of a head node that may be full, read-only or broken, and that a power cut leaves with
what was synced: ``power_cut.c`` in this very process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
from pathlib import Path

from tests.power_cut import Disk, Names

TROUBLES = {"full": errno.ENOSPC, "read-only": errno.EROFS, "error": errno.EIO}


class HeadDisk:
    """``root`` is the state directory; a power cut puts another one in its place."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._cuts = 0
        self._library = ctypes.CDLL(None)
        self.trouble = ""
        self.is_away = False
        self.root = place / "0" / "state"
        self.root.mkdir(parents=True)
        self._watch()

    def _watch(self) -> None:
        place = self.root.parent
        self._disk = Disk(self.root, place, Path(os.environ["LD_PRELOAD"]))
        os.environ["POWER_CUT_DISK"] = self._disk.env["POWER_CUT_DISK"]
        os.environ["POWER_CUT_ROOT"] = str(self.root)

    def fail(self, trouble: str, after: int = 0) -> None:
        """From now on, once so many more writes have gone well; "" ends it."""
        self.trouble = trouble
        self._library.disk_fails(TROUBLES.get(trouble, 0), ctypes.c_long(after))

    def goes(self, path: Path | None, error: int = 0) -> None:
        """The directory is away, with that error; None brings it back."""
        self.is_away = path is not None
        self._library.directory_goes(str(path or self.root).encode(), error if path else 0)

    def cut(self, rng: random.Random) -> None:
        """The power fails: what is left is in another directory."""
        self.fail("")
        self.goes(None)
        self._cuts += 1
        old = self.root
        new = self._place / str(self._cuts)
        new.mkdir()
        self.root = self._disk.after_cut(new / "state", rng.choice(list(Names)))
        self._watch()
        shutil.rmtree(old.parent)

    def close(self) -> None:
        self.fail("")
        self.goes(None)
        del os.environ["POWER_CUT_DISK"], os.environ["POWER_CUT_ROOT"]
        shutil.rmtree(self._place)
