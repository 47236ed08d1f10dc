"""The journal of two heads: the one that acts writes it (``state.heads``), each has its own view.

One begins its epoch with a segment: what the other one, which does not know yet that it acts no
more, may be writing goes to the one before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from slurm_elastic.state.heads import Fence, fence_at
from slurm_elastic.state.store.journal import Journal, Position


class SharedJournal(Journal):
    """SupersededError, which is an OSError, for each write while the other head acts."""

    def __init__(self, directory: Path, name: str, fence: Fence) -> None:
        super().__init__(directory, name)
        self.turn = directory.parent / f"{name}.applied"
        self._fence = fence
        self.epoch = fence.epoch

    @property
    def is_newest(self) -> bool:
        """Whether the view is of the newest epoch: what the other head wrote is in none of ours."""
        return self._fence.newest == self.applied().epoch

    @contextlib.contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Alone among this head's processes."""
        self._fence.require()
        with super().locked(patience):
            yield

    def _descriptor(self, segment: int) -> int:
        """What an append or a cut writes to next: who stood still before that writes nothing."""
        descriptor = super()._descriptor(segment)
        self._fence.require()
        return descriptor

    def segment_of(self, written: Callable[[IO[bytes]], int]) -> Position:
        """As any journal's, which takes its name only while this head acts."""

        def checked(file: IO[bytes]) -> int:
            number = written(file)
            self._fence.require()
            return number

        return super().segment_of(checked)


def is_there(path: Path) -> bool:
    """Whether a memory whose view is at ``path`` was ever begun: the view may be away."""
    return path.exists() or bool(journal_of(path).segments())


def journal_of(path: Path) -> Journal:
    """The journal of the view at ``path``, shared or this head's own."""
    place = path.parent / "journal"
    if place.is_symlink():
        return SharedJournal(place, path.stem, fence_at(place))
    return Journal(place, path.stem)
