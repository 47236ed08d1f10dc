"""A look at a job between its saves, which stops nothing: its next save is promised room, and what
would keep it from that save is known before a notice, when it would be too late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot.quota import allocated
from slurm_elastic.machine.ckptroot.site import Refused
from slurm_elastic.machine.ckptroot.store import Store

EVERY = 60.0
"""Seconds between two looks."""


class Looked(Protocol):
    """The part of a method (``session.Method``) that a look needs."""

    def need(self) -> int:
        """About how many bytes an image of now would have; Refused where none is possible."""

    def partners(self) -> list[str]:
        """The far ends of connections for which a save is refused, unless it closes them."""


class Promise:
    """``room`` promises so many bytes, or is Refused. ``hindered``: why the next save could not be
    made now; empty where nothing says so.
    """

    def __init__(
        self, method: Looked, store: Store, key: bytes,
        room: Callable[[int], object], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.hindered = ""
        self.closes: bool | None = None
        """Whether the last save that was asked for was to close connections; None: none was."""
        self._method = method
        self._store = store
        self._room = room
        self._key = key
        self._say = say
        self._bytes = 0

    def look(self) -> bool:
        """Whether something has changed that the head should know; it is said once."""
        try:
            need = max(self._method.need(), self._last_size())
            self._check_partners()
            if self.hindered or abs(need - self._bytes) > need // 10:
                self._room(need)
                self._bytes = need
        except Refused as error:
            before, self.hindered = self.hindered, str(error)
            if self._kind(before) == self._kind(self.hindered):
                return False
            self._say(f"its next save could not be made now: {error}")
            return True
        except Exception:  # noqa: BLE001 - no look at it may end the job
            return False
        if not self.hindered:
            return False
        self.hindered = ""
        self._say(f"{need >> 20} MiB are promised to its next save")
        return True

    def _check_partners(self) -> None:
        partners = self._method.partners() if self.closes is False else ()
        if partners:
            raise Refused(f"it has a connected TCP socket: to {partners[0]}")

    def _last_size(self) -> int:
        """Bytes that the last image takes: DMTCP's may have holes, as what it saves has."""
        for image in self._store.images()[:1]:
            with contextlib.suppress(Refused):
                return min(manifests.read(image, self._key).size, allocated(image))
        return 0

    @staticmethod
    def _kind(why: str) -> str:
        """Numbers and names in it may change each minute."""
        return why.partition(":")[0]
