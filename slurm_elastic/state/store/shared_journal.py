"""The journal of two heads: the acting head writes it (``state.heads``), each has its own view.

A head begins its epoch with a new segment. The other head, which may not know yet that it no longer
acts, can then write only to the segment before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.state.heads import Fence, fence_at, last_seen
from slurm_elastic.state.store.journal import Journal
from slurm_elastic.state.store.trouble import JournalError


class SharedJournal(Journal):
    """The journal of two heads. While the other head acts, each write raises SupersededError, which
    is an OSError.
    """

    def __init__(self, directory: Path, name: str, fence: Fence) -> None:
        super().__init__(directory, name)
        self.turn = directory.parent / f"{name}.applied"
        self._fence = fence
        self.epoch = fence.epoch

    def require_reachable(self) -> None:
        """Raise JournalError if the shared directory is away, or an older copy has replaced it.
        This head then does not know what the other head has written.
        """
        if not self.directory.is_dir():
            raise JournalError(f"the directory of both heads is away: {self._shared}")
        with JournalError.of_system():
            number, seen_number = self._fence.epochs.number(), last_seen(self.directory.parent)
        if number < seen_number:
            raise JournalError(
                f"the directory of both heads is away, or an older copy: {self._shared} ends with "
                f"epoch {number}, and this head has seen epoch {seen_number}"
            )

    @property
    def _shared(self) -> Path:
        return self._fence.epochs.directory

    @property
    def is_newest(self) -> bool:
        """Whether the view is of the newest epoch: an older view lacks the other head's lines."""
        return self._fence.newest == self.applied().epoch

    @contextlib.contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Hold the lock among this head's processes. Raises SupersededError."""
        self._fence.require()
        with super().locked(patience):
            yield

    def _descriptor(self, segment: int) -> int:
        """The file of the segment. The fence is checked last: a process that was suspended may wake
        up after the other head has begun its epoch, and must then write nothing.
        """
        descriptor = super()._descriptor(segment)
        self._fence.require()
        return descriptor

    def _give_name(self, draft: Path, segment: int) -> None:
        """Make the draft a segment, only while this head acts, and never in place of a segment that
        is there. The lock does not keep the other head away. This head may stand still in each step
        for as long as a takeover takes, because the directory is on a network.
        """
        self._fence.require()
        path = self.path(segment)
        try:
            os.link(draft, path)
        except FileExistsError:
            # An NFS client that repeats a lost call may get this answer for its own link (open(2)).
            if not os.path.samefile(draft, path):
                self._fence.require()
                raise


def is_there(path: Path) -> bool:
    """Whether a memory with its view at ``path`` was ever begun, even if the view is missing now.
    Return True also while the shared directory is away. Opening the memory then raises
    JournalError.
    """
    if path.exists():
        return True
    journal = journal_of(path)
    try:
        journal.require_reachable()
    except JournalError:
        return True
    return bool(journal.segments())


def journal_of(path: Path) -> Journal:
    """The journal of the view at ``path``, shared or this head's own."""
    place = path.parent / "journal"
    if place.is_symlink():
        return SharedJournal(place, path.stem, fence_at(place))
    return Journal(place, path.stem)
