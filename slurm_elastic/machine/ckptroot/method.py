"""What a way to save processes and bring them back can do: ``criu.Criu`` and ``dmtcp.Dmtcp``.

A save calls ``dump``, then ``gather``, then ``go_on`` or ``stop``, and in between asks for what the
manifest notes. A method that has nothing to tell of a thing answers that there is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from .inventory import State
from .manifest import Manifest


class Method(Protocol):
    """``name`` is that of ``--checkpoint-method``. ``stands_still``: whether the tasks stay stopped
    from a dump until ``go_on`` or ``stop``. ``pid`` is the payload's first process, 0 for none.
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
        """Bring back what a verified image holds; if it raises Refused, nothing is left of it."""

    def alone(self, image: Path, /) -> frozenset[str]:  # noqa: ARG002
        """The files that a verified image's tasks write, but do not append to."""
        return frozenset()

    def need(self) -> int:
        """About how many bytes an image would have now; Refused if the job cannot be saved."""

    def locked(self) -> dict[str, State]:
        """After a dump: the files that the tasks keep locked, with their states."""
        return {}

    def clocks(self) -> dict[str, int] | None:
        """After a dump: the time on the tasks' own clocks (ns); None if they have none."""

    def bound(self) -> dict[str, list[int]]:
        """After a dump: the CPUs of threads that are bound to fewer than their step's."""
        return {}

    def connections(self) -> list[str]:
        """After a dump: the far ends of the tasks' TCP connections."""
        return []

    def partners(self) -> list[str]:
        """The far ends of connections for which a save is refused, unless it closes them."""
        return []

    def expect_stop(self, stops: bool, /) -> None:  # noqa: ARG002
        """Before a dump: whether the tasks are to be stopped after it."""
        return

    def dump(self, image: Path, within: float, most: int, closes: bool, /) -> dict[str, int]:
        """Save into files of at most ``most`` bytes altogether; returns the sizes of files open for
        writing. If it raises Refused, the tasks are unharmed. ``closes``: close TCP connections in
        the image, but not for the tasks if they run on.
        """

    def gather(self, image: Path, most: int, /) -> None:
        """After a dump: complete the image, with at most that many bytes, or raise Refused."""

    def go_on(self) -> None:
        """After a dump: let the tasks run on. If it raises Refused, none runs and ``pid`` is 0."""

    def stop(self) -> None:
        """After a dump: end the tasks."""

    def signal(self, number: int) -> None:
        """Send it to the payload's first process."""

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended; None if there is no payload."""

    def versions(self) -> dict[str, str]:
        """The versions of the programs that make the images."""

    def close(self) -> None:
        """Leave nothing running."""
