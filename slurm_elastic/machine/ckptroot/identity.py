"""The identity of a job and of its runs.

Slurm gives job numbers again: after MaxJobId, and after a slurmctld has lost its state. A requeue
changes SubmitTime, and a later job may have all other fields of the record. But Slurm keeps the
batch script that was submitted. The submit filter writes a random token into its launcher, so the
digest of that file names the job.

A run of a job is not over for its own node as soon as Slurm has requeued the job: a node
without network continues to work. So each run writes a random token of its own into the job's
directory. The run that wrote last owns the directory.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class JobKey:
    """The identity of a job. ``script``: the digest of the batch script that Slurm keeps."""

    cluster: str
    job: int
    uid: int
    gid: int
    script: str


@dataclass(frozen=True)
class RunKey:
    """The identity of a job's run. ``attempt``: how often Slurm had restarted the job before."""

    job: int
    attempt: int
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def encoded(self) -> bytes:
        """Return the content of the file ``run``. Its length is always the same, so a new run can
        write over it in place.
        """
        return f"{self.job:020d} {self.attempt:020d} {self.token}\n".encode()


def script_digest(content: bytes) -> str:
    """Return the digest of a batch script as Slurm keeps it, with the launcher before it."""
    return hashlib.sha256(content).hexdigest()
