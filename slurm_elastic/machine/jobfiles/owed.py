"""The jobs whose files are on this machine and not back on the head, for slurm-elastic-wipe.

A directory of root's has a file for each job. The job's user owns the file, and it is not empty
while files are owed, so no program of root's has to read a text of a user. Root makes the file
before the copy's process becomes the user, and this process fills and empties it. The file has the
time of the order. Its size is 0, or 1 plus the number of the job's output files that were seen.
Only a copy to the machine makes the file, so a job without such a file has no files here.
"""

from __future__ import annotations

import contextlib
import os

from .identity import Identity

PLACE = "/var/lib/slurm-elastic-node/owed"


class Owed:
    """The file of one job. Made by root."""

    def __init__(self, identity: Identity) -> None:
        os.makedirs(PLACE, 0o755, exist_ok=True)
        _forget_over(identity)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        flags |= os.O_CREAT if identity.do == "out" else 0
        self._made_at = identity.made_at
        self._file: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self._file = os.open(f"{PLACE}/{identity.job}", flags, 0o600)
            os.fchown(self._file, identity.uid, identity.gid)
            # Not the machine's time: its clock may be behind, and an earlier order would remove the
            # file.
            os.utime(self._file, ns=(self._made_at, self._made_at))

    @property
    def is_known(self) -> bool:
        """Whether the files of the job have come to this machine, or were on their way."""
        return self._file is not None

    def set(self, *, is_owed: bool) -> None:
        """Note whether files of the job are still to go back."""
        self._write(int(is_owed))

    @property
    def outputs(self) -> int:
        """The most output files of the job that a copy has found here since its files came."""
        return max(self._size - 1, 0)

    @property
    def _size(self) -> int:
        return 0 if self._file is None else os.fstat(self._file).st_size

    def note_outputs(self, count: int) -> None:
        """Note that a copy has found so many output files."""
        if count > self.outputs and self._size:
            self._write(1 + count)

    def _write(self, size: int) -> None:
        if self._file is None:
            return
        os.ftruncate(self._file, size)
        os.utime(self._file, ns=(self._made_at, self._made_at))


def _forget_over(identity: Identity) -> None:
    """Remove the files of jobs that the head has given up."""
    live = {str(job) for job, _ in identity.live}
    with os.scandir(PLACE) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                ordered_at = entry.stat(follow_symlinks=False).st_mtime_ns
                if entry.name not in live and ordered_at < identity.made_at:
                    os.unlink(entry.path)
