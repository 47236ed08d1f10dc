"""A way to save processes and to bring them back: ``criu.Criu`` and ``dmtcp.Dmtcp``.

A save is ``dump``, then ``gather``, then ``go_on`` or ``stop``; between them it is asked what
belongs to the image. Of what a method knows nothing, it says that there is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from .inventory import State
from .manifest import Manifest


class Method(Protocol):
    """``name`` is that of ``--checkpoint-method``; ``stands_still``: whether the tasks do so from a
    dump on until they go on or are stopped. ``pid`` is the payload's first process, 0 for none.
    """

    name: str
    stands_still: bool

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Start the payload."""

    def lay_out(self, image: Path, /) -> None:  # noqa: ARG002
        """Before ``restore``: the files of a verified image that no other node has, or Refused."""
        return

    def restore(self, image: Path, manifest: Manifest) -> None:
        """Bring back what a verified image holds; Refused where that failed: nothing is left."""

    def alone(self, image: Path, /) -> frozenset[str]:  # noqa: ARG002
        """The files that a verified image's tasks write, but do not append to."""
        return frozenset()

    def need(self) -> int:
        """About how many bytes an image of now would have; Refused where none is possible."""

    def locked(self) -> dict[str, State]:
        """After a dump: the files that the tasks keep locked, as they are."""
        return {}

    def clocks(self) -> dict[str, int] | None:
        """After a dump: what the tasks' own clocks say (ns); None where they have none."""

    def bound(self) -> dict[str, list[int]]:
        """After a dump: the CPUs of the threads that have not all of their step's."""
        return {}

    def connections(self) -> list[str]:
        """After a dump: the far ends of the TCP connections that the tasks have."""
        return []

    def partners(self) -> list[str]:
        """The far ends of connections for which a save is refused, unless it closes them."""
        return []

    def dump(self, image: Path, within: float, most: int, closes: bool, /) -> dict[str, int]:
        """Save, into files of at most that many bytes; sizes of files open for writing. Refused:
        unharmed. ``closes``: TCP connections are closed in the image, and not where the tasks run
        on.
        """

    def gather(self, image: Path, most: int, /) -> None:
        """After a dump: all of it is in the image, of at most that many bytes, or Refused."""

    def go_on(self) -> None:
        """Run on after a dump."""

    def stop(self) -> None:
        """End after a dump."""

    def signal(self, number: int) -> None:
        """To the payload's first process."""

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended."""

    def versions(self) -> dict[str, str]:
        """The versions of the programs that make the images."""

    def close(self) -> None:
        """Leave nothing running."""
