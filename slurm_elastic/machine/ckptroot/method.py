"""The interface of a method that saves processes and restores them: ``criu.Criu`` and
``dmtcp.Dmtcp``.

A save calls ``dump``, then ``gather``, then ``resume`` or ``stop``. In between it asks for the data
of the manifest. A method without such data returns an empty value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from .inventory import State
from .manifest import ImageManifest


class Method(Protocol):
    """A method of one job's run.

    ``name``: the value of ``--checkpoint-method``. ``stands_still``: whether the tasks stay stopped
    between ``dump`` and ``resume`` or ``stop``. ``pid``: the payload's first process, 0 if there is
    none.
    """

    name: str
    stands_still: bool

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Start the payload."""

    def put_back_files(self, image: Path, /) -> None:  # noqa: ARG002
        """Put back the verified image's files that only the old node had. Called before
        ``restore``. It may raise RequestRefused.
        """
        return

    def restore(self, image: Path, manifest: ImageManifest) -> None:
        """Restore the processes of a verified image. If it raises RequestRefused, it leaves none
        running.
        """

    def unappended_files(self, image: Path, /) -> frozenset[str]:  # noqa: ARG002
        """Return the files that a verified image's tasks write without appending."""
        return frozenset()

    def estimate_size(self) -> int:
        """Return the estimated bytes of an image made now. RequestRefused if the job cannot be
        saved.
        """

    def locked(self) -> dict[str, State]:
        """After a dump: return the files that the tasks keep locked, with their states."""
        return {}

    def clocks(self) -> dict[str, int] | None:
        """After a dump: return the time on the tasks' own clocks (ns), or None if they have
        none.
        """

    def cpu_bindings(self) -> dict[str, list[int]]:
        """After a dump: return the CPUs of threads bound to fewer than their step's."""
        return {}

    def connections(self) -> list[str]:
        """After a dump: return the far ends of the tasks' TCP connections."""
        return []

    def outside_connections(self) -> list[str]:
        """Return the far ends of connections that block a save which does not close them."""
        return []

    def expect_stop(self, stops: bool, /) -> None:  # noqa: ARG002
        """Before a dump: announce whether the tasks will be stopped after it."""
        return

    def dump(self, image: Path, within: float, max_bytes: int, closes: bool, /) -> dict[str, int]:
        """Save into files of at most ``max_bytes`` in total.

        Return the sizes of the files open for writing. If it raises RequestRefused, the tasks are
        unharmed. ``within``: seconds. ``closes``: close TCP connections in the image, but not for
        the tasks if they continue.
        """

    def gather(self, image: Path, max_bytes: int, /) -> None:
        """After a dump: complete the image with at most ``max_bytes``. It may raise
        RequestRefused.
        """

    def resume(self) -> None:
        """After a dump: let the tasks continue. If it raises RequestRefused, none runs and ``pid``
        is 0.
        """

    def stop(self) -> None:
        """After a dump: end the tasks."""

    def signal(self, number: int) -> None:
        """Send the signal to the payload's first process."""

    def wait_status(self) -> int | None:
        """Return the payload's wait status after it has ended. None if it runs, or if there is no
        payload.
        """

    def lost(self) -> str:
        """Return the name of a node of the job that does not answer; "" if there is none."""
        return ""

    def other_instructions(self) -> list[str]:
        """Return the instructions of the processors of the job's other nodes."""
        return []

    def versions(self) -> dict[str, str]:
        """Return the versions of the programs that make the images."""

    def close(self) -> None:
        """End everything that still runs."""
