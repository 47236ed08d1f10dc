"""Why a job's files were not copied to its machine, or not back."""

from __future__ import annotations

from slurm_elastic.base.units import counted
from slurm_elastic.model.causes.cause import Cause


class FilesNotSent(Cause, frozen=True, kw_only=True):
    """The files of the ``directory`` cannot be copied to the node, so the job is held."""

    directory: str
    error: str

    @property
    def words(self) -> str:
        return f"held: the files of {self.directory} cannot be copied to its machine: {self.error}"


class FilesRetried(Cause, frozen=True, kw_only=True):
    """The files of the ``directory`` could not be copied yet, and the copy is retried."""

    directory: str
    error: str

    @property
    def words(self) -> str:
        return f"the files of {self.directory} are not on its machine yet: {self.error}"


class FilesLost(Cause, frozen=True, kw_only=True):
    """The files of the job did not come back from its ``machine``."""

    directory: str
    machine: str
    error: str

    @property
    def words(self) -> str:
        return (
            f"the files that it wrote on {self.machine} did not come back to {self.directory}:"
            f" {self.error}"
        )


class FilesSent(Cause, frozen=True, kw_only=True):
    """The files of the job went to its ``machine``. ``notes``: files that were left out."""

    machine: str
    files: int
    bytes: int
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        size = f"{counted(self.files, 'file')} ({self.bytes / 1e6:.1f} MB)"
        return "; ".join((f"{size} went to {self.machine}", *self.notes))


class FilesReturned(Cause, frozen=True, kw_only=True):
    """The files of the job came back from its ``machine``. ``notes``: files that were left out, or
    have another name.
    """

    machine: str
    files: int
    bytes: int
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        size = f"{counted(self.files, 'file')} ({self.bytes / 1e6:.1f} MB)"
        return "; ".join((f"{size} came back from {self.machine}", *self.notes))


Copying = FilesNotSent | FilesRetried | FilesSent | FilesLost | FilesReturned
"""All causes about the copies of jobs' files."""
